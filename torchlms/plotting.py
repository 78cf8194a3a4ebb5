# SPDX-License-Identifier: BSD-3-Clause
"""The picture of a step. Draws on a figure of its own: the user's pyplot state is not touched."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

try:
    from matplotlib.figure import Figure
except ImportError as error:
    raise ImportError(
        "torchlms: a picture needs matplotlib: run `pip install torchlms[plot]`"
    ) from error

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_HELD, _BUDGET, _UNLIMITED = "#2f6db5", "#c0392b", "#5f6b76"
_LANE_COLORS = {"out": "#e08a1e", "in": "#2a9d7f", "recompute": "#8e5bb0"}
_LANE_LABELS = {"out": "swap-out", "in": "swap-in", "recompute": "recompute"}
_GRID = "#d9dde1"

Timeline = Mapping[str, Any]


def draw(timeline: Timeline, path: str | os.PathLike[str]) -> None:
    """Draws the timeline of a step (as `Session.timeline_json` describes it) into a file.

    A timeline with "replays" gets a row for them below the link.
    """
    end_us = _end_us(timeline)
    time_scale, time_unit = (1e-6, "s") if end_us >= 1e6 else (1e-3, "ms")
    figure = Figure(figsize=(10, 5.6), layout="constrained", facecolor="white")
    memory, link = figure.subplots(2, 1, sharex=True, height_ratios=(4, 1.1))
    _draw_memory(memory, timeline, time_scale)
    _draw_lanes(link, timeline, time_scale)
    link.set_xlabel(f"time since the step began [{time_unit}]")
    link.set_xlim(0, end_us * time_scale)
    figure.savefig(path, dpi=150)


def _end_us(timeline: Timeline) -> float:
    times = [point[0] for name in ("memory", "unlimited") for point in timeline.get(name) or ()]
    times += [bar[2] for name in ("link", "replays") for bar in timeline.get(name) or ()]
    return float(max([*times, 1.0]))


def _draw_memory(axes: Axes, timeline: Timeline, time_scale: float) -> None:
    held, unlimited = timeline["memory"], timeline.get("unlimited") or []
    budget = timeline.get("budget_bytes") or 0
    highest = max(size for _, size in [*held, *unlimited])
    budget_is_near = budget <= 2.5 * highest  # a far one would squash the curves
    highest = max(highest, budget if budget_is_near else 0, 1)
    scale, unit = (2**-30, "GiB") if highest >= 2**30 else (2**-20, "MiB")

    times, sizes = _columns(held, time_scale, scale)
    axes.fill_between(times, sizes, step="post", color=_HELD, alpha=0.35, linewidth=0)
    label = f"held (peak {max(sizes):.2f} {unit})"
    axes.step(times, sizes, where="post", color=_HELD, linewidth=1.2, label=label)
    if unlimited:
        times, sizes = _columns(unlimited, time_scale, scale)
        label = f"plain PyTorch (peak {max(sizes):.2f} {unit})"
        axes.step(
            times, sizes, where="post", color=_UNLIMITED, linewidth=1.4, linestyle="--", label=label
        )
    if budget:
        label = f"budget ({budget * scale:.2f} {unit}{'' if budget_is_near else ', above'})"
        axes.axhline(budget * scale, color=_BUDGET, linewidth=1.6, label=label)
    axes.set_ylim(0, highest * scale * 1.08)
    axes.set_ylabel(f"memory on the device [{unit}]")
    _mark_forward_end(axes, timeline, time_scale, named=True)
    axes.legend(loc="lower left", bbox_to_anchor=(0, 1.01), ncols=3, frameon=False, borderaxespad=0)
    _style(axes, grid="both")


def _draw_lanes(axes: Axes, timeline: Timeline, time_scale: float) -> None:
    lanes = [*(("recompute",) if timeline.get("replays") else ()), "in", "out"]
    everything = [*(timeline.get("link") or ()), *(timeline.get("replays") or ())]
    for row, lane in enumerate(lanes):
        bars = [bar for bar in everything if bar[0] == lane]
        spans = [(start * time_scale, (end - start) * time_scale) for _, start, end, _ in bars]
        axes.broken_barh(spans, (row - 0.36, 0.72), color=_LANE_COLORS[lane], linewidth=0)
        moved = sum(bar[3] for bar in bars)
        axes.annotate(
            f"{moved / 2**30:.2f} GiB" if moved >= 2**30 else f"{moved / 2**20:.1f} MiB",
            xy=(1.008, row),
            xycoords=("axes fraction", "data"),
            va="center",
            color=_LANE_COLORS[lane],
        )
    axes.set_yticks(range(len(lanes)), [_LANE_LABELS[lane] for lane in lanes])
    axes.set_ylim(-0.6, len(lanes) - 0.4)
    axes.set_ylabel("link")
    _mark_forward_end(axes, timeline, time_scale, named=False)
    _style(axes, grid="x")


def _mark_forward_end(axes: Axes, timeline: Timeline, time_scale: float, *, named: bool) -> None:
    if not timeline.get("forward_end_us"):
        return
    end = timeline["forward_end_us"] * time_scale
    axes.axvline(end, color="black", linewidth=0.9, linestyle=":")
    if named:
        for text, offset, side in (("forward", -5, "right"), ("backward", 5, "left")):
            axes.annotate(
                text,
                xy=(end, 0),
                xycoords=("data", "axes fraction"),
                xytext=(offset, 6),
                textcoords="offset points",
                ha=side,
                color="black",
                bbox={"facecolor": "white", "alpha": 0.75, "edgecolor": "none", "pad": 1.5},
            )


def _columns(
    points: Sequence[Sequence[float]], time_scale: float, size_scale: float
) -> tuple[list[float], list[float]]:
    return [time * time_scale for time, _ in points], [size * size_scale for _, size in points]


def _style(axes: Axes, *, grid: Literal["both", "x"]) -> None:
    axes.grid(axis=grid, color=_GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
