# SPDX-License-Identifier: BSD-3-Clause
"""The progress line on stderr while a step is recorded and planned."""

from __future__ import annotations

import os
import sys
from typing import Any

from tqdm import tqdm

_UNITS = {"recording": " ops", "planning": " plans"}


def is_wanted(progress: bool | None) -> bool:
    """The field's value, or by default: on a terminal, in the process of rank 0."""
    if progress is not None:
        return progress
    is_first = all(os.environ.get(name, "0") == "0" for name in ("RANK", "LOCAL_RANK"))
    return is_first and sys.stderr is not None and sys.stderr.isatty()


class ProgressLine:
    """Called by a session as (phase, done, total), total 0 when unknown; one bar per phase.

    Not thread-safe: the session calls it with the GIL held, one call at a time.
    """

    def __init__(self) -> None:
        self._phase = ""
        self._bar: tqdm[Any] | None = None

    def __call__(self, phase: str, done: int, total: int) -> None:
        try:
            self._show(phase, done, total)
        except (OSError, ValueError):
            self._bar = None  # stderr was closed: a step must not fail for its progress line

    def _show(self, phase: str, done: int, total: int) -> None:
        bar = self._bar
        if bar is None or phase != self._phase or done < bar.n:
            self._close()
            unit = _UNITS.get(phase, "")
            bar = tqdm(desc=f"torchlms: {phase}", total=total or None, unit=unit, leave=False)
            self._phase, self._bar = phase, bar
        bar.update(done - bar.n)
        if 0 < total <= done:
            self._close()

    def _close(self) -> None:
        if self._bar is not None:
            self._bar.close()
            self._bar = None
