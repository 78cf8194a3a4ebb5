# SPDX-License-Identifier: BSD-3-Clause
"""What counts as a step, and when it is planned."""

from __future__ import annotations

import time

import pytest
import torch
from torch import nn

import torchlms
from models import ConvStack
from training import first_difference, scopes, seeded


def chain(lms: torchlms.offload, inside: bool) -> list[torch.Tensor]:
    weight = seeded(64, 64).requires_grad_()
    for _ in range(3):
        with lms:
            hidden = weight
            for _ in range(6):
                hidden = (hidden @ weight).tanh()
            loss = hidden.sum()
            del hidden
            if inside:
                loss.backward()
        if not inside:
            loss.backward()
    assert weight.grad is not None
    return [weight.grad]


def test_a_backward_inside_the_scope_is_planned_like_one_after_it() -> None:
    expected = chain(torchlms.offload(policy="off"), inside=False)
    lms, _ = scopes()
    assert first_difference(expected, chain(lms, inside=True)) is None
    report = lms.report().to_dict()
    assert report["step"] == 3
    assert report["state"] == "executing"
    assert report["swapped_bytes"] > 0


@pytest.mark.parametrize("saves", [True, False])
def test_the_peak_of_a_step_counts_what_runs_between_its_report_and_the_next_scope(
    saves: bool,
) -> None:
    lms, scope = scopes()
    weight = torch.zeros(64, 64, requires_grad=saves)
    for _ in range(2):
        with scope():
            loss = (weight @ weight).sin().sum()
        if saves:
            loss.backward()
    early = lms.report().to_dict()["peak_bytes"]
    torch.zeros(1 << 20).sin()
    with scope():
        late = lms.report().to_dict()["peak_bytes"]
    assert early < 1 << 20
    assert late >= 2 * (1 << 20) * 4


def test_the_steps_of_a_training_loop_are_counted() -> None:
    lms, scope = scopes()
    model = ConvStack()
    for step in range(1, 4):
        with scope():
            loss = model(seeded(2, 3, 16, 16)).sum()
        loss.backward()
        assert lms.report().to_dict()["step"] == step


def test_asking_for_the_report_twice_changes_nothing() -> None:
    for policy in ("off", "swap"):
        lms, scope = scopes(policy=policy)
        layer = nn.Linear(64, 64)
        with scope():
            loss = layer(seeded(8, 64)).sum()
        loss.backward()
        assert lms.report().to_dict() == lms.report().to_dict()


def test_views_made_anew_do_not_make_a_step_another_program() -> None:
    weight = torch.ones(64, requires_grad=True)
    inputs = seeded(64, 64)
    lms = torchlms.offload(budget="min", min_offload_bytes=0)
    others: list[torch.Tensor] = []  # so that the addresses of views differ from step to step
    for step in range(8):
        with lms:
            total = torch.zeros(())
            for i in range(60):
                first = weight[:1]
                others += [first] if (i * (step + 3)) % 5 == 0 else []
                total = total + (first.sum() * inputs).sigmoid().mean()
                if (i + step) % 7 == 0:
                    others.clear()
        total.backward()
        assert step == 0 or lms.report().to_dict()["state"] == "executing"


def test_a_report_between_a_forward_that_took_a_gradient_and_its_backward_ends_no_step() -> None:
    lms, scope = scopes()
    weight = seeded(32, 32).requires_grad_()
    with scope():
        inputs = seeded(32, 32) @ weight
        (slope,) = torch.autograd.grad(inputs.sin().sum(), inputs, create_graph=True)
        loss = slope.repeat(64, 1).sin().square().mean()
    assert lms.report().to_dict()["unlimited_peak_bytes"] is None
    loss.backward()
    report = lms.report().to_dict()
    assert report["step"] == 1
    assert report["unlimited_peak_bytes"] > 0


def test_the_prediction_of_a_step_follows_ops_that_have_become_slower() -> None:
    lms, scope = scopes()
    model = ConvStack()
    images = seeded(2, 3, 16, 16)
    asleep_s = 0.0
    model.register_forward_hook(lambda *_: time.sleep(asleep_s))

    def predicted_s() -> float:
        with scope():
            loss = model(images).sum()
        loss.backward()
        report = lms.report().to_dict()
        return (report["predicted_step_us"] or 0) / 1e6

    for _ in range(24):  # whatever plans there are to try were tried
        before_s = predicted_s()
    plan = lms.plan().to_dict()
    asleep_s = 4 * before_s + 0.1
    assert predicted_s() < asleep_s  # which was made before that step ran
    for _ in range(8):
        slow_s = predicted_s()
    assert slow_s >= asleep_s
    assert lms.plan().to_dict() == plan
