# SPDX-License-Identifier: BSD-3-Clause
"""Recomputing what backward needs: once, with the same bits, or an error; never a guess."""

from __future__ import annotations

import contextlib
import itertools
import json
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

import torchlms
from training import (
    ScopeMaker,
    assert_exact,
    first_difference,
    held_bytes,
    left_bytes,
    run,
    scopes,
    seeded,
    settle,
)

_names = itertools.count()


def train(forward: Any, parameters: list[Tensor], scope: ScopeMaker, num_steps: int = 3) -> Any:
    """The gradients and losses of a few steps of `forward()`."""
    results = []
    for _ in range(num_steps):
        for parameter in parameters:
            parameter.grad = None
        with scope():
            loss = forward()
        loss.backward()
        results.append([loss.detach(), [parameter.grad for parameter in parameters]])
    return results


def sigmoid_chain(num_layers: int = 3) -> tuple[Any, list[Tensor]]:
    """Layers whose biases backward does not read, so that plain PyTorch does not watch them."""
    biases = [seeded(64, seed=i).requires_grad_() for i in range(num_layers)]
    start = seeded(32, 64, seed=99)

    def forward() -> Tensor:
        value = start
        for bias in biases:
            value = torch.sigmoid(value + bias)
        return value.sum()

    return forward, biases


def recorded(forward: Any, parameters: list[Tensor], **settings: Any) -> Any:
    """An offload whose next step recomputes."""
    lms, scope = scopes(policy="recompute", **settings)
    train(forward, parameters, scope)
    assert lms.report().to_dict()["recomputed_bytes"] > 0
    return lms


@pytest.fixture(autouse=True)
def _settled() -> Iterator[None]:
    yield
    settle()


def test_every_saved_byte_is_kept_swapped_or_recomputed() -> None:
    forward, biases = sigmoid_chain()
    report = recorded(forward, biases).report().to_dict()
    parts = report["kept_bytes"] + report["swapped_bytes"] + report["recomputed_bytes"]
    assert report["saved_bytes"] == parts
    assert report["recompute_us"] > 0
    assert report["policy"] == "recompute"
    assert report["state"] == "executing"


def test_running_statistics_are_updated_once() -> None:
    def program(scope: ScopeMaker) -> Any:
        model = nn.Sequential(
            nn.Conv2d(3, 8, 3),
            nn.BatchNorm2d(8),
            nn.ReLU(True),
            nn.Conv2d(8, 8, 3),
            nn.BatchNorm2d(8),
        )
        images = seeded(4, 3, 16, 16)
        grads = train(lambda: model(images).square().mean(), list(model.parameters()), scope)
        return [grads, list(model.buffers())]

    assert assert_exact(program, policy="recompute")["recomputed_bytes"] > 0


@pytest.mark.parametrize("kind", ["hard swish", "gated"])
def test_ops_in_place_that_copy_their_input_first_are_run_again(kind: str) -> None:
    hidden = [nn.Linear(16, 16), nn.Hardswish(inplace=True), nn.Dropout(0.2, inplace=True)]

    def program(scope: ScopeMaker) -> Any:
        layers = hidden if kind == "hard swish" else [nn.Linear(16, 16), nn.GRUCell(16, 16)]
        model = nn.Sequential(*layers, nn.Linear(16, 5), nn.Sigmoid(), nn.Linear(5, 5))
        weights = [value for p in model.parameters() for value in [nn.init.normal_(p)]]
        inputs = seeded(8, 16)
        return train(lambda: model(inputs).square().mean(), weights, scope)

    assert assert_exact(program, policy="recompute")["recomputed_bytes"] > 0


def test_dropout_is_never_drawn_again() -> None:
    def program(scope: ScopeMaker) -> Any:
        weight = seeded(64, 64).requires_grad_()
        inputs = seeded(32, 64, seed=1)

        def forward() -> Tensor:
            return F.dropout(torch.tanh(F.dropout(inputs @ weight, 0.5)), 0.3).square().sum()

        return train(forward, [weight], scope)

    assert_exact(program, policy="recompute")


