# SPDX-License-Identifier: BSD-3-Clause
"""Training steps of public models, plain and under torchlms: every bit equal, and most bytes not kept.

A few of them by default; all with TORCHLMS_ZOO=all, which needs the zoo extra (`make zoo`).
"""

from __future__ import annotations

import logging
import os
import warnings
from typing import Any

import pytest
import torch

from catalogue import ENTRIES, Entry
from training import Program, first_difference, run, run_offloaded, state_of

RUNS_ALL = os.environ.get("TORCHLMS_ZOO") == "all"
NAMES = [name for name, entry in ENTRIES.items() if RUNS_ALL or entry.in_ci]
NUM_STEPS = 3
"""The first is recorded, the second planned, and the third planned with what the first added."""
MOST_KEPT = 0.6


def training_of(entry: Entry) -> Program:
    def program(scope: Any) -> Any:
        model, loss_of = entry.build()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
        losses, gradients = [], []
        for _ in range(NUM_STEPS):
            optimizer.zero_grad()
            with scope():
                loss = loss_of(model)
            loss.backward()
            losses.append(loss.detach())
            gradients.append([parameter.grad for parameter in model.parameters()])
            optimizer.step()
        return [losses, gradients, state_of(model, optimizer)]

    return program


def warned(call: Any, *arguments: Any, **options: Any) -> tuple[Any, set[str]]:
    """What a call returns, and the warnings it gave."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result = call(*arguments, **options)
    return result, {f"{one.category.__name__}: {one.message}" for one in caught}


@pytest.mark.parametrize("name", NAMES)
def test_a_public_model_trains_the_same_and_keeps_less(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    program = training_of(ENTRIES[name])
    expected, usual = warned(run, program)
    for policy in ("swap", "recompute", "auto"):
        (got, report), warnings_given = warned(run_offloaded, program, "min", policy=policy)
        difference = first_difference(expected, got)
        assert difference is None, f"{policy}: {difference}\n{report}"
        assert warnings_given <= usual, policy
        values = report.to_dict()
        assert values["state"] == "executing" or ENTRIES[name].changes, f"{policy}: {report}"
        assert values["kept_bytes"] <= MOST_KEPT * values["saved_bytes"], f"{policy}: {report}"
    told = [record for record in caplog.records if record.name.startswith("torchlms")]
    assert [record for record in told if record.levelno >= logging.WARNING] == []


def test_the_zoo_holds_the_models_it_should() -> None:
    assert len(ENTRIES) >= 25
    assert sum(entry.in_ci for entry in ENTRIES.values()) == 5
