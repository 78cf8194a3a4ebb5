# SPDX-License-Identifier: BSD-3-Clause
"""The integer program: no plan beats its bound, and its starts make plans no slower."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch

import torchlms
from models import ConvStack
from torchlms import _C, integer_program, plan_model
from torchlms.plan_file import TraceFile
from torchlms.planning import Costs, forecast

pytest.importorskip("highspy")

POLICIES = ("auto", "swap", "recompute", "hybrid")


def branches(x: torch.Tensor) -> torch.Tensor:
    """Chains of light and heavy ops, with an in-place op and a storage that two chains read."""
    weights = [torch.full((64, 64), 0.01 * i, requires_grad=True) for i in range(1, 5)]
    total = x
    for weight in weights:
        left = (total @ weight).sigmoid_()
        right = (total + left).tanh()
        total = (left * right).exp().log1p()
    return total.square().mean()


def trace_of(name: str) -> TraceFile:
    if name == "branches":
        x = torch.ones(4096, 64, requires_grad=True)
        return torchlms.dry_run(branches, x, flops_per_s=1e11, bytes_per_s=1e10)
    model = ConvStack(depth=6)
    run = lambda: model(torch.ones(4, 3, 64, 64)).square().mean()  # noqa: E731
    return torchlms.dry_run(run, flops_per_s=1e11, bytes_per_s=1e10)


class Case:
    """A trace with a budget and a link."""

    def __init__(self, name: str, share: float, rate: float) -> None:
        self.trace = trace_of(name)
        self.recorded = _C.Trace(self.trace.to_dict())
        self.summary = json.loads(self.recorded.summary_json())
        floor, most = self.summary["floor_bytes"], self.summary["unlimited_peak_bytes"]
        self.budget = int(floor + share * (most - floor))
        self.rate = rate

    def ask(self) -> plan_model.Answer:
        choices = json.loads(self.recorded.choices_json())
        answer = plan_model.ask(choices, self.budget, self.rate, self.rate)
        assert answer is not None
        return answer

    def plan(self, policy: str, starts: list[plan_model.Start]) -> dict[str, Any]:
        text = self.recorded.plan_json(
            budget_bytes=self.budget,
            policy=policy,
            out_bytes_per_s=self.rate,
            in_bytes_per_s=self.rate,
            latency_us=0.0,
            starts=starts,
        )
        plan: dict[str, Any] = json.loads(text)["plan"]
        return plan


@pytest.mark.parametrize("name", ["branches", "stack"])
@pytest.mark.parametrize("share", [0.0, 0.2, 0.6])
@pytest.mark.parametrize("rate", [1e7, 1e9, 1e11])
def test_no_plan_is_faster_than_the_bound_and_starts_make_none_slower(
    name: str, share: float, rate: float
) -> None:
    case = Case(name, share, rate)
    answer = case.ask()
    plans = [case.plan(policy, []) for policy in POLICIES]
    best = case.plan("auto", answer.starts)
    assert best["fits"]
    assert best["predicted_peak_bytes"] <= case.budget
    assert best["predicted_step_us"] <= plans[0]["predicted_step_us"]
    for plan in (best, *plans):
        assert answer.bound_us <= plan["predicted_step_us"]


def test_the_bound_is_above_the_knapsack_where_the_link_is_slow() -> None:
    case = Case("branches", 0.0, 1e9)
    plan = case.plan("auto", [])
    assert case.ask().bound_us > plan["lower_bound_us"] > case.summary["unlimited_step_us"]


def test_where_everything_fits_the_bound_is_the_time_without_a_budget() -> None:
    case = Case("stack", 1.0, 1e9)
    answer = case.ask()
    assert answer.bound_us == pytest.approx(case.summary["unlimited_step_us"], rel=1e-4)


def test_equal_questions_have_equal_answers() -> None:
    case = Case("branches", 0.2, 1e9)
    assert case.ask() == case.ask()


def test_too_many_choices_are_not_asked_about(monkeypatch: pytest.MonkeyPatch) -> None:
    case = Case("stack", 0.2, 1e9)
    monkeypatch.setattr(plan_model, "_RELAXED", (3, 8000))
    monkeypatch.setattr(plan_model, "_INTEGER", (3, 2000))
    choices = json.loads(case.recorded.choices_json())
    assert plan_model.ask(choices, case.budget, 1e9, 1e9) is None


def test_a_start_with_a_storage_that_is_none_is_told() -> None:
    case = Case("stack", 0.2, 1e9)
    with pytest.raises(ValueError, match="storage 1000000 of a start"):
        case.plan("auto", [([], [1000000])])


def test_a_forecast_takes_the_bound_and_says_where_its_search_began(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    case = Case("branches", 0.0, 1e9)
    costs = Costs(case.rate, case.rate, 0.0)
    better = forecast(case.trace, case.budget, costs=costs).to_dict()
    assert better["start"] is not None
    monkeypatch.setattr(integer_program, "is_available", lambda: False)
    plain = forecast(case.trace, case.budget, costs=costs).to_dict()
    assert better["lower_bound_us"] > plain["lower_bound_us"]
    assert better["predicted_step_us"] <= plain["predicted_step_us"]
    assert plain["start"] not in (None, "integer program")


def test_the_solver_prints_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    Case("branches", 0.2, 1e9).ask()
    assert capfd.readouterr().out == ""
