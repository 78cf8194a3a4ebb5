# SPDX-License-Identifier: BSD-3-Clause
"""Graphs used in every way that PyTorch allows: results equal plain PyTorch's, nothing is left."""

from __future__ import annotations

import threading
from contextlib import ExitStack
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd import Function, grad
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.checkpoint import checkpoint

import torchlms
from models import UNet
from training import (
    SMALLEST,
    ScopeMaker,
    assert_exact,
    first_difference,
    has_hooks,
    held_bytes,
    in_threads,
    left_bytes,
    scopes,
    seeded,
    state_of,
)


def mlp() -> nn.Sequential:
    return nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 64), nn.Tanh())


def losses_of(model: nn.Module, scope: ScopeMaker, count: int) -> list[Tensor]:
    losses = []
    for index in range(count):
        with scope():
            losses.append(model(seeded(8, 16, seed=index)).square().mean())
    return losses


@pytest.mark.parametrize("order", [[0, 1, 2], [2, 1, 0], [1, 2, 0]])
def test_several_forwards_before_their_backwards_are_exact_in_any_order(order: list[int]) -> None:
    def program(scope: ScopeMaker) -> Any:
        model, gradients = mlp(), []
        for _ in range(3):
            losses = losses_of(model, scope, 3)
            for index in order:
                losses[index].backward()
                gradients.append([parameter.grad.clone() for parameter in model.parameters()])
        return gradients

    assert_exact(program)


def test_several_forwards_before_one_backward_are_exact() -> None:
    def program(scope: ScopeMaker) -> Any:
        model = mlp()
        for _ in range(3):
            first, second, third = losses_of(model, scope, 3)
            (first * second + third).backward()
        return state_of(model)

    assert_exact(program)


def test_accumulated_gradients_are_exact_and_a_boundary_joins_their_passes() -> None:
    def program(scope: ScopeMaker) -> Any:
        model, optimizer_steps = mlp(), []
        optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
        for _ in range(3):
            for index in range(4):
                with scope():
                    loss = model(seeded(8, 16, seed=index)).square().mean() / 4
                loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            torchlms.step_boundary()
            optimizer_steps.append(state_of(model, optimizer))
        return optimizer_steps

    assert (
        assert_exact(program)["step"] == 6
    )  # four passes before the first boundary, two steps after


def test_a_retained_graph_gives_the_same_gradients_again() -> None:
    def program(scope: ScopeMaker) -> Any:
        model, results = mlp(), []
        for _ in range(3):
            (loss,) = losses_of(model, scope, 1)
            for is_last in (False, False, True):
                loss.backward(retain_graph=not is_last)
                results.append([parameter.grad.clone() for parameter in model.parameters()])
        return results

    assert_exact(program)


@pytest.mark.parametrize("inside", [True, False], ids=["in the scope", "after the scope"])
def test_double_backward_is_exact(inside: bool) -> None:
    def program(scope: ScopeMaker) -> Any:
        model, inputs = mlp(), seeded(8, 16).requires_grad_()
        for _ in range(3):
            with ExitStack() as stack:
                stack.enter_context(scope())
                outputs = model(inputs).sum(1)
                if not inside:
                    stack.close()
                (slope,) = grad(outputs.sum(), inputs, create_graph=True)
                penalty = (slope.norm(dim=1) - 1).square().sum() + outputs.mean()
            penalty.backward()
        return [slope.detach(), inputs.grad, state_of(model)]

    assert_exact(program)


def test_third_derivatives_are_exact() -> None:
    def program(scope: ScopeMaker) -> Any:
        inputs = seeded(32).requires_grad_()
        derivatives = []
        for _ in range(3):
            with scope():
                value = (inputs.sin() * inputs.exp()).tanh()
                for _ in range(3):
                    (value,) = grad(value.sum(), inputs, create_graph=True)
            value.sum().backward()
            derivatives.append(value.detach())
        return [derivatives, inputs.grad]

    assert_exact(program)


def test_gradients_of_a_subset_leave_the_others_alone() -> None:
    def program(scope: ScopeMaker) -> Any:
        model, inputs = mlp(), seeded(8, 16).requires_grad_()
        with scope():
            loss = model(inputs).square().sum()
        some = grad(loss, [inputs, model[0].weight], retain_graph=True)
        before = [parameter.grad for parameter in model.parameters()] + [inputs.grad]
        loss.backward(inputs=[model[2].bias])
        return [some, before, state_of(model), inputs.grad]

    assert_exact(program)


def test_a_backward_inside_the_scope_is_exact() -> None:
    def program(scope: ScopeMaker) -> Any:
        model = mlp()
        for _ in range(3):
            with scope():
                first = model(seeded(8, 16)).square().mean()
                first.backward()
                model(seeded(8, 16, seed=1)).square().mean().backward()
        return state_of(model)

    assert_exact(program)


