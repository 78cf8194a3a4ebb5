# SPDX-License-Identifier: BSD-3-Clause
"""What the rows of the table come to: who keeps the budget, who is fastest, how good `auto` is."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any, NamedTuple

from common import Spread
from methods import AUTO, METHODS, PLAIN_AGAIN, SINGLE_POLICIES
from row import NO_LINK, Row

CLOSE = 0.05  # auto may be this much slower than the best single policy, or as much as the noise


class Place(NamedTuple):
    """What a row belongs to: methods are compared within one."""

    model: str
    budget: float
    link: str

    def __str__(self) -> str:
        return f"{self.model} at {self.budget:g}, link {self.link}"


def places(rows: Sequence[Row]) -> dict[Place, dict[str, Row]]:
    """The rows of each place by method. Peers, which move nothing, stand in every link's."""
    budgeted = [row for row in rows if row.budget is not None]
    found: dict[Place, dict[str, Row]] = {}
    for row in budgeted:
        if row.link != NO_LINK:
            found.setdefault(Place(row.model, row.budget, row.link), {})[row.method] = row
    for row in budgeted:
        if row.link == NO_LINK:
            same = [place for place in found if place[:2] == (row.model, row.budget)]
            for place in same or [Place(row.model, row.budget, NO_LINK)]:
                found.setdefault(place, {})[row.method] = row
    return found


def fastest(candidates: Sequence[Row]) -> Row | None:
    """By the median over plain, of those that kept the budget."""
    kept = [row for row in candidates if row.keeps_budget and row.over_plain]
    return min(kept, key=lambda row: row.over_plain.median, default=None)


def count_methods(rows: Sequence[Row]) -> dict[str, dict[str, int]]:
    """Of each method: how many cells it has, and what it achieved in how many of them."""
    counts: dict[str, dict[str, int]] = {}
    noise = noise_of(rows)
    for methods in places(rows).values():
        best = fastest([row for method, row in methods.items() if method in METHODS])
        for method, row in methods.items():
            if method not in METHODS:
                continue
            count = counts.setdefault(
                method, dict.fromkeys(("cells", "ran", "kept", "equal", "fastest", "level"), 0)
            )
            count["cells"] += 1
            count["ran"] += row.failure is None
            count["kept"] += bool(row.keeps_budget)
            count["equal"] += row.is_equal
            count["fastest"] += row is best
            count["level"] += _is_level(row, best, noise)
    return {method: counts[method] for method in METHODS if method in counts}


def _is_level(row: Row, best: Row | None, noise: float) -> bool:
    """As fast as the fastest, as far as this run can tell: plain differs from itself by as much."""
    if best is None or not row.keeps_budget:
        return False
    return row.over_plain.median <= best.over_plain.median * (1 + noise)


class Comparison(NamedTuple):
    """`auto` against the best single policy that kept the budget in the same place."""

    place: Place
    auto: Row
    best: Row | None
    ratio: Spread | None
    """Of step times in the same round."""
    noise: float
    """Of the run."""

    @property
    def is_close(self) -> bool | None:
        if self.best is None:
            return None
        return self.ratio is not None and self.ratio.median <= 1 + max(CLOSE, self.noise)

    def __str__(self) -> str:
        if self.best is None:
            return f"{self.place}: no single policy kept the budget"
        if self.ratio is None:
            return f"{self.place}: auto did not keep the budget, {self.best.method} did"
        verdict = "" if self.is_close else "  SLOWER"
        return f"{self.place}: {self.ratio} of {self.best.method}{verdict}"


def compare_auto(rows: Sequence[Row]) -> list[Comparison]:
    comparisons = []
    noise = noise_of(rows)
    for place, methods in places(rows).items():
        auto = methods.get(AUTO)
        singles = [methods[name] for name in SINGLE_POLICIES if name in methods]
        if auto is None or not singles:
            continue
        best = fastest(singles)
        ratio = None
        if best is not None and auto.keeps_budget:
            num_rounds = min(len(auto.step_s), len(best.step_s))
            ratio = Spread.of_ratios(auto.step_s[:num_rounds], best.step_s[:num_rounds])
        comparisons.append(Comparison(place, auto, best, ratio, noise))
    return comparisons


def noise_of(rows: Sequence[Row]) -> float:
    """Of the run: how far the quartiles of plain over plain are from 1, in the median cell."""
    spreads = [row.over_plain for row in rows if row.method == PLAIN_AGAIN and row.over_plain]
    return statistics.median(
        [max(abs(spread.low - 1), abs(spread.high - 1)) for spread in spreads] or [0.0]
    )


def summary_lines(rows: Sequence[Row]) -> list[str]:
    lines = [
        f"noise of the run: {noise_of(rows):.1%}, by which plain differs from plain",
        "auto against the best single policy, step by step:",
    ]
    comparisons = compare_auto(rows)
    lines += [f"  {comparison}" for comparison in comparisons]
    known = [comparison for comparison in comparisons if comparison.best is not None]
    ratios = [comparison.ratio.median for comparison in known if comparison.ratio is not None]
    if known:
        close = sum(bool(comparison.is_close) for comparison in known)
        lines.append(f"  within {CLOSE:.0%} or the noise in {close} of {len(known)} cells")
    if ratios:
        lines[-1] += f"; median {statistics.median(ratios):.3f}, worst {max(ratios):.3f}"
    lines.append("of all cells (model, budget, link):")
    for method, count in count_methods(rows).items():
        lines.append(
            f"  {method}: ran in {count['ran']} of {count['cells']}, equal to plain in "
            f"{count['equal']}, kept the budget in {count['kept']}, fastest of those that kept it "
            f"in {count['fastest']}, the fastest or within the noise of it in {count['level']}"
        )
    return lines


def summary_figures(rows: Sequence[Row]) -> dict[str, Any]:
    auto = [
        {
            **comparison.place._asdict(),
            "best": comparison.best.method if comparison.best else None,
            "over_best": comparison.ratio._asdict() if comparison.ratio else None,
            "noise": comparison.noise,
            "is_close": comparison.is_close,
        }
        for comparison in compare_auto(rows)
    ]
    return {"methods": count_methods(rows), "auto_over_best_single": auto}
