# SPDX-License-Identifier: BSD-3-Clause
"""Training is equal to plain PyTorch bit for bit: models, optimizers, and how steps are written."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
import torchvision
from torch import Tensor, nn

import torchlms
import training
from models import GPT, TextLSTM, UNet
from training import BUDGETS, ScopeMaker, assert_exact, moved_bytes, seeded, state_of

OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "SGD": lambda parameters: torch.optim.SGD(parameters, 0.05),
    "momentum": lambda parameters: torch.optim.SGD(parameters, 0.05, momentum=0.9),
    "Adam": lambda parameters: torch.optim.Adam(parameters, 1e-3),
    "fused Adam": lambda parameters: torch.optim.Adam(parameters, 1e-3, fused=True),
}


@pytest.fixture(autouse=True, params=["swap", "recompute"])
def policy(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """That of every scope in this file, unless the test says another."""
    monkeypatch.setitem(training.SMALLEST, "policy", request.param)
    return request.param


def steps(
    model: nn.Module,
    loss_of: Callable[[nn.Module, int], Tensor],
    scope: ScopeMaker,
    num_steps: int = 3,
    optimizer: str = "momentum",
) -> list[Any]:
    """The losses of a few training steps, and the state they lead to."""
    stepper = OPTIMIZERS[optimizer](model.parameters())
    losses = []
    for step in range(num_steps):
        stepper.zero_grad()
        with scope():
            loss = loss_of(model, step)
        loss.backward()
        stepper.step()
        losses.append(loss.detach())
    return [losses, state_of(model, stepper)]


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("budget", BUDGETS)
def test_resnet18_trains_exactly(optimizer: str, budget: str) -> None:
    def program(scope: ScopeMaker) -> Any:
        model = torchvision.models.resnet18(num_classes=10)
        images, labels = seeded(4, 3, 64, 64), torch.arange(4)
        return steps(
            model, lambda m, _: F.cross_entropy(m(images), labels), scope, optimizer=optimizer
        )

    report = assert_exact(program, budget)
    assert report["state"] == "executing"
    assert moved_bytes(report) > 0 or budget != "min"  # an optimizer may need more than a step


@pytest.mark.parametrize("budget", BUDGETS)
def test_a_gpt_with_dropout_and_tied_weights_trains_exactly(budget: str) -> None:
    def program(scope: ScopeMaker) -> Any:
        tokens = torch.arange(4 * 32).mul(7).remainder(64).view(4, 32)
        return steps(GPT(), lambda m, _: m(tokens), scope, optimizer="Adam")

    assert moved_bytes(assert_exact(program, budget)) > 0


@pytest.mark.parametrize("budget", BUDGETS)
def test_an_lstm_trains_exactly(budget: str) -> None:
    def program(scope: ScopeMaker) -> Any:
        return steps(TextLSTM(), lambda m, _: m(seeded(12, 5, 16)), scope)

    assert_exact(program, budget)


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("budget", BUDGETS)
def test_a_unet_with_skips_trains_exactly(budget: str, layout: torch.memory_format) -> None:
    def program(scope: ScopeMaker) -> Any:
        model = UNet().to(memory_format=layout)
        images = seeded(2, 3, 32, 32).to(memory_format=layout)
        return steps(model, lambda m, _: m(images).square().mean(), scope, optimizer="Adam")

    assert moved_bytes(assert_exact(program, budget)) > 0


@pytest.mark.parametrize("budget", BUDGETS)
def test_autocast_to_bfloat16_trains_exactly(budget: str) -> None:
    def program(scope: ScopeMaker) -> Any:
        tokens = torch.arange(2 * 32).mul(5).remainder(64).view(2, 32)

        def loss_of(model: nn.Module, _: int) -> Tensor:
            with torch.autocast("cpu", torch.bfloat16):
                return model(tokens).float()

        return steps(GPT(2), loss_of, scope)

    assert_exact(program, budget)


def test_generators_end_where_plain_training_ends() -> None:
    def program(scope: ScopeMaker) -> Any:
        own = torch.Generator().manual_seed(5)

        def loss_of(model: nn.Module, _: int) -> Tensor:
            hidden = F.dropout(model(seeded(8, 16)), 0.4)
            hidden = hidden * torch.bernoulli(torch.full_like(hidden, 0.5), generator=own)
            hidden = F.rrelu(hidden, training=True) + torch.rand_like(hidden)
            return F.alpha_dropout(hidden, 0.2, training=True).square().mean()

        return steps(nn.Linear(16, 16), loss_of, scope), own.get_state(), torch.rand(3)

    assert_exact(program)


def test_frozen_layers_and_inputs_that_need_gradients_are_exact() -> None:
    def program(scope: ScopeMaker) -> Any:
        model = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 32), nn.Tanh())
        model[0].requires_grad_(False)
        inputs = seeded(8, 16).requires_grad_()

        def loss_of(m: nn.Module, _: int) -> Tensor:
            return (m(inputs) * m(inputs.sin())).sum()

        return steps(model, loss_of, scope), inputs.grad

    assert_exact(program)


def in_place(inputs: Tensor) -> Tensor:
    hidden = inputs * 2
    hidden[:, 1:3].mul_(3)
    hidden[0] = inputs[1].exp()
    hidden.add_(inputs).relu_()
    return (hidden.sin() * hidden.clone().sigmoid_()).clamp_(min=0.1)


def views(inputs: Tensor) -> Tensor:
    square = inputs @ inputs.t()
    crossed = (square @ square.t().sin()) * square.diagonal()[None]
    narrow = inputs.exp().narrow(1, 2, 5)
    wide = narrow.unfold(1, 3, 2) * narrow.as_strided((8, 2, 3), (16, 1, 2))
    first, second = inputs.cos().chunk(2, dim=1)
    return crossed.sum() + wide.prod(2).sum() + (first[::2] * second.flip(0)[::2]).sum()


def broadcasts(inputs: Tensor) -> Tensor:
    row = inputs.sin()[:1].expand(8, 16)
    return (row * inputs * row.square()).exp() * inputs.mean(1, keepdim=True)


def complex_numbers(inputs: Tensor) -> Tensor:
    spectrum = torch.fft.fft(inputs.tanh())
    product = spectrum.conj() * spectrum.roll(1, 0) + spectrum.conj().imag.neg() * 2
    return torch.view_as_real(product).square()


def index_ops(inputs: Tensor) -> Tensor:
    values, places = inputs.exp().topk(4, dim=1)
    gathered = inputs.sin().gather(1, places) * values
    spread = torch.zeros_like(inputs).scatter_add(1, places, gathered)
    return spread * inputs[torch.tensor([3, 0, 3, 1, 7, 5, 2, 2])].sigmoid()


@pytest.mark.parametrize("forward", [in_place, views, broadcasts, complex_numbers, index_ops])
def test_ways_to_share_and_write_storages_are_exact(forward: Callable[[Tensor], Tensor]) -> None:
    def program(scope: ScopeMaker) -> Any:
        model = nn.Linear(16, 16)
        return steps(model, lambda m, _: forward(m(seeded(8, 16))).sum(), scope)

    assert_exact(program)


def test_numbers_of_threads_that_change_in_between_are_exact() -> None:
    def program(scope: ScopeMaker) -> Any:
        def loss_of(model: nn.Module, step: int) -> Tensor:
            torch.set_num_threads(1 + step % 2)
            loss = model(seeded(8, 3, 32, 32)).square().sum()
            torch.set_num_threads(2 - step % 2)
            return loss

        return steps(UNet(4), loss_of, scope, num_steps=4)

    assert_exact(program)


@pytest.mark.parametrize("budget", BUDGETS)
def test_shapes_that_alternate_are_exact_and_each_gets_its_plan(budget: str) -> None:
    def program(scope: ScopeMaker) -> Any:
        sizes = [32, 16, 24]

        def loss_of(model: nn.Module, step: int) -> Tensor:
            size = sizes[step % 3]
            return model(seeded(2, 3, size, size)).square().mean()

        return steps(UNet(4), loss_of, scope, num_steps=9)

    assert assert_exact(program, budget)["state"] == "executing"


def test_a_program_that_changes_is_exact_and_is_recorded_again() -> None:
    states: list[str] = []

    def program(scope: ScopeMaker) -> Any:
        def loss_of(model: nn.Module, step: int) -> Tensor:
            hidden = model[0](seeded(16, 16)).relu()
            if step >= 3:
                hidden = hidden.sin() * hidden
            return model[1](hidden).square().mean()

        model = nn.Sequential(nn.Linear(16, 64), nn.Linear(64, 4))
        results = []
        for step in range(6):
            results.append(steps(model, lambda m, _, at=step: loss_of(m, at), scope, num_steps=1))
            if isinstance(scope(), torchlms.offload):
                states.append(scope().report().to_dict()["state"])
        return results

    assert_exact(program)
    assert states == ["recording", "executing", "executing", "recording", "executing", "executing"]


@pytest.mark.parametrize("budget", BUDGETS)
def test_verify_finds_nothing_wrong_with_training(budget: str) -> None:
    def program(scope: ScopeMaker) -> Any:
        return steps(UNet(4), lambda m, _: m(seeded(2, 3, 32, 32)).square().mean(), scope)

    assert_exact(program, budget, verify=True)


@pytest.mark.parametrize(
    ("layer", "shape"),
    [(nn.BatchNorm1d(32), (16, 32)), (nn.LSTM(8, 32, batch_first=True), (4, 8, 8))],
    ids=["statistics", "workspace"],
)
def test_verify_does_not_mind_what_kernels_write_into_their_own_buffers(
    layer: nn.Module, shape: tuple[int, ...]
) -> None:
    def program(scope: ScopeMaker) -> Any:
        model = copy.deepcopy(layer)
        inputs = seeded(*shape).requires_grad_()
        losses = []
        for _ in range(3):
            with scope():
                output = model(inputs.sin())
                losses.append((output[0] if isinstance(output, tuple) else output).square().sum())
        for loss in losses:
            loss.backward(retain_graph=True)
            loss.backward()
        return state_of(model)

    assert_exact(program, verify=True)


def test_verify_finds_a_write_that_pytorch_does_not_see() -> None:
    inputs = seeded(64, 64).requires_grad_()
    with torchlms.offload(budget="min", min_offload_bytes=0, policy="swap", verify=True):
        hidden = inputs.exp()
        loss = (hidden * hidden).sum()
    hidden.data.mul_(2)
    with pytest.raises(RuntimeError, match="verify"):
        loss.backward()


def test_kept_tensors_and_disabled_regions_are_exact_and_stay() -> None:
    def program(scope: ScopeMaker) -> Any:
        def loss_of(model: nn.Module, _: int) -> Tensor:
            hidden = torchlms.keep(model(seeded(512, 16)).exp())
            with torchlms.disabled():
                hidden = hidden.sin() * hidden
            return (hidden.cos() * 2).sum()

        return steps(nn.Linear(16, 16), loss_of, scope)

    report = assert_exact(program)
    assert report["kept_bytes"] >= 512 * 16 * 4  # of exp
    assert moved_bytes(report) >= 512 * 16 * 4  # of cos
