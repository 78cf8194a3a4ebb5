# SPDX-License-Identifier: BSD-3-Clause
"""Autograd's corners: whatever PyTorch lets a graph do, it does the same under torchlms."""

from __future__ import annotations

import threading
import weakref
from typing import Any

import pytest
import torch
import torch.autograd.forward_ad as forward_ad
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn
from torch.autograd import Function, grad
from torch.autograd.function import once_differentiable
from torch.autograd.graph import (
    allow_mutation_on_saved_tensors,
    register_multi_grad_hook,
    save_on_cpu,
)

import torchlms
from training import ScopeMaker, assert_exact, held_bytes, left_bytes, moved_bytes, scopes, seeded

pytestmark = pytest.mark.parametrize("policy", ["swap", "recompute"])


def mlp() -> nn.Sequential:
    return nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 16), nn.Tanh())


def gradients_of(model: nn.Module) -> list[Tensor | None]:
    return [None if p.grad is None else p.grad.clone() for p in model.parameters()]


class ScaledExp(Function):
    """Saves its input, its output, and a tensor that it hides in its context."""

    @staticmethod
    def forward(inputs: Tensor, scale: float) -> tuple[Tensor, Tensor]:
        return (inputs * scale).exp(), inputs.argmax(1)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        result, places = output
        ctx.mark_non_differentiable(places)
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(inputs[0], result, None)
        ctx.hidden, ctx.scale = inputs[0].sin(), inputs[1]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor, _: None) -> Any:
        inputs, result, nothing = ctx.saved_tensors
        assert nothing is None
        assert ctx.saved_tensors[1] is not None  # a second read
        assert ctx.needs_input_grad == (True, False)
        return gradient * result * ctx.scale + 0 * (inputs + ctx.hidden), None


class Doubled(Function):
    """Changes its input in place and hands it back."""

    @staticmethod
    def forward(ctx: Any, inputs: Tensor) -> Tensor:
        ctx.mark_dirty(inputs)
        inputs.mul_(2)
        ctx.save_for_backward(inputs)
        return inputs

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        (saved,) = ctx.saved_tensors
        return gradient * 2 + 0 * saved


def test_functions_of_the_user_are_exact(policy: str) -> None:
    def program(scope: ScopeMaker) -> Any:
        model, results = mlp(), []
        for step in range(3):
            model.zero_grad()
            with scope():
                hidden, places = ScaledExp.apply(model(seeded(6, 8, seed=step)), 0.5)
                loss = (Doubled.apply(hidden.sin()) * hidden).mean() + places.sum()
            loss.backward()
            results.append([loss.detach(), gradients_of(model)])
        return results

    assert moved_bytes(assert_exact(program, policy=policy)) > 0


def test_a_retained_graph_and_accumulated_gradients_are_exact(policy: str) -> None:
    def program(scope: ScopeMaker) -> Any:
        model, results = mlp(), []
        for step in range(3):
            with scope():
                first = model(seeded(6, 8, seed=step)).square().mean()
                second = model(seeded(6, 8, seed=9 + step)).square().mean()
            for loss, keeps in ((first, True), (second, False), (first, True), (first, False)):
                loss.backward(retain_graph=keeps)
                results.append(gradients_of(model))
        return results

    assert_exact(program, policy=policy)


def test_penalties_on_gradients_are_exact(policy: str) -> None:
    def program(scope: ScopeMaker) -> Any:
        model, results = mlp(), []
        for step in range(3):
            model.zero_grad()
            inputs = seeded(6, 8, seed=step).requires_grad_()
            with scope():
                (slope,) = grad(model(inputs).sum(), inputs, create_graph=True)
                (bend,) = grad(slope.square().sum(), inputs, create_graph=True)
                loss = (slope.norm(dim=1) - 1).square().sum() + bend.mean()
            loss.backward()
            results.append([slope.detach(), bend.detach(), inputs.grad, gradients_of(model)])
        return results

    assert moved_bytes(assert_exact(program, policy=policy)) > 0


def test_gradients_for_a_part_of_the_leaves_are_exact(policy: str) -> None:
    def program(scope: ScopeMaker) -> Any:
        model, results = mlp(), []
        for step in range(3):
            model.zero_grad()
            inputs = seeded(6, 8, seed=step).requires_grad_()
            with scope():
                loss = model(inputs).square().mean()
            results.append(grad(loss, [inputs, model[0].weight], retain_graph=True))
            loss.backward(inputs=[model[2].bias])
            results.append([inputs.grad, gradients_of(model)])
        return results

    assert_exact(program, policy=policy)


