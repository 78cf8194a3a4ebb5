# SPDX-License-Identifier: BSD-3-Clause
"""What people put round and under a training step: precision, compilers, checkpoints, attention, RNNs."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

import torchlms
from training import SMALLEST, ScopeMaker, assert_exact, moved_bytes, seeded, state_of

pytestmark = pytest.mark.parametrize("policy", ["swap", "recompute"])


def mlp() -> nn.Sequential:
    return nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 16), nn.Tanh())


def trained(make: Any, forward: Any = lambda model, inputs: model(inputs)) -> Any:
    """A program: three steps of a model, and the state that they leave."""

    def program(scope: ScopeMaker) -> Any:
        model, losses = make(), []
        optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
        for step in range(3):
            optimizer.zero_grad()
            with scope():
                loss = forward(model, seeded(6, 8, seed=step)).float().square().mean()
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
        return [losses, state_of(model, optimizer)]

    return program


def test_autocast_and_its_cache_of_cast_weights_are_exact(policy: str) -> None:
    def forward(model: nn.Module, inputs: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            hidden = model(inputs)
            again = F.linear(hidden.float(), model[2].weight).sin()  # of the cache
            with torch.autocast("cpu", enabled=False):
                return F.linear(again.float(), model[2].weight) * hidden

    assert moved_bytes(assert_exact(trained(mlp, forward), policy=policy)) > 0


def test_a_gradient_scaler_that_skips_a_step_is_exact(policy: str) -> None:
    def program(scope: ScopeMaker) -> Any:
        model, results = mlp(), []
        optimizer = torch.optim.AdamW(model.parameters(), 0.01)
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=2)
        for step in range(5):
            optimizer.zero_grad()
            with scope(), torch.autocast("cpu", torch.float16):
                outputs = model(seeded(6, 8, seed=step))
                loss = outputs.float().square().mean() * (float("inf") if step == 2 else 1.0)
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            results += [loss.detach(), scaler.get_scale()]
        scales = results[1::2]
        assert scales[2] < scales[1]  # the step that overflowed
        return [results, state_of(model, optimizer)]

    assert moved_bytes(assert_exact(program, policy=policy)) > 0


@pytest.mark.parametrize("is_fused", [True, False])
@pytest.mark.parametrize("kind", ["SGD", "AdamW", "Adagrad"])
def test_fused_and_other_optimizers_are_exact(policy: str, kind: str, is_fused: bool) -> None:
    def program(scope: ScopeMaker) -> Any:
        model, losses = mlp(), []
        options = {"momentum": 0.9} if kind == "SGD" else {}
        optimizer = getattr(torch.optim, kind)(
            model.parameters(), 0.01, fused=is_fused or None, **options
        )
        for step in range(4):
            optimizer.zero_grad()
            with scope():
                loss = model(seeded(6, 8, seed=step)).square().mean()
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
        return [losses, state_of(model, optimizer)]

    assert moved_bytes(assert_exact(program, policy=policy)) > 0


def test_a_compiled_model_inside_the_scope_is_exact(policy: str) -> None:
    def forward(model: nn.Module, inputs: Tensor) -> Tensor:
        return torch.compile(model, backend="aot_eager")(inputs).sin()

    def eager(model: nn.Module, inputs: Tensor) -> Tensor:
        return model(inputs).sin()

    torch._dynamo.reset()
    report = assert_exact(trained(mlp, forward), policy=policy)
    assert moved_bytes(report) > 0
    assert_exact(trained(mlp, eager), policy=policy)


def test_a_scope_inside_a_compiled_function_is_exact(policy: str) -> None:
    lms = torchlms.offload(**(SMALLEST | {"policy": policy}))

    def program(scope: ScopeMaker) -> Any:
        torch._dynamo.reset()
        model = mlp()
        inside = lms if isinstance(scope(), torchlms.offload) else scope()

        @torch.compile(backend="aot_eager")
        def step(inputs: Tensor) -> Tensor:
            with inside:
                return model(inputs).square().mean()

        for seed in range(3):
            step(seeded(6, 8, seed=seed)).backward()
        return state_of(model)

    assert_exact(program, policy=policy)


def test_scripted_and_traced_modules_are_exact(policy: str) -> None:
    for make in (
        lambda: torch.jit.script(mlp()),
        lambda: torch.jit.trace(mlp(), seeded(6, 8)),
    ):
        assert_exact(trained(make), policy=policy)


@pytest.mark.parametrize("outer", [True, False], ids=["outer reentrant", "outer not"])
@pytest.mark.parametrize("inner", [True, False], ids=["inner reentrant", "inner not"])
def test_checkpoints_inside_checkpoints_inside_the_scope_are_exact(
    policy: str, outer: bool, inner: bool
) -> None:
    def forward(model: nn.Module, inputs: Tensor) -> Tensor:
        def part(values: Tensor) -> Tensor:
            hidden = model[0](values).sin()
            return checkpoint(lambda v: model[1:](v).exp(), hidden, use_reentrant=inner)

        hidden = checkpoint(part, inputs.requires_grad_(), use_reentrant=outer)
        return hidden.cos() * hidden

    assert_exact(trained(mlp, forward), policy=policy)


@pytest.mark.parametrize("is_reentrant", [True, False])
def test_a_scope_inside_a_checkpoint_is_exact(policy: str, is_reentrant: bool) -> None:
    def program(scope: ScopeMaker) -> Any:
        model = mlp()

        def part(values: Tensor) -> Tensor:
            with scope():
                return F.dropout(model(values), 0.2).sin()

        for step in range(3):
            inputs = seeded(6, 8, seed=step).requires_grad_()
            checkpoint(part, inputs, use_reentrant=is_reentrant).square().mean().backward()
        return state_of(model)

    assert_exact(program, policy=policy)


@pytest.mark.parametrize("is_reentrant", [True, False])
def test_a_wrapped_module_inside_a_checkpoint_is_exact(policy: str, is_reentrant: bool) -> None:
    def program(scope: ScopeMaker) -> Any:
        model = mlp()
        if isinstance(scope(), torchlms.offload):
            torchlms.wrap(model, **(SMALLEST | {"policy": policy}))
        for step in range(3):
            inputs = seeded(6, 8, seed=step).requires_grad_()
            checkpoint_sequential(model, 2, inputs, use_reentrant=is_reentrant).sum().backward()
            checkpoint(model, inputs, use_reentrant=is_reentrant).square().mean().backward()
        return state_of(model)

    assert_exact(program, policy=policy)


@pytest.mark.parametrize("backend", [SDPBackend.MATH, SDPBackend.FLASH_ATTENTION])
@pytest.mark.parametrize("mask", ["none", "causal", "boolean", "additive"])
def test_attention_of_every_backend_is_exact(policy: str, backend: SDPBackend, mask: str) -> None:
    options: dict[str, Any] = {
        "none": {},
        "causal": {"is_causal": True},
        "boolean": {"attn_mask": torch.ones(8, 8, dtype=torch.bool).tril()},
        "additive": {"attn_mask": seeded(8, 8, seed=5)},
    }[mask]

    def program(scope: ScopeMaker) -> Any:
        weight, results = seeded(2, 2, 8, 16).requires_grad_(), []
        for dtype in (torch.float32, torch.float32, torch.float32, torch.bfloat16):
            weight.grad = None
            with scope(), sdpa_kernel(backend):
                query, key = weight.sin().to(dtype), weight.cos().to(dtype)
                chosen = {
                    k: v if v is True or v.dtype == torch.bool else v.to(dtype)
                    for k, v in options.items()
                }
                attended = F.scaled_dot_product_attention(query, key, key * query, **chosen)
                loss = F.gelu(attended).float().sum()
            loss.backward()
            results += [loss.detach(), weight.grad]
        return results

    assert moved_bytes(assert_exact(program, policy=policy)) > 0


@pytest.mark.parametrize("kind", ["LSTM", "GRU", "RNN"])
@pytest.mark.parametrize("is_packed", [True, False], ids=["packed", "padded"])
def test_recurrent_networks_are_exact(policy: str, kind: str, is_packed: bool) -> None:
    def forward(model: nn.Module, inputs: Tensor) -> Tensor:
        sequence: Any = inputs[:, None].expand(6, 3, 8) * torch.ones(6, 3, 1)
        if is_packed:
            sequence = nn.utils.rnn.pack_padded_sequence(sequence, torch.tensor([6, 4, 2]))
        outputs, _ = model(sequence)
        return nn.utils.rnn.pad_packed_sequence(outputs)[0] if is_packed else outputs

    def make() -> nn.Module:
        return getattr(nn, kind)(8, 8, num_layers=2, dropout=0.2, bidirectional=True)

    assert moved_bytes(assert_exact(trained(make, forward), policy=policy)) > 0


def test_cells_and_transformer_layers_are_exact(policy: str) -> None:
    class Mixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lstm, self.gru = nn.LSTMCell(8, 8), nn.GRUCell(8, 8)
            self.layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.1, batch_first=True)

        def forward(self, inputs: Tensor) -> Tensor:
            state, hidden = (inputs, inputs), inputs
            for _ in range(3):
                state = self.lstm(inputs, state)
                hidden = self.gru(state[0], hidden)
            return self.layer(hidden[None])

    assert moved_bytes(assert_exact(trained(Mixed), policy=policy)) > 0


def test_profilers_anomaly_mode_and_dispatch_modes_are_exact(policy: str) -> None:
    from torch.utils.flop_counter import FlopCounterMode

    def program(scope: ScopeMaker) -> Any:
        model, results = mlp(), []
        for step in range(3):
            with torch.profiler.profile(), FlopCounterMode(display=False) as counter:
                with scope():
                    loss = model(seeded(6, 8, seed=step)).square().mean()
                with torch.autograd.detect_anomaly(check_nan=True):
                    loss.backward()
            results.append(counter.get_total_flops() > 0)
        return [results, state_of(model)]

    assert_exact(program, policy=policy)


def test_averaged_models_and_functional_calls_are_exact(policy: str) -> None:
    def program(scope: ScopeMaker) -> Any:
        model = mlp()
        average = torch.optim.swa_utils.AveragedModel(
            model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.9)
        )
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for step in range(3):
            optimizer.zero_grad()
            scaled = {name: value * 1.5 for name, value in model.named_parameters()}
            with scope():
                outputs = torch.func.functional_call(model, scaled, seeded(6, 8, seed=step))
                loss = (outputs - average(seeded(6, 8, seed=step)).detach()).square().mean()
            loss.backward()
            optimizer.step()
            average.update_parameters(model)
        return [state_of(model), average.state_dict()]

    assert moved_bytes(assert_exact(program, policy=policy)) > 0
