# SPDX-License-Identifier: BSD-3-Clause
"""The budget is kept: in every step by report, in resident memory, against other sessions."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import children
import torchlms
from models import ConvStack
from training import (
    ScopeMaker,
    assert_exact,
    bits,
    first_difference,
    held_bytes,
    left_bytes,
    scopes,
    seeded,
    settle,
)

MIB = 1 << 20


def train_stack(scope: ScopeMaker, reports: list[dict[str, Any]]) -> list[Any]:
    """Four steps; Adam's state appears after the first. Nothing of it is held when it returns."""
    torch.manual_seed(2)
    model = ConvStack()
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(4):
        optimizer.zero_grad()
        with scope():
            loss = model(seeded(4, 3, 64, 64)).square().mean()
        loss.backward()
        optimizer.step()
        if isinstance(scope(), torchlms.offload):
            reports.append(scope().report().to_dict())
    return bits(model.state_dict())


def reports_of(budget: Any, **settings: Any) -> tuple[list[dict[str, Any]], list[Any]]:
    reports: list[dict[str, Any]] = []
    _, scope = scopes(budget, **settings)
    return reports, train_stack(scope, reports)


@pytest.fixture(scope="module")
def plain_peak() -> int:
    """What plain PyTorch needs: torchlms only counts."""
    return max(report["peak_bytes"] for report in reports_of("auto", policy="off")[0])


@pytest.fixture(scope="module")
def plain_result() -> list[Any]:
    return train_stack(torchlms.disabled, [])


@pytest.mark.parametrize("fraction", [0.7, 0.45, 0.35])
def test_every_step_stays_in_the_budget_and_is_exact(
    fraction: float, plain_peak: int, plain_result: list[Any]
) -> None:
    budget = int(fraction * plain_peak)
    reports, result = reports_of(budget)
    assert [report["peak_bytes"] <= budget for report in reports] == [True] * 4
    assert all(report["peak_bytes"] > 0.8 * budget for report in reports)  # what is there is used
    assert all(report["swapped_bytes"] > 0 for report in reports)
    assert first_difference(plain_result, result) is None


def test_a_roomy_budget_moves_nothing(plain_peak: int, plain_result: list[Any]) -> None:
    reports, result = reports_of(2 * plain_peak)
    assert [report["swapped_bytes"] for report in reports] == [0] * 4
    assert max(report["peak_bytes"] for report in reports) <= plain_peak
    assert first_difference(plain_result, result) is None


def test_the_report_accounts_for_every_saved_byte(plain_peak: int) -> None:
    for report in reports_of(int(0.45 * plain_peak))[0]:
        parts = ("kept_bytes", "swapped_bytes", "recomputed_bytes")
        assert report["saved_bytes"] == sum(report[part] for part in parts)
        assert report["deduplicated_bytes"] > 0  # outputs of ReLUs are inputs of convolutions


def test_small_storages_stay_where_they_are(plain_peak: int) -> None:
    reports, _ = reports_of("min", min_offload_bytes=plain_peak)
    assert [report["swapped_bytes"] for report in reports] == [0] * 4
    assert reports[-1]["not_planned"]["below min_offload_bytes"] > 0


def test_a_budget_below_the_floor_is_an_error_that_batch_size_finders_know() -> None:
    with pytest.raises(torch.OutOfMemoryError) as caught:
        reports_of(held_bytes() + 3 * MIB)
    text = str(caught.value)
    assert "out of memory." in text
    assert "DefaultCPUAllocator: can't allocate memory" in text
    assert re.search(r"aten::\w+|\w+Backward\d", text), text  # the op
    assert re.search(r"at least \d+ bytes", text), text


def test_raising_the_budget_as_the_errors_say_ends_with_one_that_works(
    plain_peak: int, plain_result: list[Any]
) -> None:
    budget = held_bytes() + 4 * MIB
    for _ in range(200):
        try:
            result = reports_of(budget)[1]
            break
        except torch.OutOfMemoryError as error:
            named = re.search(r"at least (\d+) bytes", str(error))
        settle()
        assert named is not None
        assert int(named[1]) > budget
        budget = int(named[1])
    assert budget < 0.35 * plain_peak
    assert first_difference(plain_result, result) is None


