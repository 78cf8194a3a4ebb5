# SPDX-License-Identifier: BSD-3-Clause
"""What a step does in which order is what the simulator said before it ran."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

import torchlms
from torchlms.plan_file import TraceFile

NUM_LAYERS = 10
BUDGET_BYTES = 5_000_000
COSTS = {"out_bytes_per_s": 4e8, "in_bytes_per_s": 4e8, "latency_us": 50, "event_us": 100}


def layers(weight: Tensor, inputs: Tensor) -> Tensor:
    """Branches of different sizes, by which their storages can be told apart; some are random."""
    total = torch.zeros(())
    for i in range(NUM_LAYERS):
        hidden = weight[:1].sum() * inputs[: 40 + 7 * i]
        hidden = F.dropout(hidden, 0.3) if i % 3 == 0 else hidden
        wide = torch.cat([hidden.sigmoid(), hidden[:3]])
        total = total + (wide * wide).mean() + wide.sigmoid().square().mean()
    return total


def sizes(bars: list[Any], lane: str) -> list[int]:
    """Bytes moved or made, in the order of their starts."""
    return [bar[3] for bar in sorted(bars, key=lambda bar: bar[1]) if bar[0] == lane]


@pytest.mark.parametrize("policy", ["swap", "recompute", "hybrid", "auto"])
def test_copies_and_replays_run_in_the_simulated_order(
    policy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    costs = tmp_path / "costs.json"
    costs.write_text(json.dumps(COSTS))
    monkeypatch.setenv("TORCHLMS_COSTS", str(costs))
    # Planning offline may start from one, where a session does not.
    monkeypatch.setattr("torchlms.integer_program.is_available", lambda: False)
    weight = torch.ones(64, requires_grad=True)
    inputs = torch.rand(40 + 7 * NUM_LAYERS, 1024)
    lms = torchlms.offload(
        budget=BUDGET_BYTES, min_offload_bytes=1 << 14, policy=policy, link_limit="400MB/s"
    )
    for _ in range(4):
        with lms:
            loss = layers(weight, inputs)
        loss.backward()
    report = lms.report()
    assert report.to_dict()["state"] == "executing"
    executed = json.loads(report._timeline_json)
    lms.plan().save(tmp_path / "plan.json")
    forecast = TraceFile.load_any(tmp_path / "plan.json").plan(BUDGET_BYTES, policy=policy)
    simulated = forecast._timeline
    for name, lane in (("link", "out"), ("link", "in"), ("replays", "recompute")):
        assert sizes(executed[name], lane) == sizes(simulated[name], lane)
    assert (len(executed["replays"]) > 0) == (policy != "swap")
    assert len(executed["link"]) > 4
