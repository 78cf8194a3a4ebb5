# SPDX-License-Identifier: BSD-3-Clause
"""What the system says that this process holds, to be read beside what an allocator counts."""

from __future__ import annotations

import contextlib
from pathlib import Path


class ResidentMemory:
    """The highest resident memory of this process above where it stood when this was made."""

    def __init__(self) -> None:
        # Where this is forbidden it is the highest since the process began, much the same.
        with contextlib.suppress(OSError):
            Path("/proc/self/clear_refs").write_text("5")
        self._start_bytes = _status_bytes("VmRSS")

    def peak_above_start_bytes(self) -> int:
        return _status_bytes("VmHWM") - self._start_bytes


def _status_bytes(name: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    raise OSError(f"/proc/self/status does not tell {name}")