def test_a_step_that_outgrew_the_budget_is_refused_at_entry_with_a_budget_that_works() -> None:
    model = ConvStack()

    def step(scope: ScopeMaker) -> None:
        with scope():
            loss = model(seeded(4, 3, 64, 64)).square().mean()
        loss.backward()

    lms, scope = scopes()
    step(scope)
    floor = lms.report().to_dict()["peak_bytes"]
    del lms
    lms, scope = scopes(floor + 8 * MIB)
    step(scope)
    ballast = torch.zeros(12 * MIB, dtype=torch.uint8)
    with pytest.raises(torchlms.BudgetError, match=r"aten::\w+|\w+Backward") as caught:
        step(scope)
    named = re.search(r"at least (\d+) bytes", str(caught.value))
    assert named is not None
    del lms, scope, caught
    lms, scope = scopes(int(named[1]) + MIB)
    step(scope)
    assert floor + ballast.numel() <= lms.report().to_dict()["peak_bytes"] <= int(named[1]) + MIB


def loss_under(scope: ScopeMaker, values: Tensor) -> Tensor:
    with scope():
        return (values.exp().sin() * values).sum()


def test_another_budget_is_refused_while_tensors_saved_under_one_are_alive() -> None:
    values = seeded(1024).requires_grad_()
    (one, scope), (other, other_scope) = scopes(64 * MIB), scopes(65 * MIB)
    loss = loss_under(scope, values)
    with pytest.raises(ValueError, match=rf"(?s)={64 * MIB} .*={65 * MIB} "):
        loss_under(other_scope, values)
    loss.backward()
    del loss
    loss_under(other_scope, values).backward()
    assert (one.report().to_dict()["step"], other.report().to_dict()["step"]) == (1, 1)


def test_the_newest_budget_takes_over_when_nothing_is_alive() -> None:
    values = seeded(1 << 20).requires_grad_()
    lms = scope = None
    for budget in (64, 96, 64, 48):  # a notebook's cell, run again with other figures
        lms, scope = scopes(held_bytes() + budget * MIB)
        for _ in range(2):
            loss_under(scope, values).backward()
        report = lms.report().to_dict()
        assert report["peak_bytes"] <= report["budget_bytes"]


def test_a_session_that_nobody_can_use_any_more_does_not_limit_its_process() -> None:
    values = seeded(1024).requires_grad_()
    lms, scope = scopes(held_bytes() + MIB)
    loss_under(scope, values).backward()
    with pytest.raises(torch.OutOfMemoryError):
        torch.zeros(4 * MIB)
    del lms, scope
    settle()
    assert torch.zeros(4 * MIB).numel() == 4 * MIB


@pytest.mark.parametrize("budget", ["min", "half"])
def test_nothing_is_held_after_a_training_is_over(budget: str, plain_peak: int) -> None:
    before = held_bytes()
    reports_of("min" if budget == "min" else before + plain_peak // 2)
    assert left_bytes(before) == 0


def test_accumulation_is_one_step_whose_peak_is_in_the_budget() -> None:
    def program(scope: ScopeMaker) -> Any:
        model = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64))
        for _ in range(3):
            losses = []
            for index in range(4):
                with scope():
                    losses.append(model(seeded(512, 64, seed=index)).square().mean())
            sum(losses).backward()
            torchlms.step_boundary()
        return [parameter.grad for parameter in model.parameters()]

    report = assert_exact(program, "tight")
    assert report["peak_bytes"] <= report["budget_bytes"]


def test_resident_memory_follows_the_budget() -> None:
    budget = 150 * MIB
    outcome = children.call(children.train_and_measure_memory, budget)
    assert outcome["unlimited_peak_bytes"] > 2 * budget
    assert outcome["peak_bytes"] <= budget
    assert outcome["resident_bytes"] <= 1.15 * budget
    assert outcome["resident_bytes"] >= 0.5 * budget  # what it measured is the training