def test_a_bias_changed_before_backward_is_an_error_that_names_the_op() -> None:
    forward, biases = sigmoid_chain()
    lms = recorded(forward, biases)
    with lms:
        loss = forward()
    with torch.no_grad():
        biases[1].add_(1)
    with pytest.raises(
        RuntimeError, match=r"modified by an inplace operation: argument other of aten::add"
    ):
        loss.backward()
    del loss
    train(forward, biases, lambda: lms)


def test_a_change_that_bumps_no_version_is_an_error_too() -> None:
    forward, biases = sigmoid_chain()
    lms = recorded(forward, biases)
    with lms:
        loss = forward()
    biases[1].data.add_(1)
    with pytest.raises(RuntimeError, match="its bytes are others"):
        loss.backward()


def test_backward_under_another_number_of_threads_gives_the_bits_of_forward() -> None:
    def program(scope: ScopeMaker) -> Any:
        model = nn.Sequential(nn.Linear(64, 64), nn.LayerNorm(64), nn.GELU(), nn.BatchNorm1d(64))
        inputs = seeded(4096, 64)
        results = []
        for threads in (2, 1, 2, 1):
            torch.set_num_threads(threads)
            with scope():
                loss = model(inputs).square().sum()
            torch.set_num_threads(2)
            loss.backward()
            results.append([parameter.grad.clone() for parameter in model.parameters()])
        return results

    before = torch.get_num_threads()
    try:
        assert assert_exact(program, policy="recompute")["recomputed_bytes"] > 0
    finally:
        torch.set_num_threads(before)


def test_a_write_without_gradients_in_the_middle_of_forward_is_respected() -> None:
    def program(scope: ScopeMaker) -> Any:
        bias = seeded(64).requires_grad_()
        inputs = seeded(32, 64, seed=1)

        def forward() -> Tensor:
            value = inputs + bias
            with torch.no_grad():
                value.detach().clamp_(-0.5, 0.5)
            value = torch.sigmoid(value)
            with torch.no_grad():
                value.data.mul_(0.5)
            return (value * value).sum()

        return train(forward, [bias], scope)

    assert_exact(program, policy="recompute")


@pytest.mark.parametrize("is_seen", [True, False])
def test_a_write_that_the_plan_knows_nothing_of_comes_after_the_replays_that_read_it(
    is_seen: bool,
) -> None:
    weight = seeded(64, 64).requires_grad_()

    def forward(writes: bool) -> Tensor:
        base = weight + 1  # read by the replay of `shifted`, and saved by nothing
        shifted = base + 2
        value = (shifted * shifted).sum()
        del shifted
        value = value + base.sum()  # by now it is gone
        if writes:
            with torch.set_grad_enabled(is_seen):
                base.mul_(3)
        return value + base.sum()

    def steps(scope: ScopeMaker) -> list[Any]:
        return [
            train(lambda writes=writes: forward(writes), [weight], scope, num_steps=1)
            for writes in (False, False, True)
        ]

    lms, scope = scopes(policy="recompute")
    assert first_difference(steps(scope), steps(contextlib.nullcontext)) is None
    assert lms.report().to_dict()["recomputed_bytes"] > 0


def test_an_input_that_the_program_drops_is_still_there_for_the_replay() -> None:
    def program(scope: ScopeMaker) -> Any:
        bias = seeded(64).requires_grad_()

        def forward() -> Tensor:
            inputs = seeded(512, 64, seed=1)
            return torch.sigmoid(torch.tanh(inputs + bias)).sum()

        return train(forward, [bias], scope)

    assert_exact(program, policy="recompute")


def test_a_chain_of_a_thousand_dropped_storages_is_rebuilt() -> None:
    def program(scope: ScopeMaker) -> Any:
        bias = seeded(64).requires_grad_()

        def forward() -> Tensor:
            value = bias * 1.0
            for _ in range(1000):
                value = torch.sin(value)
            return value.sum()

        return train(forward, [bias], scope)

    assert_exact(program, policy="recompute")


def test_a_retained_graph_is_walked_twice_with_the_same_bits() -> None:
    def program(scope: ScopeMaker) -> Any:
        forward, biases = sigmoid_chain()
        results = []
        for _ in range(3):
            with scope():
                loss = forward()
            loss.backward(retain_graph=True)
            loss.backward()
            results.append([bias.grad.clone() for bias in biases])
        return results

    assert_exact(program, policy="recompute")