class Adapted(nn.Module):
    """A frozen layer with a small trained one beside it, whose weight is used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.frozen = nn.Linear(8, 8).requires_grad_(False)
        self.down = nn.Linear(8, 2, bias=False)
        self.up = nn.Linear(2, 8, bias=False)

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = F.silu(self.frozen(inputs) + self.up(self.down(inputs)))
        return F.linear(hidden, self.down.weight).sin() @ self.up.weight.T


def test_adapters_beside_frozen_layers_and_tied_weights_are_exact(policy: str) -> None:
    def program(scope: ScopeMaker) -> Any:
        model, results = nn.Sequential(Adapted(), Adapted()), []
        optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad])
        for step in range(3):
            optimizer.zero_grad()
            with scope():
                loss = model(seeded(6, 8, seed=step)).square().mean()
            loss.backward()
            optimizer.step()
            results.append([loss.detach(), gradients_of(model)])
        return [results, model.state_dict()]

    assert moved_bytes(assert_exact(program, policy=policy)) > 0


def test_hooks_of_tensors_parameters_and_modules_see_the_same(policy: str) -> None:
    def program(scope: ScopeMaker) -> Any:
        model, seen = mlp(), []
        optimizers = {p: torch.optim.SGD([p], 0.1) for p in model.parameters()}

        def step_now(parameter: Tensor) -> None:  # an optimizer inside backward
            seen.append(parameter.grad.clone())
            optimizers[parameter].step()
            parameter.grad = None

        for parameter in model.parameters():
            parameter.register_post_accumulate_grad_hook(step_now)
        model[1].register_full_backward_hook(lambda _, inputs, outputs: seen.append(inputs[0] * 1))
        for step in range(3):
            with scope():
                hidden = model[0](seeded(6, 8, seed=step))
                hidden.register_hook(lambda gradient: gradient * 2)
                register_multi_grad_hook([hidden], lambda gradients: seen.append(len(gradients)))
                hidden.retain_grad()
                loss = model[1:](hidden).square().mean()
            loss.backward()
            seen.append(hidden.grad)
        return [seen, model.state_dict()]

    assert_exact(program, policy=policy)


def test_several_graphs_are_alive_at_once_and_some_are_dropped(policy: str) -> None:
    def program(scope: ScopeMaker) -> Any:
        model, results = mlp(), []
        for step in range(3):
            losses = []
            for index in range(4):
                with scope():
                    losses.append(model(seeded(6, 8, seed=4 * step + index)).square().mean())
            del losses[1]
            (losses[2] * losses[0]).backward()
            results.append(gradients_of(model))
        return results

    assert_exact(program, policy=policy)


def test_nothing_is_left_of_graphs_dropped_without_backward(policy: str) -> None:
    model = mlp()
    _, scope = scopes(policy=policy)
    for step in range(3):
        before = held_bytes()
        with scope():
            loss = model(seeded(6, 8, seed=step)).square().mean()
        dropped = weakref.ref(loss)
        del loss
        assert dropped() is None
        assert left_bytes(before) == 0
        with scope():
            loss = model(seeded(6, 8, seed=step)).square().mean()
        loss.backward()
        model.zero_grad()
        del loss


def test_tangents_of_forward_mode_are_exact(policy: str) -> None:
    def program(scope: ScopeMaker) -> Any:
        model, results = mlp(), []
        for step in range(3):
            model.zero_grad()
            inputs = seeded(6, 8, seed=step).requires_grad_()
            with forward_ad.dual_level():
                dual = forward_ad.make_dual(inputs, seeded(6, 8, seed=9))
                with scope():
                    value, tangent = forward_ad.unpack_dual(model(dual).sin())
                (value.sum() + tangent.square().sum()).backward()
            results.append([value.detach(), tangent.detach(), inputs.grad, gradients_of(model)])
        return results

    assert_exact(program, policy=policy)


def test_products_of_jacobians_and_hessians_are_exact(policy: str) -> None:
    from torch.autograd.functional import hvp, jacobian, vhp

    def program(scope: ScopeMaker) -> Any:
        inputs, results = seeded(5), []

        def function(values: Tensor) -> Tensor:
            return (values.sin() * values.exp()).tanh().cumsum(0)

        for _ in range(3):
            with scope():
                results += [jacobian(function, inputs)]
                results += [hvp(lambda v: function(v).sum(), inputs, torch.ones(5))[1]]
                results += [vhp(lambda v: function(v).sum(), inputs, torch.ones(5))[1]]
        return results

    assert_exact(program, policy=policy)


def test_function_transforms_work_where_torchlms_is_disabled(policy: str) -> None:
    weight = seeded(4, 4).requires_grad_()

    def program(scope: ScopeMaker) -> Any:
        results = []
        for _ in range(3):
            weight.grad = None
            with scope():
                hidden = (weight.sin() @ weight).exp()
                with torchlms.disabled():
                    slopes = torch.func.vmap(torch.func.grad(torch.sin))(hidden.detach()[0])
                    bend = torch.func.hessian(lambda v: v.sin().prod())(torch.ones(3))
                loss = (hidden * slopes).sum() + bend.sum()
            loss.backward()
            results += [slopes, bend, weight.grad]
        return results

    assert moved_bytes(assert_exact(program, policy=policy)) > 0


def test_saved_tensors_can_be_read_from_the_graph(policy: str) -> None:
    def program(scope: ScopeMaker) -> Any:
        weight, results = seeded(4, 4).requires_grad_(), []
        for _ in range(3):
            with scope():
                hidden = weight.sin()
                result = hidden.exp()
            results += [result.grad_fn._saved_result, result.grad_fn._saved_result.is_leaf]
            result.sum().backward()
        return [results, weight.grad]

    assert_exact(program, policy=policy)


def test_other_saved_tensor_hooks_inside_win_and_are_exact(policy: str) -> None:
    def program(scope: ScopeMaker) -> Any:
        model, results = mlp(), []
        for step in range(3):
            model.zero_grad()
            with scope():
                hidden = model[:2](seeded(6, 8, seed=step))
                with save_on_cpu():
                    middle = model[2](hidden).sin()
                with allow_mutation_on_saved_tensors():
                    other = middle.exp()
                    other.mul_(2)
                    loss = (model[3](middle) * other).sum()
                    loss.backward()
            results.append(gradients_of(model))
        return results

    assert_exact(program, policy=policy)


def test_views_changed_in_place_within_the_graph_are_exact(policy: str) -> None:
    def program(scope: ScopeMaker) -> Any:
        weight, results = seeded(6, 6).requires_grad_(), []
        for _ in range(3):
            weight.grad = None
            with scope():
                base = weight.sin()
                base[1:3].mul_(2)
                base.T[0].exp_()
                halves = base.split(3)
                joined = torch.cat([halves[1].cos(), halves[0]])
                joined = joined.relu_() * 2
                joined[2:].sigmoid_()
                loss = (joined * joined.detach()).sum()
            loss.backward()
            results.append([loss.detach(), weight.grad])
        return results

    assert moved_bytes(assert_exact(program, policy=policy)) > 0


def test_what_a_write_spoils_is_refused_as_by_plain_pytorch(policy: str) -> None:
    _, scope = scopes(policy=policy)
    weight = seeded(6, 6).requires_grad_()
    for step in range(4):
        with scope():
            hidden = weight.sin()
            loss = hidden.exp().sum() + (hidden * hidden).sum()
        if step == 3:
            with torch.no_grad():
                hidden.add_(1)
            with pytest.raises(RuntimeError, match="inplace operation"):
                loss.backward()
        else:
            loss.backward()


def test_passes_without_gradients_in_between_keep_nothing(policy: str) -> None:
    def program(scope: ScopeMaker) -> Any:
        model, results = nn.Sequential(*mlp(), nn.BatchNorm1d(16), nn.Dropout(0.2)), []
        for step in range(3):
            model.train().zero_grad()
            with scope():
                loss = model(seeded(6, 8, seed=step)).square().mean()
                with torch.no_grad():
                    results.append(model(seeded(6, 8, seed=7)))
                with torch.inference_mode():
                    results.append(model(seeded(6, 8, seed=8)).clone())
            with scope(), torch.no_grad():
                results.append(model.eval()(seeded(6, 8, seed=9)))
            loss.backward()
            results += [gradients_of(model), model.state_dict()]
        return results

    assert moved_bytes(assert_exact(program, policy=policy)) > 0


def test_backward_in_other_threads_is_exact(policy: str) -> None:
    def program(scope: ScopeMaker) -> Any:
        model, results = mlp(), []
        for step in range(3):
            model.zero_grad()
            with scope():
                loss = model(seeded(6, 8, seed=step)).square().mean()
            thread = threading.Thread(target=loss.backward)
            thread.start()
            thread.join()
            results.append(gradients_of(model))
        return results

    assert moved_bytes(assert_exact(program, policy=policy)) > 0


def test_four_threads_that_train_at_once_are_exact(policy: str) -> None:
    def train(scope: ScopeMaker, seed: int) -> Any:
        with torch.random.fork_rng(enabled=False):
            weights = [seeded(8, 16, seed=seed), seeded(16, 8, seed=seed + 1)]
        leaves, results = [weight.requires_grad_() for weight in weights], []
        for step in range(3):
            with scope():
                hidden = F.gelu(seeded(6, 8, seed=seed + step) @ leaves[0]) @ leaves[1]
                loss = hidden.tanh().square().mean()
            gradients = grad(loss, leaves)
            with torch.no_grad():
                for leaf, gradient in zip(leaves, gradients, strict=True):
                    leaf -= gradient
            results.append([loss.detach(), gradients])
        return results

    def program(scope: ScopeMaker) -> Any:
        results: dict[int, Any] = {}
        threads = [
            threading.Thread(target=lambda s=s: results.update({s: train(scope, s)}))
            for s in range(0, 40, 10)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return [results[seed] for seed in range(0, 40, 10)]

    assert_exact(program, policy=policy)
