# SPDX-License-Identifier: BSD-3-Clause
"""What a recorded step would do within a budget, without running it."""

from __future__ import annotations

import copy
import dataclasses
import json
import os
from collections.abc import Iterator
from typing import Any

from torchlms import _C
from torchlms.fields import bad_value, read_budget, read_path, read_policy_name
from torchlms.plan_file import TraceFile
from torchlms.settings import budget_bytes, default_disk_path
from torchlms.units import format_bytes, format_rate, format_us, parse_rate

NUM_LARGEST = 12
COSTS_FORMS = '"out=1.5GB/s,in=1.5GB/s", or "measured" for what the disk does now'


@dataclasses.dataclass(frozen=True)
class Costs:
    """How fast the link is, in bytes per second and direction, and what each transfer waits."""

    out_bytes_per_s: float
    in_bytes_per_s: float
    latency_us: float = 100.0

    @classmethod
    def read(cls, name: str, text: str) -> Costs | None:
        """The rates in "out=1.5GB/s,in=1.5GB/s"; None for "measured".

        Raises:
            ValueError: anything else; quotes it, and `name`.
        """
        if text.strip() == "measured":
            return None
        rates: dict[str, int | None] = {}
        for part in text.split(","):
            direction, _, rate = part.partition("=")
            rates[direction.strip()] = parse_rate(rate)
        out_rate, in_rate = rates.get("out"), rates.get("in")
        if len(rates) != 2 or not out_rate or not in_rate:
            raise bad_value(name, text, "does not give a rate for each direction", COSTS_FORMS)
        return cls(out_rate, in_rate)

    @classmethod
    def measured(cls, disk_path: str | None = None) -> Costs:
        """Those of the disk tier in a folder, or of the default one, measured now. OSError for a
        folder that cannot be used."""
        disk = _C.measure_disk(disk_path or default_disk_path())
        return cls(disk["out_bytes_per_s"], disk["in_bytes_per_s"])


class Forecast:
    """What a plan promises for a recorded step. Immutable."""

    def __init__(self, values: dict[str, Any], timeline: dict[str, Any]) -> None:
        self._values = values
        self._timeline = timeline

    @property
    def fits(self) -> bool:
        """Whether the step can be run within the budget."""
        return bool(self._values["fits"])

    def to_dict(self) -> dict[str, Any]:
        """Every figure by name, JSON types only: bytes in `*_bytes`, microseconds in `*_us`. None
        for what depends on a plan where none fits."""
        return copy.deepcopy(self._values)

    def plot(self, path: str | os.PathLike[str]) -> None:
        """Draws memory over time against the budget, the link, and what is recomputed. Where
        nothing fits: the least that the step can hold, against the budget.

        Args:
            path: the file to write; its suffix (.png, .svg, .pdf) says the format.

        Raises:
            ImportError: matplotlib is not installed.
            OSError: the file cannot be written.
            ValueError: an unknown suffix, or a trace without events.
        """
        if not self._timeline["memory"]:
            raise ValueError("torchlms: a trace without events has no picture")
        from torchlms.plotting import draw  # matplotlib is optional and slow to import

        draw(self._timeline, path)

    def __str__(self) -> str:
        rows = [*self._memory_rows(), *self._plan_rows()]
        widths = [max(len(row[column]) for row in rows) for column in (0, 1)]
        lines = [f"  {row[0]:<{widths[0]}}  {row[1]:>{widths[1]}}  {row[2]}" for row in rows]
        verdict = "fits" if self.fits else "does not fit"
        head = f"torchlms plan: {verdict}, policy: {self._values['policy']}"
        return "\n".join([head, *(line.rstrip() for line in lines), *self._largest_lines()])

    __repr__ = __str__

    def _memory_rows(self) -> Iterator[tuple[str, str, str]]:
        values = self._values
        floor = f"set by {values['floor_op']}" if values["floor_op"] else ""
        yield "budget", format_bytes(values["budget_bytes"]), f"{values['budget_bytes']} bytes"
        where = f"{values['floor_bytes']} bytes, {floor}".rstrip(", ")
        yield "smallest budget that works", format_bytes(values["floor_bytes"]), where
        yield "plain PyTorch would hold", format_bytes(values["unlimited_peak_bytes"]), ""
        if self.fits:
            yield "predicted peak", format_bytes(values["predicted_peak_bytes"]), ""

    def _plan_rows(self) -> Iterator[tuple[str, str, str]]:
        values = self._values
        saved = values["saved_bytes"]
        yield "saved for backward", format_bytes(saved), ""
        if not self.fits:
            return
        for name in ("kept", "swapped", "recomputed"):
            size = values[f"{name}_bytes"]
            share = f"{size / saved:.1%} of what is saved" if saved else ""
            yield f"  {name}", format_bytes(size), share
        step, plain = values["predicted_step_us"], values["unlimited_step_us"]
        slower = (
            f"{step / plain - 1:+.1%} over {format_us(plain)} without a budget" if plain else ""
        )
        yield "predicted step", format_us(step), slower
        gap = f"the gap to it is {values['gap_percent']:.1f} %"
        yield "  at least", format_us(values["lower_bound_us"]), gap
        yield "  waiting for the link", format_us(values["predicted_stall_us"]), self._link()
        yield "  recomputing", format_us(values["predicted_recompute_us"]), ""

    def _link(self) -> str:
        costs = self._values["costs"]
        if costs is None:
            return ""
        rates = [f"{name} {format_rate(costs[f'{name}_bytes_per_s'])}" for name in ("out", "in")]
        return ", ".join(rates)

    def _largest_lines(self) -> Iterator[str]:
        largest = self._values["largest"]
        if not largest:
            return
        yield "largest saved storages:"
        width = max(len(format_bytes(row["size_bytes"])) for row in largest)
        for row in largest:
            action = row["action"] or "-"
            size = format_bytes(row["size_bytes"])
            yield f"  #{row['storage']:<6} {size:>{width}}  {action:<9}  {row['made_by'] or ''}"


