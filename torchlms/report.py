# SPDX-License-Identifier: BSD-3-Clause
"""What a step did: as a dict, as a table for people, as a picture."""

from __future__ import annotations

import copy
import json
import os
from collections.abc import Iterator
from typing import Any

from torchlms.units import format_bytes, format_rate, format_us

FIELDS = (
    "step",
    "state",
    "policy",
    "budget_bytes",
    "peak_bytes",
    "unlimited_peak_bytes",
    "predicted_peak_bytes",
    "predicted_step_us",
    "measured_step_us",
    "lower_bound_us",
    "floor_bytes",
    "floor_op",
    "saved_bytes",
    "kept_bytes",
    "swapped_bytes",
    "recomputed_bytes",
    "deduplicated_bytes",
    "stall_us",
    "recompute_us",
    "plan_us",
    "link",
    "disk_bytes",
    "disk_written_total_bytes",
    "host_bytes",
    "uncounted_bytes",
    "evictions",
    "not_planned",
)

Row = tuple[str, str, str]
"""What it is, the figure, a remark."""


class Report:
    """A session's state after its last step; later steps do not change it."""

    def __init__(self, report_json: str, timeline_json: str) -> None:
        self._values: dict[str, Any] = dict.fromkeys(FIELDS) | json.loads(report_json)
        self._timeline_json = timeline_json

    @classmethod
    def before_first_step(cls) -> Report:
        """The report of something that has not run yet."""
        return cls('{"step": 0, "state": "recording"}', "{}")

    def to_dict(self) -> dict[str, Any]:
        """Every figure by name, JSON types only: bytes in `*_bytes`, microseconds in `*_us`,
        bytes per second in `*_bytes_per_s`. None for what is not known (yet)."""
        return copy.deepcopy(self._values)

    def plot(self, path: str | os.PathLike[str]) -> None:
        """Draws the last step: memory over time against the budget, and when the link was busy.

        Args:
            path: the file to write; its suffix (.png, .svg, .pdf) says the format.

        Raises:
            ImportError: matplotlib is not installed.
            RuntimeError: no step has run yet.
            OSError: the file cannot be written.
        """
        timeline = json.loads(self._timeline_json or "{}")
        if not timeline.get("memory"):
            raise RuntimeError("torchlms: no step to draw yet; run one under offload first")
        from torchlms.plotting import draw  # matplotlib is optional and slow to import

        draw(timeline, path)

    def __str__(self) -> str:
        values = self._values
        head = f"torchlms: {values['state']}, steps so far: {values['step']}"
        if values["policy"] is not None:
            head += f", policy: {values['policy']}"
        rows = list(self._rows())
        widths = [max((len(row[column]) for row in rows), default=0) for column in (0, 1)]
        lines = [f"  {row[0]:<{widths[0]}}  {row[1]:>{widths[1]}}  {row[2]}" for row in rows]
        return "\n".join([head, *(line.rstrip() for line in lines)])

    __repr__ = __str__

    def _rows(self) -> Iterator[Row]:
        yield from self._memory_rows()
        yield from self._saved_rows()
        yield from self._time_rows()
        for direction, link in (self._values["link"] or {}).items():
            yield from self._link_rows(direction, link)
        yield from self._tier_rows()
        for reason, count in sorted((self._values["not_planned"] or {}).items()):
            yield f"not planned: {reason}", f"{count}", ""

    def _memory_rows(self) -> Iterator[Row]:
        values = self._values
        budget, peak = values["budget_bytes"], values["peak_bytes"]
        if budget is not None:
            yield "budget", format_bytes(budget) if budget else "min", ""
        if peak is not None:
            remarks = [f"{peak / budget:.1%} of the budget"] if budget else []
            if values["predicted_peak_bytes"] is not None:
                remarks.append(f"predicted {format_bytes(values['predicted_peak_bytes'])}")
            yield "peak", format_bytes(peak), ", ".join(remarks)
        unlimited = values["unlimited_peak_bytes"]
        if unlimited is not None:
            remark = f"{unlimited / peak:.2f}x the peak" if peak else ""
            yield "plain PyTorch would hold", format_bytes(unlimited), remark
        if values["floor_bytes"]:
            where = f"reached at {values['floor_op']}" if values["floor_op"] else ""
            yield "smallest possible budget", format_bytes(values["floor_bytes"]), where
        if values["uncounted_bytes"]:
            size = format_bytes(values["uncounted_bytes"])
            yield "older storages", size, "not made by the device's allocator"

    def _saved_rows(self) -> Iterator[Row]:
        saved = self._values["saved_bytes"]
        for name in ("kept", "swapped", "recomputed"):
            size = self._values[f"{name}_bytes"]
            if size is not None and (size or name != "recomputed"):
                remark = f"{size / saved:.1%} of what is saved" if saved else ""
                yield name, format_bytes(size), remark
        if self._values["deduplicated_bytes"]:
            yield "deduplicated", format_bytes(self._values["deduplicated_bytes"]), "not held twice"

    def _time_rows(self) -> Iterator[Row]:
        values = self._values
        step = values["measured_step_us"]
        if step is not None:
            bounds = (("predicted", "predicted_step_us"), ("at least", "lower_bound_us"))
            remarks = [
                f"{word} {format_us(values[name])}"
                for word, name in bounds
                if values[name] is not None
            ]
            yield "step", format_us(step), ", ".join(remarks)
        for label, name in (("stalls", "stall_us"), ("recompute", "recompute_us")):
            spent = values[name]
            if spent is not None and (spent or name == "stall_us"):
                yield label, format_us(spent), f"{spent / step:.1%} of the step" if step else ""
        if values["plan_us"]:
            yield "planning", format_us(values["plan_us"]), "once"

    def _link_rows(self, direction: str, link: dict[str, Any]) -> Iterator[Row]:
        remarks = []
        if link.get("bandwidth_bytes_per_s") is not None:
            remarks.append(format_rate(link["bandwidth_bytes_per_s"]))
        if link.get("busy_us") is not None:
            remarks.append(f"busy {format_us(link['busy_us'])}")
        if link.get("late") is not None:
            remarks.append(f"{link['late']} late")
        yield f"link {direction}", format_bytes(link.get("bytes") or 0), ", ".join(remarks)

    def _tier_rows(self) -> Iterator[Row]:
        for tier in ("disk", "host"):
            if self._values[f"{tier}_bytes"]:
                yield f"{tier} tier", format_bytes(self._values[f"{tier}_bytes"]), "highest"
        written = self._values["disk_written_total_bytes"]
        if written:
            yield "written to disk", format_bytes(written), "since the session began"
        if self._values["evictions"]:
            yield "evictions", f"{self._values['evictions']}", "swap-outs that no plan foresaw"
