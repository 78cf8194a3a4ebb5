# SPDX-License-Identifier: BSD-3-Clause
"""The report as dict, table and picture."""

from __future__ import annotations

import json
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import torchlms
from torchlms.report import FIELDS, Report

KNOWN = {
    "step": 12,
    "state": "executing",
    "policy": "auto",
    "budget_bytes": 2 << 30,
    "peak_bytes": 1 << 30,
    "unlimited_peak_bytes": 5 << 30,
    "predicted_peak_bytes": 1 << 30,
    "predicted_step_us": 1.2e6,
    "measured_step_us": 1.25e6,
    "saved_bytes": 4 << 30,
    "kept_bytes": 1 << 30,
    "swapped_bytes": 3 << 30,
    "recomputed_bytes": 0,
    "deduplicated_bytes": 0,
    "stall_us": 125e3,
    "recompute_us": 0,
    "plan_us": 0,
    "link": {
        "out": {"bytes": 3 << 30, "busy_us": 9e5, "bandwidth_bytes_per_s": 1.5e9, "late": 0},
        "in": {"bytes": 3 << 30, "busy_us": 8e5, "bandwidth_bytes_per_s": 1.7e9, "late": 2},
    },
    "not_planned": {"program still holds it": 4},
}

TIMELINE = {
    "budget_bytes": 3 << 20,
    "memory": [[0, 1 << 20], [1000, 3 << 20], [2000, 2 << 20], [4000, 1 << 20]],
    "unlimited": [[0, 1 << 20], [2000, 5 << 20], [4000, 1 << 20]],
    "forward_end_us": 2000,
    "link": [["out", 500, 1500, 1 << 20], ["in", 2500, 3500, 1 << 20]],
}


@pytest.fixture(scope="module")
def report() -> Report:
    """Of a session after three steps with everything swapped."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.Tanh())
    # A link limit of its own gives it a session of its own.
    lms = torchlms.offload(budget="min", min_offload_bytes=0, policy="swap", link_limit="41GB/s")
    for _ in range(3):
        with lms:
            loss = model(torch.randn(128, 64)).sum()
        loss.backward()
    return lms.report()


def test_every_promised_field_is_there_in_json_types(report: Report) -> None:
    values = report.to_dict()
    assert set(FIELDS) == set(values)
    assert json.loads(json.dumps(values)) == values
    for direction in ("out", "in"):
        assert {"bytes", "busy_us", "bandwidth_bytes_per_s", "late"} <= set(
            values["link"][direction]
        )


def test_saved_bytes_are_exactly_kept_swapped_and_recomputed(report: Report) -> None:
    values = report.to_dict()
    parts = values["kept_bytes"] + values["swapped_bytes"] + values["recomputed_bytes"]
    assert values["saved_bytes"] == parts
    assert values["swapped_bytes"] > 0
    assert values["step"] == 3
    assert values["state"] == "executing"


def test_changing_the_dict_does_not_change_the_report(report: Report) -> None:
    report.to_dict()["link"].clear()
    assert report.to_dict()["link"]


def test_a_field_that_is_not_known_is_none() -> None:
    values = Report("{}", "").to_dict()
    assert values == dict.fromkeys(FIELDS)
    assert Report.before_first_step().to_dict()["step"] == 0


def test_the_table_says_each_figure_in_human_units() -> None:
    lines = str(Report(json.dumps(KNOWN), "")).splitlines()
    text = {line[2:26].strip(): " ".join(line[26:].split()) for line in lines[1:]}
    assert lines[0] == "torchlms: executing, steps so far: 12, policy: auto"
    assert text["budget"] == "2.00 GiB"
    assert text["peak"] == "1.00 GiB 50.0% of the budget, predicted 1.00 GiB"
    assert text["plain PyTorch would hold"] == "5.00 GiB 5.00x the peak"
    assert text["swapped"] == "3.00 GiB 75.0% of what is saved"
    assert text["step"] == "1.25 s predicted 1.20 s"
    assert text["stalls"] == "125.0 ms 10.0% of the step"
    assert text["link in"] == "3.00 GiB 1.70 GB/s, busy 800.0 ms, 2 late"
    assert "not planned: program still holds it" in str(Report(json.dumps(KNOWN), ""))


def test_the_table_of_a_report_that_knows_nothing_is_its_first_line() -> None:
    assert str(Report.before_first_step()) == "torchlms: recording, steps so far: 0"


@pytest.mark.parametrize("suffix", ["png", "svg"])
def test_plot_writes_a_picture_of_the_step(report: Report, tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"memory.{suffix}"
    report.plot(path)
    start = path.read_bytes()[:256]
    assert start.startswith(b"\x89PNG") if suffix == "png" else b"<?xml" in start


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"budget_bytes": 0},
        {"budget_bytes": 1 << 40},
        {"unlimited": []},
        {"link": []},
        {"forward_end_us": 0},
        {"memory": [[0, 0]], "unlimited": [], "budget_bytes": 0},
    ],
)
def test_plot_draws_what_there_is_without_warnings(tmp_path: Path, change: dict[str, Any]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Report("{}", json.dumps(TIMELINE | change)).plot(tmp_path / "memory.png")
    assert (tmp_path / "memory.png").stat().st_size > 5000


def test_plot_leaves_the_backend_of_the_user_alone(tmp_path: Path) -> None:
    had_pyplot = "matplotlib.pyplot" in sys.modules
    Report("{}", json.dumps(TIMELINE)).plot(tmp_path / "memory.png")
    assert ("matplotlib.pyplot" in sys.modules) == had_pyplot


def test_plot_before_the_first_step_says_so(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="no step to draw"):
        Report.before_first_step().plot(tmp_path / "memory.png")


def test_plot_without_matplotlib_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    monkeypatch.delitem(sys.modules, "torchlms.plotting", raising=False)
    with pytest.raises(ImportError, match=r"pip install torchlms\[plot\]"):
        Report("{}", json.dumps(TIMELINE)).plot(tmp_path / "memory.png")