def forecast(
    trace: TraceFile,
    budget: int | float | str,
    *,
    policy: str = "auto",
    costs: Costs | None = None,
    disk_path: str | None = None,
) -> Forecast:
    """Plans a recorded step for a budget without running it.

    Args:
        budget: as for `torchlms.offload`; it may be more than this machine has. A fraction is one
            of this machine's device.
        policy: "auto", "swap", "recompute" or "hybrid".
        costs: the link's. By default what the file that TORCHLMS_COSTS names says of link and ops,
            else what this machine's disk does, measured where it matters.
        disk_path: the folder whose disk is measured.

    Raises:
        ValueError: a bad budget or policy, quoted with the accepted forms; a trace or a file of
            costs that is damaged.
        OSError: a disk folder that cannot be used.
    """
    asked_bytes = _read_budget(budget)
    if read_policy_name("policy", policy) == "off":
        forms = "'auto', 'swap', 'recompute', 'hybrid'"
        raise bad_value("policy", policy, "plans nothing", forms)
    folder = read_path("disk_path", disk_path)
    document = trace.to_dict()
    try:
        recorded = _C.Trace(document)
    except ValueError as error:
        text = str(error).removeprefix("torchlms: ")
        raise ValueError(f"torchlms: {trace.where}: {text}") from None
    if costs is None and (given := recorded.take_given_costs()) is not None:
        costs = Costs(*given)
    summary = json.loads(recorded.summary_json())
    moves = summary["floor_bytes"] <= (asked_bytes or summary["floor_bytes"])
    moves &= asked_bytes < summary["unlimited_peak_bytes"]
    if costs is None and moves:
        costs = Costs.measured(folder)
    assumed = costs or Costs(1e9, 1e9)  # where no time depends on it
    planned = json.loads(
        recorded.plan_json(budget_bytes=asked_bytes, policy=policy, **dataclasses.asdict(assumed))
    )
    return Forecast(_values(document, summary, planned["plan"], costs), planned["timeline"])


def _read_budget(budget: int | float | str) -> int:
    """In bytes, on whatever machine; 0 for "min"."""
    read = read_budget("budget", budget)
    return read if isinstance(read, int) else budget_bytes(read)


def _values(
    trace: dict[str, Any], summary: dict[str, Any], plan: dict[str, Any], costs: Costs | None
) -> dict[str, Any]:
    fits = plan["fits"]
    bound = plan["lower_bound_us"]
    moved = dict.fromkeys(("swap", "recompute"), 0)
    for storage, action in zip(trace["storages"], plan["actions"], strict=True):
        if action["kind"] in moved:
            moved[action["kind"]] += storage["size_bytes"]
    of_plan = {
        "predicted_peak_bytes": plan["predicted_peak_bytes"],
        "predicted_step_us": plan["predicted_step_us"],
        "predicted_stall_us": plan["predicted_stall_us"],
        "predicted_recompute_us": plan["predicted_recompute_us"],
        "lower_bound_us": bound,
        "gap_percent": 100 * (plan["predicted_step_us"] / bound - 1) if bound else 0.0,
        "kept_bytes": summary["saved_bytes"] - sum(moved.values()),
        "swapped_bytes": moved["swap"],
        "recomputed_bytes": moved["recompute"],
    }
    return {
        "fits": fits,
        "policy": plan["policy"],
        "budget_bytes": plan["budget_bytes"],
        **summary,
        **(of_plan if fits else dict.fromkeys(of_plan)),
        "costs": dataclasses.asdict(costs) if costs else None,
        "largest": list(_largest(trace, plan)),
    }


def _largest(trace: dict[str, Any], plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The largest storages that the plan may move, and which op made each."""
    sizes = {
        number: storage["size_bytes"]
        for number, storage in enumerate(trace["storages"])
        if storage["is_managed"]
    }
    makers: dict[int, str] = {}
    for value in trace["values"]:
        if value["producer"] >= 0 and value["storage"] not in makers:
            makers[value["storage"]] = trace["ops"][value["producer"]]["name"]
    for number in sorted(sizes, key=lambda number: (-sizes[number], number))[:NUM_LARGEST]:
        yield {
            "storage": number,
            "size_bytes": sizes[number],
            "action": plan["actions"][number]["kind"] if plan["fits"] else None,
            "made_by": makers.get(number),
        }
