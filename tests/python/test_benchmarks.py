# SPDX-License-Identifier: BSD-3-Clause
"""The table of the benchmarks: what its rows say, and what they come to."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
PEAK = 1000


@pytest.fixture(scope="module")
def table() -> Iterator[SimpleNamespace]:
    """The modules of the benchmarks. They are scripts: some have the names of modules of tests."""
    names = [path.stem for path in BENCHMARKS.glob("*.py")]
    hidden = {name: sys.modules.pop(name) for name in names if name in sys.modules}
    path = list(sys.path)
    sys.path.insert(0, str(BENCHMARKS))
    try:
        yield SimpleNamespace(
            **{name: importlib.import_module(name) for name in ("common", "row", "summary")}
        )
    finally:
        sys.path[:] = path
        for name in names:
            sys.modules.pop(name, None)
        sys.modules.update(hidden)


def make_row(table: SimpleNamespace, method: str, link: str = "none", **fields: Any) -> Any:
    ratio = fields.pop("ratio", 1.0)
    values = {
        "step_s": [ratio, ratio, ratio],
        "over_plain": table.common.Spread(ratio, ratio, ratio),
        "peak_bytes": PEAK // 2,
        "budget_bytes": 6 * PEAK // 10,
        "differing": {"gradients": [], "buffers": []},
    }
    return table.row.Row("model", 0.6, link, method, **values | fields)


def test_a_row_keeps_the_budget_only_when_it_ran_and_its_peak_is_within(table):
    assert make_row(table, "swap", peak_bytes=600).keeps_budget is True
    assert make_row(table, "swap", peak_bytes=601).keeps_budget is False
    assert make_row(table, "swap", failure="out of memory.").keeps_budget is False
    assert make_row(table, "plain", budget_bytes=None).keeps_budget is None


def test_the_fastest_method_is_sought_among_those_that_kept_the_budget(table):
    rows = [
        make_row(table, "selective", table.row.NO_LINK, ratio=1.0, peak_bytes=PEAK),
        make_row(table, "checkpoint", table.row.NO_LINK, ratio=1.3),
        make_row(table, "swap", ratio=1.2),
        make_row(table, "swap", link="50MB/s", ratio=9.0),
    ]
    counts = table.summary.count_methods(rows)
    over = {"cells": 2, "ran": 2, "kept": 0, "equal": 2, "fastest": 0, "level": 0}
    assert counts["selective"] == over
    assert counts["checkpoint"]["fastest"] == 1, "it stands in the cell of each link"
    kept = {"cells": 2, "ran": 2, "kept": 2, "equal": 2, "fastest": 1, "level": 1}
    assert counts["swap"] == kept


def test_a_method_is_level_with_the_fastest_when_plain_differs_from_itself_by_more(table):
    spread = table.common.Spread(1.0, 0.9, 1.1)
    rows = [
        make_row(table, "plain again", over_plain=spread, budget_bytes=None),
        make_row(table, "swap", ratio=1.0),
        make_row(table, "auto", ratio=1.08),
        make_row(table, "hybrid", ratio=1.12),
    ]
    counts = table.summary.count_methods(rows)
    assert [counts[name]["level"] for name in ("swap", "auto", "hybrid")] == [1, 1, 0]


def test_auto_is_judged_against_the_best_policy_that_kept_the_budget(table):
    rows = [
        make_row(table, "swap", ratio=1.5),
        make_row(table, "recompute", ratio=1.2),
        make_row(table, "hybrid", ratio=1.0, peak_bytes=PEAK),
        make_row(table, "auto", ratio=1.3),
    ]
    (comparison,) = table.summary.compare_auto(rows)
    assert comparison.best.method == "recompute"
    assert comparison.ratio.median == pytest.approx(1.3 / 1.2)
    assert comparison.is_close is False
    assert "SLOWER" in str(comparison)


def test_auto_may_be_slower_by_as_much_as_plain_differs_from_plain(table):
    spread = table.common.Spread(1.0, 0.9, 1.1)
    calm = table.common.Spread(1.0, 1.0, 1.0)
    rows = [
        make_row(table, "plain again", over_plain=spread, budget_bytes=None),
        make_row(table, "plain again", link="50MB/s", over_plain=spread, budget_bytes=None),
        make_row(table, "plain again", link="400MB/s", over_plain=calm, budget_bytes=None),
        make_row(table, "swap", ratio=1.0),
        make_row(table, "auto", ratio=1.08),
    ]
    (comparison,) = table.summary.compare_auto(rows)
    assert comparison.noise == pytest.approx(0.1)
    assert comparison.is_close is True


def test_auto_loses_where_it_fails_and_a_single_policy_does_not(table):
    rows = [make_row(table, "swap"), make_row(table, "auto", failure="BudgetError: out of memory.")]
    (comparison,) = table.summary.compare_auto(rows)
    assert comparison.is_close is False


def test_tensors_that_differ_or_are_missing_are_named_by_kind(table):
    plain = {"gradients": {"a": "1", "b": "2"}, "buffers": {"mean": "3"}}
    other = {"gradients": {"a": "1"}, "buffers": {"mean": "4"}}
    assert table.row.differing(other, plain) == {"gradients": ["b"], "buffers": ["mean"]}


def test_the_table_measures_and_keeps_a_row_for_what_cannot_run(tmp_path):
    arguments = ["--quick", "--models", "lstm", "--methods", "checkpoint", "swap", "--steps", "2"]
    arguments += ["--budgets", "0.6", "0.0001", "--links", "none", "--out", str(tmp_path)]
    command = [sys.executable, str(BENCHMARKS / "table.py"), *arguments]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    rows = json.loads((tmp_path / "table.json").read_text())["rows"]
    found = {(row.get("budget"), row["method"]): row for row in rows}

    swap, checkpoint = found[0.6, "swap"], found[0.6, "checkpoint"]
    assert swap["keeps_budget"]
    assert swap["peak_bytes"] <= swap["budget_bytes"] < found[None, "plain"]["peak_bytes"]
    assert len(swap["step_s"]["each"]) == 2
    for row in (swap, checkpoint, found[None, "plain again"]):
        assert row["differing"] == {"gradients": [], "buffers": []}
    assert not found[0.0001, "swap"]["keeps_budget"]
    assert "out of memory" in found[0.0001, "swap"]["failure"]
    assert not found[0.0001, "checkpoint"]["keeps_budget"]
    assert "out of memory" in done.stdout
