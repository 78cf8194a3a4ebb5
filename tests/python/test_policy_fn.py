# SPDX-License-Identifier: BSD-3-Clause
"""policy= as a function: the answers of selective checkpointing bind the planner."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts

import torchlms
from training import ScopeMaker, first_difference, seeded, settle

aten = torch.ops.aten
Answer = CheckpointPolicy | bool
PEAK = 1 << 30


def model() -> nn.Sequential:
    torch.manual_seed(0)
    layers = [nn.Sequential(nn.Linear(64, 64), nn.Sigmoid(), nn.Dropout(0.2)) for _ in range(3)]
    return nn.Sequential(*layers, nn.Linear(64, 1))


def steps(scope: ScopeMaker, num_steps: int = 4) -> list[Any]:
    net, inputs, results = model(), seeded(256, 64), []
    for _ in range(num_steps):
        torch.manual_seed(1)
        with scope():
            loss = net(inputs).square().mean()
        loss.backward()
        results.append([loss.detach(), [parameter.grad for parameter in net.parameters()]])
        net.zero_grad()
    return results


def trained(policy_fn: Callable[..., Answer], **settings: Any) -> dict[str, Any]:
    """The report of steps whose results are those of plain PyTorch."""
    lms = torchlms.offload(**{"budget": "min", "min_offload_bytes": 0} | settings, policy=policy_fn)
    assert first_difference(steps(lambda: lms), steps(contextlib.nullcontext)) is None
    return lms.report().to_dict()


def always(answer: Answer) -> Callable[..., Answer]:
    return lambda ctx, op, *args, **kwargs: answer


def test_the_function_gets_what_selective_checkpointing_gives() -> None:
    seen: dict[str, list[Any]] = {"ours": [], "theirs": []}

    def noting(key: str) -> Callable[..., Answer]:
        def policy_fn(ctx: Any, op: Any, *args: Any, **kwargs: Any) -> Answer:
            assert ctx.is_recompute is False
            shapes = [a.shape if isinstance(a, Tensor) else a for a in args]
            outputs = ctx.op_output if isinstance(ctx.op_output, tuple) else (ctx.op_output,)
            seen[key].append((op, shapes, kwargs, [output.shape for output in outputs]))
            return CheckpointPolicy.PREFER_RECOMPUTE

        return policy_fn

    weight, inputs = seeded(8, 8).requires_grad_(), seeded(4, 8)

    def forward() -> Tensor:
        return torch.softmax(inputs @ weight, 1).clamp(max=0.5).sum()

    with torchlms.offload(budget="min", min_offload_bytes=0, policy=noting("ours")):
        forward().backward()
    torch.utils.checkpoint.checkpoint(
        forward,
        use_reentrant=False,
        context_fn=lambda: create_selective_checkpoint_contexts(noting("theirs")),
    ).backward()
    assert seen["ours"] == seen["theirs"]
    assert aten.mm.default in [op for op, *_ in seen["ours"]]


def test_must_save_is_never_run_again() -> None:
    # Slow enough that running again is cheaper on a busy machine too.
    free = trained(always(CheckpointPolicy.PREFER_RECOMPUTE), link_limit="1MB/s")
    bound = trained(always(CheckpointPolicy.MUST_SAVE), link_limit="1MB/s")
    assert free["recomputed_bytes"] > 0
    assert bound["recomputed_bytes"] == 0
    assert bound["swapped_bytes"] > 0
    assert trained(always(True), link_limit="1MB/s")["recomputed_bytes"] == 0
    assert bound["policy"] == "policy_fn"


@pytest.mark.parametrize("budget", ["min", PEAK])
def test_must_recompute_is_run_again_at_every_budget(budget: int | str) -> None:
    def policy_fn(ctx: Any, op: Any, *args: Any, **kwargs: Any) -> Answer:
        is_sigmoid = op is aten.sigmoid.default
        return CheckpointPolicy.MUST_RECOMPUTE if is_sigmoid else CheckpointPolicy.PREFER_SAVE

    report = trained(policy_fn, budget=budget)
    # The output of each sigmoid; "min" may add what costs less than a copy.
    demanded = 3 * 256 * 64 * 4
    assert report["recomputed_bytes"] >= demanded if budget == "min" else demanded
    assert "demanded by policy_fn, and cannot be" not in report["not_planned"]


def test_must_cpu_offload_is_copied_at_every_budget() -> None:
    report = trained(always(CheckpointPolicy.MUST_CPU_OFFLOAD), budget=PEAK)
    assert report["recomputed_bytes"] == 0
    assert report["swapped_bytes"] > 3 * 256 * 64 * 4


def test_prefer_answers_bind_nothing_where_all_fits() -> None:
    report = trained(always(CheckpointPolicy.PREFER_RECOMPUTE), budget=PEAK)
    assert report["kept_bytes"] == report["saved_bytes"]


def test_what_cannot_be_run_again_is_counted() -> None:
    report = trained(always(CheckpointPolicy.MUST_RECOMPUTE))
    assert report["not_planned"]["demanded by policy_fn, and cannot be"] >= 3  # the dropout masks


def test_a_function_that_changes_its_mind_gets_another_plan() -> None:
    answers = [CheckpointPolicy.MUST_SAVE] * 3 + [CheckpointPolicy.MUST_RECOMPUTE] * 3
    step = iter(range(6))
    current = [0]

    def policy_fn(ctx: Any, op: Any, *args: Any, **kwargs: Any) -> Answer:
        return answers[current[0]] if op is aten.sigmoid.default else CheckpointPolicy.PREFER_SAVE

    lms = torchlms.offload(budget=PEAK, min_offload_bytes=0, policy=policy_fn)

    def scope() -> Any:
        current[0] = next(step)
        return lms

    assert first_difference(steps(scope, 6), steps(contextlib.nullcontext, 6)) is None
    assert lms.report().to_dict()["recomputed_bytes"] > 0


@pytest.mark.parametrize("answer", ["MUST_SAVE", None, 1, "nonsense"])
def test_nonsense_is_an_error_that_quotes_it(answer: Any) -> None:
    weight = seeded(64, 64).requires_grad_()
    lms = torchlms.offload(budget="min", min_offload_bytes=0, policy=always(answer))
    with pytest.raises(ValueError, match=f"{answer!r}.*CheckpointPolicy"), lms:
        (weight.sin() @ weight).sum()
    settle()
    assert torch.equal(
        torch.autograd.grad((weight * 2).sum(), weight)[0], torch.full((64, 64), 2.0)
    )


def test_an_op_that_saves_nothing_raises_the_error_at_the_end_of_the_scope() -> None:
    weight = seeded(64).requires_grad_()
    lms = torchlms.offload(budget="min", policy=always("nonsense"))
    lms.__enter__()
    _ = weight + 1
    with pytest.raises(ValueError, match="'nonsense'"):
        lms.__exit__(None, None, None)


def test_what_the_function_raises_comes_out_of_the_forward_pass() -> None:
    def policy_fn(ctx: Any, op: Any, *args: Any, **kwargs: Any) -> Answer:
        raise LookupError("no such op in my table")

    weight = seeded(64, 64).requires_grad_()
    with (
        pytest.raises(LookupError, match="in my table"),
        torchlms.offload(budget="min", min_offload_bytes=0, policy=policy_fn),
    ):
        weight.sin().sum()


def test_a_function_is_no_policy_of_a_forecast(tmp_path: Any) -> None:
    lms = torchlms.offload(budget="min", min_offload_bytes=0)
    for _ in range(2):
        with lms:
            loss = model()(seeded(8, 64)).sum()
        loss.backward()
    with pytest.raises(ValueError, match="is not a policy"):
        lms.trace().plan(budget="min", policy=always(True))  # type: ignore[arg-type]