def test_a_gradient_of_a_part_of_the_graph_leaves_nothing_behind() -> None:
    forward, biases = sigmoid_chain(6)
    before = held_bytes()

    def program(scope: ScopeMaker) -> Any:
        results = []
        for _ in range(3):
            with scope():
                loss = forward()
            results.append(torch.autograd.grad(loss, biases[3:4]))
        return results

    expected = run(program)
    _, scope = scopes(policy="recompute")
    assert first_difference(expected, run(program, scope)) is None
    del expected
    assert left_bytes(before) == 0


def test_a_graph_dropped_without_backward_frees_what_its_replays_would_have_read() -> None:
    forward, biases = sigmoid_chain(6)
    lms = recorded(forward, biases)
    for bias in biases:
        bias.grad = None
    before = held_bytes()
    with lms:
        loss = forward()
    assert held_bytes() > before
    del loss
    assert left_bytes(before) == 0


def test_verify_checks_what_is_made_again() -> None:
    forward, biases = sigmoid_chain()
    assert recorded(forward, biases, verify=True).report().to_dict()["recomputed_bytes"] > 0


def define_foreign_op() -> Any:
    """`x * 3` in a library of its own, with a derivative that reads the result."""
    name = f"torchlms_test{next(_names)}::triple"
    torch.library.define(name, "(Tensor x) -> Tensor")
    torch.library.impl(name, "CPU", lambda x: x * 3)

    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad * 3 + ctx.saved_tensors[0] * 0

    def setup(ctx: Any, inputs: Any, output: Tensor) -> None:
        ctx.save_for_backward(output)

    torch.library.register_autograd(name, backward, setup_context=setup)
    namespace, _, op = name.partition("::")
    return name, getattr(getattr(torch.ops, namespace), op)


@pytest.mark.parametrize("is_allowed", [False, True])
def test_a_foreign_op_is_run_again_only_by_the_users_word(is_allowed: bool) -> None:
    name, triple = define_foreign_op()
    if is_allowed:
        torchlms.recomputable(name)
    weight = seeded(64).requires_grad_()
    inputs = seeded(32, 64, seed=1)
    num_calls = 0

    def forward() -> Tensor:
        nonlocal num_calls
        num_calls += 1
        return triple(inputs + weight).sum()

    def program(scope: ScopeMaker) -> Any:
        return train(forward, [weight], scope)

    expected = run(program)
    lms, scope = scopes(policy="recompute")
    assert first_difference(expected, run(program, scope)) is None
    assert (lms.report().to_dict()["recomputed_bytes"] > 0) is is_allowed


@pytest.mark.parametrize("name", ["relu", "", "a::", "::b", "a::b::c", "a b::c"])
def test_a_name_that_is_no_operator_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="ns::op"):
        torchlms.recomputable(name)


def test_recomputable_refuses_what_is_no_text() -> None:
    with pytest.raises(TypeError, match="int"):
        torchlms.recomputable(3)  # type: ignore[arg-type]


def test_in_place_ops_whose_old_value_is_saved_are_part_of_the_trace() -> None:
    weight, inputs = seeded(8, 16).requires_grad_(), seeded(8, 16, seed=1)

    def forward() -> Tensor:
        hidden = inputs * weight
        hidden.mul_(hidden.detach().sigmoid() * weight)  # autograd clones it first
        written = hidden.sin() * hidden.exp()
        torch._foreach_mul_([written], 0.5)  # returns nothing
        return (written.tanh() * written).sum()

    assert_exact(lambda scope: train(forward, [weight], scope), policy="recompute")
    ops = json.loads(recorded(forward, [weight]).session().trace_json())["ops"]
    assert {"aten::mul_.Tensor", "aten::_foreach_mul_.Scalar"} <= {op["name"] for op in ops}


def test_recurrent_layers_that_write_what_they_read_are_exact() -> None:
    model, inputs = nn.GRU(8, 8), seeded(5, 4, 8)

    def forward() -> Tensor:
        return model(inputs)[0].square().sum()

    parameters = list(model.parameters())
    assert_exact(lambda scope: train(forward, parameters, scope), policy="recompute")