class Failure(Exception):
    pass


def fail(*_: Any) -> None:
    raise Failure


def test_an_exception_in_forward_leaves_nothing_and_the_next_step_is_exact() -> None:
    before = held_bytes()

    def program(scope: ScopeMaker) -> Any:
        model = mlp()
        for step in range(5):
            handle = model[2].register_forward_hook(fail) if step in (0, 3) else None
            try:
                (loss,) = losses_of(model, scope, 1)
                loss.backward()
            except Failure:
                assert not has_hooks()
                handle.remove()
        return state_of(model)

    assert_exact(program)
    assert left_bytes(before) == 0


def test_an_exception_in_backward_leaves_nothing_and_the_next_step_is_exact() -> None:
    before = held_bytes()

    def program(scope: ScopeMaker) -> Any:
        model = mlp()
        for step in range(5):
            with scope():
                hidden = model[:2](seeded(8, 16))
                loss = model[2:](hidden).square().mean()
            if step in (0, 3):
                hidden.register_hook(fail)
            try:
                loss.backward()
            except Failure:
                assert not has_hooks()
        del hidden, loss
        return state_of(model)

    assert_exact(program)
    assert left_bytes(before) == 0


def test_graphs_dropped_without_backward_leave_nothing() -> None:
    model = mlp()
    lms, scope = scopes()
    before = held_bytes()
    for _ in range(5):
        with scope():
            loss = model(seeded(256, 16)).square().mean()
        del loss
        assert left_bytes(before) == 0
    assert not lms.session().is_busy()
    losses_of(model, scope, 1)[0].backward()
    expected = [parameter.grad for parameter in model.parameters()]
    model.zero_grad()
    losses_of(model, lambda: torchlms.disabled(), 1)[0].backward()
    assert first_difference(expected, [parameter.grad for parameter in model.parameters()]) is None


def test_threads_that_train_two_models_at_once_are_exact() -> None:
    models = [UNet(4), mlp()]
    inputs = [seeded(2, 3, 32, 32), seeded(64, 16)]
    initial = [{k: v.clone() for k, v in model.state_dict().items()} for model in models]

    def train(index: int, scope: ScopeMaker, together: threading.Barrier) -> None:
        model = models[index]
        model.load_state_dict(initial[index])
        model.zero_grad()
        for _ in range(6):
            together.wait()
            with scope():
                loss = model(inputs[index]).square().mean()
                together.wait()  # both scopes are open
            loss.backward()

    def train_both(scope: ScopeMaker) -> list[Any]:
        together = threading.Barrier(2, timeout=120)
        in_threads(lambda: train(0, scope, together), lambda: train(1, scope, together))
        return [(list(m.buffers()), [p.grad.clone() for p in m.parameters()]) for m in models]

    expected = [
        [t.clone() for t in part] for pair in train_both(torchlms.disabled) for part in pair
    ]
    assert first_difference(expected, train_both(scopes()[1])) is None


def test_a_backward_in_another_thread_is_exact() -> None:
    def program(scope: ScopeMaker) -> Any:
        model = mlp()
        for _ in range(3):
            (loss,) = losses_of(model, scope, 1)
            in_threads(loss.backward)
        return state_of(model)

    assert_exact(program)


def test_a_backward_while_another_forward_records_is_exact() -> None:
    def program(scope: ScopeMaker) -> Any:
        first, second = mlp(), UNet(4)
        for _ in range(4):
            (loss,) = losses_of(first, scope, 1)
            with scope():
                hidden = second.enter(seeded(2, 3, 32, 32))
                in_threads(loss.backward)
                other = second.bottom(second.down(hidden)).square().mean()
            other.backward()
        return [state_of(first), state_of(second)]

    assert_exact(program)


class ReturnsSaved(Function):
    """Its backward returns what it saved, as its gradient."""

    @staticmethod
    def forward(ctx: Any, values: Tensor) -> Tensor:
        ctx.save_for_backward(values)
        return values.square().sum() / 2

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        (values,) = ctx.saved_tensors
        return values


@pytest.mark.parametrize("retain", [True, False], ids=["one graph", "a graph each"])
@pytest.mark.parametrize("is_leaf", [True, False], ids=["of a leaf", "of a hidden tensor"])
def test_a_function_that_returns_its_saved_tensor_accumulates_exactly(
    retain: bool, is_leaf: bool
) -> None:
    def program(scope: ScopeMaker) -> Any:
        values, results = seeded(16).requires_grad_(), []
        for step in range(4):
            if step == 0 or not retain:
                with scope():
                    used = values if is_leaf else values * 1
                    other = values.detach() if is_leaf else used
                    loss = ReturnsSaved.apply(used) + (other.sin() * other).sum()
            loss.backward(retain_graph=retain)
            results.append(values.grad.clone())
        return [results, values.detach(), other.detach()]

    assert_exact(program)


