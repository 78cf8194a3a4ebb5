# SPDX-License-Identifier: BSD-3-Clause
"""A row of the table: what one method did with one model, budget and link."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from common import Spread, mib
from contender import Contender
from methods import COMPILED, PLAIN, POLICIES

HEAD = [
    "model",
    "budget",
    "link",
    "method",
    "step [s]",
    "over plain",
    "steps",
    "peak",
    "of budget",
    "kept",
    "gradients",
    "buffers",
    "plan [s]",
    "time predicted",
    "peak predicted",
    "note",
]
NO_LINK = "-"  # of a method that moves nothing


@dataclass
class Row:
    """Ratios are to plain PyTorch. None: not known, or it does not apply."""

    model: str
    budget: float | None
    """As a fraction of plain's peak."""
    link: str
    method: str
    failure: str | None = None
    step_s: list[float] | None = None
    over_plain: Spread | None = None
    peak_bytes: int | None = None
    budget_bytes: int | None = None
    differing: dict[str, list[str]] | None = None
    """Names of tensors that are not plain's bit by bit, under "gradients" and "buffers"."""
    num_buffers: int = 0
    plan_s: float | None = None
    predicted_step_us: float | None = None
    measured_step_us: float | None = None
    predicted_peak_bytes: int | None = None
    planned_peak_bytes: int | None = None
    """The peak of the step that the prediction was for."""

    @property
    def keeps_budget(self) -> bool | None:
        if self.failure is not None:
            return False
        if self.peak_bytes is None or self.budget_bytes is None:
            return None
        return self.peak_bytes <= self.budget_bytes

    @property
    def is_equal(self) -> bool:
        return self.differing is not None and not any(self.differing.values())

    def to_dict(self) -> dict[str, Any]:
        values = {name: value for name, value in vars(self).items() if value is not None}
        if self.step_s:
            values["step_s"] = {**Spread.of(self.step_s)._asdict(), "each": self.step_s}
        if self.over_plain:
            values["over_plain"] = self.over_plain._asdict()
        return values | {"keeps_budget": self.keeps_budget}

    def cells(self, note: str) -> list[str]:
        start = [
            self.model,
            "-" if self.budget is None else f"{self.budget:g}",
            self.link,
            self.method,
        ]
        if self.failure is not None:
            return [*start, *[""] * (len(HEAD) - len(start) - 1), note]
        kept = self.keeps_budget
        return [
            *start,
            Spread.of(self.step_s).text(2) if self.step_s else "",
            str(self.over_plain) if self.over_plain else "",
            str(len(self.step_s)) if self.step_s else "",
            "" if self.peak_bytes is None else mib(self.peak_bytes),
            "" if kept is None else f"{self.peak_bytes / self.budget_bytes:.1%}",
            "" if kept is None else ("yes" if kept else "NO"),
            self._equality("gradients"),
            self._equality("buffers") if self.num_buffers else "none",
            "" if self.plan_s is None else f"{self.plan_s:.2f}",
            _share(self.predicted_step_us, self.measured_step_us),
            _share(self.predicted_peak_bytes, self.planned_peak_bytes),
            note,
        ]

    def _equality(self, kind: str) -> str:
        if self.differing is None:
            return ""
        return "NO" if self.differing[kind] else "equal"


def _share(predicted: float | None, measured: float | None) -> str:
    return f"{predicted / measured:.1%}" if predicted and measured else ""


def row_of(
    contender: Contender,
    plain: Contender,
    budget: float | None = None,
    link: str = NO_LINK,
    peak_bytes: int | None = None,
    budget_bytes: int | None = None,
) -> Row:
    """What the contender's last turns say.

    Args:
        peak_bytes: what was counted elsewhere; torchlms's own rows have it in their reports.
    """
    job = contender.job
    row = Row(job.model, budget, link, job.method, contender.failure, budget_bytes=budget_bytes)
    if plain.failure is not None:
        row.failure = plain.failure
    if row.failure is not None:
        return row
    row.step_s = contender.seconds()
    row.over_plain = Spread.of_ratios(row.step_s, plain.seconds()[: len(row.step_s)])
    row.peak_bytes = peak_bytes
    row.num_buffers = len(plain.digests["buffers"])
    if job.method != PLAIN:
        row.differing = differing(contender.digests, plain.digests)
    if job.method == COMPILED:  # its first step compiles
        row.plan_s = contender.first_steps[0]["step_s"] - statistics.median(row.step_s)
    if job.method in POLICIES:
        _fill_from_reports(row, contender.reports())
    return row


def _fill_from_reports(row: Row, reports: Sequence[Mapping[str, Any]]) -> None:
    if not reports:
        return
    row.peak_bytes = max(report["peak_bytes"] for report in reports)
    row.plan_s = reports[-1]["plan_us"] / 1e6 if reports[-1]["plan_us"] is not None else None
    for report in reports:  # the last that followed a plan: what it says was made before it ran
        if report["predicted_step_us"] and report["measured_step_us"]:
            row.predicted_step_us = report["predicted_step_us"]
            row.measured_step_us = report["measured_step_us"]
            row.predicted_peak_bytes = report["predicted_peak_bytes"]
            row.planned_peak_bytes = report["peak_bytes"]


def differing(
    ours: Mapping[str, Mapping[str, str]], theirs: Mapping[str, Mapping[str, str]]
) -> dict[str, list[str]]:
    """Names of the tensors whose digests are not the same, by kind."""
    return {
        kind: [
            name
            for name in ours[kind] | theirs[kind]
            if ours[kind].get(name) != theirs[kind].get(name)
        ]
        for kind in theirs
    }
