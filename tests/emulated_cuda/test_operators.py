# SPDX-License-Identifier: BSD-3-Clause
"""Operators on the emulated device have the CPU's bits where the CPU's kernel computes them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

Program = Callable[[str], object]


def data(device: str, *shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(len(shape))).to(device)


def embedding(device: str) -> Tensor:
    table = data(device, 10, 4).requires_grad_()
    F.embedding(torch.tensor([[1, 2], [9, 1]], device=device), table).sum().backward()
    return table.grad


def norm_over_batch(device: str) -> list[Tensor]:
    norm = torch.nn.BatchNorm2d(3).to(device)
    out = norm(data(device, 4, 3, 5, 5))
    return [out, norm.running_mean, norm.running_var, norm.num_batches_tracked]


def attention(device: str) -> Tensor:
    q, k, v = data(device, 2, 3, 8, 4).split(1)[0].expand(3, 1, 3, 8, 4).unbind()
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def gradients(device: str) -> list[Tensor]:
    x = data(device, 2, 3, 8, 8).requires_grad_()
    w = data(device, 4, 3, 3, 3).mul(0.1).requires_grad_()
    (F.conv2d(x, w, stride=2, padding=1).relu() ** 2).sum().backward()
    return [x.grad, w.grad]


def optimizer(device: str) -> list[Tensor]:
    weights = [data(device, 5, 5).requires_grad_(), data(device, 7).requires_grad_()]
    adam = torch.optim.AdamW(weights, foreach=True)
    for _ in range(3):
        sum((w**2).sum() for w in weights).backward()
        adam.step()
    return weights


def clipped(device: str) -> list[Tensor]:
    weights = [data(device, 5, 5).requires_grad_(), data(device, 7).requires_grad_()]
    sum((w**2).sum() for w in weights).backward()
    norm = torch.nn.utils.clip_grad_norm_(weights, 0.1)
    return [norm, *(w.grad for w in weights)]


def resized_output(device: str) -> Tensor:
    out = torch.empty(0, device=device)
    torch.add(data(device, 3, 4), 1, out=out)
    return out


def overlapping_slices(device: str) -> Tensor:
    x = torch.arange(6.0, device=device)
    x[1:].add_(x[:-1].clone())
    return x.add_(x)


PROGRAMS: list[Program] = [
    lambda d: torch.arange(3, 20, 2, device=d),
    lambda d: torch.linspace(0, 1, 7, device=d),
    lambda d: torch.eye(4, device=d).tril(-1),
    lambda d: torch.full((2, 3), 7, device=d, dtype=torch.int16),
    lambda d: torch.tensor([1.5, 2.5], device=d) * 2 + torch.tensor(3.0),
    lambda d: torch.cat([data(d, 2, 3), data(d, 4, 3), data(d, 0, 3)]),
    lambda d: torch.stack([data(d, 2, 3), data(d, 2, 3).flip(1)], -1),
    lambda d: data(d, 5, 6)[[0, 3], 1:4],
    lambda d: data(d, 5, 6)[data(d, 5, 6) > 0],
    lambda d: data(d, 5, 6).nonzero(),
    lambda d: data(d, 50).mul(2).round().unique(return_inverse=True, return_counts=True),
    lambda d: data(d, 5, 6).masked_fill(data(d, 5, 6) > 0, 1.0),
    lambda d: data(d, 5, 6).index_put(
        (torch.tensor([1, 1], device=d),), data(d, 2, 6), accumulate=True
    ),
    lambda d: data(d, 5, 6).half().double().to(torch.int32),
    lambda d: data(d, 5, 6).t().contiguous(),
    lambda d: torch.zeros(6, 5, device=d).t().copy_(data(d, 5, 6)),
    lambda d: data(d, 4, 6, 5).permute(2, 0, 1).reshape(10, 12),
    lambda d: data(d, 1, 5).expand(4, 5).clone(),
    lambda d: data(d, 5, 6).sort(1, descending=True),
    lambda d: data(d, 5, 6).topk(3),
    lambda d: data(d, 5, 6).var(1),
    lambda d: data(d, 5, 6).softmax(1).log(),
    lambda d: (data(d, 5, 6) @ data(d, 6, 7)).sum(),
    lambda d: torch.where(data(d, 5, 6) > 0, data(d, 5, 6), 0.0),
    lambda d: F.layer_norm(data(d, 5, 6), (6,), data(d, 6), data(d, 6)),
    lambda d: F.group_norm(data(d, 2, 4, 3), 2),
    lambda d: F.conv2d(data(d, 2, 3, 8, 8), data(d, 4, 3, 3, 3), stride=2),
    lambda d: F.conv_transpose1d(data(d, 2, 3, 8), data(d, 3, 4, 3)),
    lambda d: F.max_pool2d(data(d, 2, 3, 8, 8), 2, return_indices=True),
    lambda d: F.interpolate(data(d, 1, 2, 4, 4), scale_factor=2, mode="bilinear"),
    lambda d: F.cross_entropy(data(d, 5, 6), torch.arange(5, device=d)),
    lambda d: F.gelu(data(d, 5, 6)),
    lambda d: torch.fft.rfft(data(d, 8)),
    lambda d: torch.linalg.solve(data(d, 4, 4), data(d, 4, 2)),
    lambda d: torch.view_as_complex(data(d, 3, 2)).conj() * 2,
    lambda d: torch.repeat_interleave(data(d, 3), torch.tensor([1, 0, 2], device=d)),
    lambda d: torch.equal(data(d, 3), data(d, 3)),
    lambda d: F.embedding_bag(torch.tensor([[1, 2], [0, 1]], device=d), data(d, 4, 3)),
    embedding,
    norm_over_batch,
    attention,
    gradients,
    optimizer,
    clipped,
    resized_output,
    overlapping_slices,
]


def tensors(value: object) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [value]
    return [t for v in value for t in tensors(v)] if isinstance(value, (list, tuple)) else []


@pytest.mark.parametrize("program", PROGRAMS)
def test_an_operator_has_the_bits_and_the_layout_of_the_cpu(program: Program) -> None:
    wanted, got = program("cpu"), program("cuda")
    if not tensors(wanted):
        assert wanted == got
    for a, b in zip(tensors(wanted), tensors(got), strict=True):
        assert b.is_cuda
        assert (a.dtype, a.shape, a.stride()) == (b.dtype, b.shape, b.stride())
        assert torch.equal(a, b.cpu())


def test_lstm_and_gru_agree_with_the_cpu() -> None:
    for layer in (torch.nn.LSTM(5, 8, 2), torch.nn.GRU(5, 8, 2), torch.nn.LSTM(5, 8, bias=False)):
        x = data("cpu", 6, 3, 5)
        wanted = layer(x)[0]
        wanted.square().sum().backward()
        grads = [p.grad.clone() for p in layer.parameters()]
        layer.zero_grad()
        layer.cuda()
        got = layer(x.cuda())[0]
        got.square().sum().backward()
        torch.testing.assert_close(got.cpu(), wanted)
        for p, grad in zip(layer.parameters(), grads, strict=True):
            torch.testing.assert_close(p.grad.cpu(), grad, rtol=1e-4, atol=1e-5)


def test_random_numbers_come_from_the_device_s_generator() -> None:
    torch.manual_seed(7)
    on_cpu = torch.randn(5)
    untouched = torch.get_rng_state()
    torch.cuda.manual_seed(7)
    first = torch.randn(5, device="cuda")
    state = torch.cuda.get_rng_state()
    second = torch.rand(5, device="cuda")
    torch.cuda.set_rng_state(state)
    assert torch.equal(first.cpu(), on_cpu)
    assert torch.equal(second, torch.rand(5, device="cuda"))
    assert not torch.equal(second, torch.rand(5, device="cuda"))
    assert torch.equal(torch.get_rng_state(), untouched)
    own = torch.Generator("cuda").manual_seed(7)
    assert torch.equal(torch.randn(5, device="cuda", generator=own), first)
    assert sorted(torch.randperm(9, device="cuda").tolist()) == list(range(9))


def test_dropout_draws_from_the_device_s_generator_and_scales() -> None:
    torch.cuda.manual_seed(1)
    x = torch.ones(1000, device="cuda", requires_grad=True)
    y = F.dropout(x, 0.25)
    y.sum().backward()
    assert set(y.tolist()) == {0.0, torch.tensor(1 / 0.75).item()}
    assert torch.equal(x.grad, y.detach())
    torch.cuda.manual_seed(1)
    assert torch.equal(F.dropout(x, 0.25), y)


def test_automatic_mixed_precision_with_a_scaler_trains() -> None:
    layer = torch.nn.Linear(4, 4).cuda()
    sgd, scaler = torch.optim.SGD(layer.parameters(), 0.1), torch.amp.GradScaler("cuda")
    before = layer.weight.detach().clone()
    with torch.autocast("cuda", torch.float16):
        out = layer(data("cuda", 3, 4))
    assert out.dtype == torch.float16
    scaler.scale(out.float().square().mean()).backward()
    scaler.step(sgd)
    scaler.update()
    assert not torch.equal(before, layer.weight)


def test_an_error_that_needs_no_data_is_raised_at_the_call() -> None:
    with pytest.raises(RuntimeError, match="size"):
        torch.ones(3, device="cuda") + torch.ones(4, device="cuda")
    with pytest.raises(RuntimeError, match="shape"):
        torch.ones(3, 2, device="cuda") @ torch.ones(3, 2, device="cuda")
    assert torch.ones(3, device="cuda").sum().item() == 3