class WritesSaved(Function):
    """Its backward uses its saved tensor as scratch space."""

    @staticmethod
    def forward(ctx: Any, values: Tensor) -> Tensor:
        ctx.save_for_backward(values)
        return values.square() / 2

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        (values,) = ctx.saved_tensors
        return values.mul_(gradient).clone()


def test_a_function_that_writes_its_saved_tensor_is_exact() -> None:
    def program(scope: ScopeMaker) -> Any:
        values = seeded(16).requires_grad_()
        for _ in range(3):
            with scope():
                loss = WritesSaved.apply(values.exp().view(4, 4).t() * 2).sum()
            loss.backward()
        return values.grad

    assert_exact(program)


def test_a_saved_tensor_that_a_function_wrote_is_right_or_refused_for_others() -> None:
    values = seeded(16).requires_grad_()
    with torchlms.offload(**SMALLEST):
        hidden = values * 2
        loss = (hidden.sin() + WritesSaved.apply(hidden)).sum()
    del hidden
    try:
        loss.backward()
    except RuntimeError as error:
        assert "modified by an inplace operation" in str(error)
    else:
        doubled = values.detach() * 2
        assert torch.equal(values.grad, (doubled.cos() + doubled) * 2)


def test_a_saved_tensor_written_before_backward_is_refused_as_by_plain_pytorch() -> None:
    def error_of(scope: ScopeMaker) -> str:
        weight, values = torch.ones(4, requires_grad=True), seeded(4).requires_grad_()
        with scope():
            hidden = (values * weight).exp()
            loss = (hidden * weight).sum()
        with torch.no_grad():
            weight.add_(1)
        with pytest.raises(RuntimeError, match="modified by an inplace operation") as caught:
            loss.backward()
        return type(caught.value).__name__

    assert error_of(torchlms.disabled) == error_of(scopes()[1])


def test_hooks_of_the_user_nest_as_in_plain_pytorch() -> None:
    def program(scope: ScopeMaker) -> Any:
        model, packed = mlp(), []

        def pack(tensor: Tensor) -> Tensor:
            packed.append(tuple(tensor.shape))
            return tensor

        for _ in range(3):
            with scope():
                hidden = model[:2](seeded(8, 16))
                with saved_tensors_hooks(pack, lambda tensor: tensor):
                    hidden = hidden.sin() * 2
                loss = model[2:](hidden).square().mean()
            loss.backward()
        return [packed, state_of(model)]

    assert_exact(program)


def test_two_scopes_left_in_the_wrong_order_leave_no_hooks() -> None:
    first, second = torchlms.offload(**SMALLEST), torchlms.offload(**SMALLEST)
    values = seeded(8).requires_grad_()
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    loss = (values * values).sin().sum()
    second.__exit__(None, None, None)
    assert not has_hooks()
    loss.backward()
    assert torch.equal(values.grad, grad((values * values).sin().sum(), values)[0])


def test_reentrant_and_non_reentrant_checkpoints_inside_are_exact() -> None:
    def program(scope: ScopeMaker) -> Any:
        model, inputs = mlp(), seeded(8, 16).requires_grad_()
        for _ in range(3):
            with scope():
                hidden = checkpoint(model[:2], inputs, use_reentrant=False)
                hidden = checkpoint(model[2:], hidden.sin(), use_reentrant=True)
                loss = (hidden * hidden.exp()).sum()
            loss.backward()
        return [state_of(model), inputs.grad]

    assert_exact(program)


def test_the_same_program_is_recorded_once() -> None:
    lms, scope = scopes()
    model = UNet(4)
    states = []
    for _ in range(8):
        with scope():
            loss = model(seeded(2, 3, 32, 32)).square().mean()
        loss.backward()
        states.append(lms.report().to_dict()["state"])
    assert states == ["recording"] + ["executing"] * 7


@pytest.mark.parametrize("region", ["nested", "disabled"])
def test_regions_inside_a_checkpoint_save_the_same_when_it_runs_again(region: str) -> None:
    def program(scope: ScopeMaker) -> Any:
        model, inputs = mlp(), seeded(8, 16).requires_grad_()
        is_plain = not isinstance(scope(), torchlms.offload)

        def function(inputs: Tensor) -> Tensor:
            hidden = model(inputs).sin()
            with scope() if region == "nested" or is_plain else torchlms.disabled():
                hidden = hidden * hidden.exp()
            return hidden.tanh() * hidden

        for _ in range(3):
            with scope():
                loss = (checkpoint(function, inputs, use_reentrant=False).cos() * 2).sum()
            loss.backward()
        return [inputs.grad, state_of(model)]

    assert_exact(program)
