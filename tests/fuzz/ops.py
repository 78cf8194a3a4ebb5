# SPDX-License-Identifier: BSD-3-Clause
"""The ops of fuzzed programs that make a tensor: from two operands and the context. Most use one."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor
from torch.autograd import forward_ad

import functions
from layers import COLUMNS, Context

Op = Callable[[Tensor, Tensor, Context], Tensor]

POINTWISE: dict[str, Op] = {
    "sin": lambda a, b, c: a.sin(),
    "sigmoid": lambda a, b, c: c.matrix(a).sigmoid(),
    "exp": lambda a, b, c: c.matrix(a).clamp(-3, 1).exp(),
    "gelu": lambda a, b, c: F.gelu(c.matrix(a)),
    "silu": lambda a, b, c: F.silu(c.matrix(a)),
    "hardswish": lambda a, b, c: F.hardswish(c.matrix(a), inplace=False),
    "softplus": lambda a, b, c: F.softplus(c.matrix(a)),
    "sqrt": lambda a, b, c: (c.matrix(a).abs() + 0.1).sqrt(),
    "power": lambda a, b, c: (c.matrix(a).abs() + 0.1).pow(1.5).clamp(max=9),
    "tanh_copy": lambda a, b, c: c.matrix(a).tanh(),
    "times_number": lambda a, b, c: a * 1.25,
    "number_minus": lambda a, b, c: 1 - a,
    "add": lambda a, b, c: c.matrix(a) + c.matrix(b),
    "add_row": lambda a, b, c: c.matrix(a) + c.matrix(b)[:1],
    "multiply": lambda a, b, c: c.matrix(a) * c.matrix(b).tanh(),
    "multiply_column": lambda a, b, c: c.matrix(a) * c.matrix(b)[:, :1].tanh(),
    "divide": lambda a, b, c: c.matrix(a) / (c.matrix(b).square() + 1),
    "square": lambda a, b, c: c.matrix(a).clamp(-2, 2) * c.matrix(a).clamp(-2, 2),
    "where": lambda a, b, c: torch.where(c.matrix(a) > c.matrix(b), c.matrix(a).sin(), c.matrix(b)),
    "maximum": lambda a, b, c: torch.maximum(c.matrix(a), c.matrix(b)),
    "lerp": lambda a, b, c: torch.lerp(c.matrix(a), c.matrix(b), 0.3),
    "addcmul": lambda a, b, c: torch.addcmul(
        c.matrix(a), c.matrix(b), c.matrix(a).tanh(), value=0.5
    ),
    "masked": lambda a, b, c: c.matrix(a).masked_fill(c.matrix(b) > 0, 0.25),
    "relu_": lambda a, b, c: (a * 2).relu_(),
    "add_": lambda a, b, c: c.matrix(a).clone().add_(1.5).tanh(),
    "chain_": lambda a, b, c: c.matrix(a).mul(2).tanh_().mul(2).add_(c.matrix(b).detach()),
    "foreach": lambda a, b, c: torch._foreach_mul([c.matrix(a), c.matrix(b)], 0.5)[0],
    "foreach_lerp": lambda a, b, c: torch._foreach_tanh([c.matrix(a), c.matrix(b).sin()])[1],
    "branch": lambda a, b, c: (
        c.matrix(a).cos() if float(c.matrix(a).detach().sum()) > 0 else a * 0.5
    ),
    "branch_shape": lambda a, b, c: c.matrix(a)[c.matrix(a)[:, 0] > 0].sin(),
}
TYPES: dict[str, Op] = {
    "half": lambda a, b, c: c.matrix(a).to(torch.bfloat16).sin().float(),
    "stays_half": lambda a, b, c: c.matrix(a).bfloat16() * 1.5,
    "double": lambda a, b, c: (c.matrix(a).double() * c.matrix(a).double()).tanh().float(),
    "stays_double": lambda a, b, c: c.matrix(a).double().sigmoid(),
    "float16": lambda a, b, c: c.matrix(a).half().tanh(),
    "complex": lambda a, b, c: torch.complex(c.matrix(a), c.matrix(b)) * (1 + 0.5j),
    "conjugate": lambda a, b, c: torch.complex(c.matrix(a), c.matrix(b)).conj().imag.sin(),
    "angle": lambda a, b, c: torch.polar(c.matrix(a).abs() + 0.1, c.matrix(b)).conj() * 0.5,
    "fft": lambda a, b, c: torch.fft.rfft(c.matrix(a)).abs(),
    "integers": lambda a, b, c: (c.matrix(a).detach() * 4).nan_to_num().clamp(-9, 9).int(),
    "booleans": lambda a, b, c: c.matrix(a) > c.matrix(b),
    "subclass": lambda a, b, c: c.matrix(a).as_subclass(Tagged).sin().as_subclass(Tensor),
    "sparse": lambda a, b, c: torch.sparse.mm(
        torch.eye(COLUMNS).to_sparse(), c.matrix(a).t()[:COLUMNS]
    ),
}
SHAPES: dict[str, Op] = {
    "transpose": lambda a, b, c: c.matrix(a).t(),
    "flip": lambda a, b, c: c.matrix(a).flip(0),
    "roll": lambda a, b, c: c.matrix(a).roll(3, 1),
    "diagonal": lambda a, b, c: c.matrix(a)[:, : c.rows].diagonal()[None],
    "slice": lambda a, b, c: c.matrix(a)[:, 1:2],
    "view": lambda a, b, c: c.matrix(a).reshape(-1, 8)[1:3],
    "strided": lambda a, b, c: c.matrix(a).contiguous()[::2].repeat_interleave(2, 0),
    "as_strided": lambda a, b, c: c.matrix(a).contiguous().as_strided((4, 8), (3, 2), 5),
    "unfold": lambda a, b, c: c.matrix(a).unfold(1, 5, 3).sin().mean(2),
    "expand": lambda a, b, c: c.matrix(a)[:1].expand(c.rows, COLUMNS),
    "big_expand": lambda a, b, c: c.matrix(a)[None].expand(8, -1, -1) * 0.5,
    "big_sum": lambda a, b, c: c.matrix(a).repeat(64, 1).sin().sum(0, keepdim=True) / 99,
    "cat": lambda a, b, c: torch.cat([c.matrix(a)[:, :5], c.matrix(b)[:, 5:]], 1),
    "stack": lambda a, b, c: torch.stack([c.matrix(a), c.matrix(b)]).mean(0),
    "chunk": lambda a, b, c: c.matrix(a).chunk(4, 1)[1] * c.matrix(b).chunk(4, 1)[3].cos(),
    "split": lambda a, b, c: sum(part.sin() for part in c.matrix(a).split([4, 20, 8], 1)[::2][:1]),
    "unbind": lambda a, b, c: c.matrix(a).unbind(0)[1],
    "tile": lambda a, b, c: c.matrix(a)[:2].tile(3, 1),
    "pad": lambda a, b, c: F.pad(c.matrix(a), (1, 2)),
    "reflect": lambda a, b, c: F.pad(c.images(a), (1, 1, 1, 1), mode="reflect"),
    "tril": lambda a, b, c: c.matrix(a).tril(),
    "empty": lambda a, b, c: c.matrix(a)[:0].sin(),
    "scalar": lambda a, b, c: c.matrix(a).mean(),
    "item": lambda a, b, c: c.matrix(a)[1, 2] * 2,
    "resized": lambda a, b, c: torch.empty(0).resize_(c.rows, COLUMNS).copy_(c.matrix(a)),
    "aliased": lambda a, b, c: torch.empty(0).set_(c.matrix(a).detach().clone()) * c.matrix(b),
}
REDUCTIONS: dict[str, Op] = {
    "mean": lambda a, b, c: c.matrix(a).mean(1, keepdim=True),
    "max": lambda a, b, c: c.matrix(a).max(0, keepdim=True).values,
    "amin": lambda a, b, c: c.matrix(a).amin(1, keepdim=True),
    "std": lambda a, b, c: (c.matrix(a) + c.matrix(a)[:, :1]).std(0) + 0 * c.matrix(b)[0],
    "norm": lambda a, b, c: (c.matrix(a) + 0.5).norm(dim=1, keepdim=True) / 4,
    "logsumexp": lambda a, b, c: c.matrix(a).logsumexp(1, keepdim=True),
    "cumsum": lambda a, b, c: c.matrix(a).tanh().cumsum(0) / 9,
    "cumprod": lambda a, b, c: c.matrix(a).sigmoid().cumprod(1),
    "sort": lambda a, b, c: c.matrix(a).sort(1).values,
    "topk": lambda a, b, c: c.matrix(a).topk(5, 1).values,
    "softmax": lambda a, b, c: c.matrix(a).softmax(1),
    "log_softmax": lambda a, b, c: c.matrix(a).log_softmax(0) / 4,
    "cross_entropy": lambda a, b, c: F.cross_entropy(c.matrix(a), c.indices(b), reduction="none"),
    "cdist": lambda a, b, c: torch.cdist(c.matrix(a), c.matrix(b) + 3) / 16,
}
INDEXING: dict[str, Op] = {
    "gather": lambda a, b, c: c.matrix(a).gather(1, c.matrix(a).argsort(1)),
    "index": lambda a, b, c: c.matrix(a)[c.indices(b)],
    "index_pair": lambda a, b, c: c.matrix(a)[c.indices(b), c.indices(a) % COLUMNS],
    "index_select": lambda a, b, c: c.matrix(a).index_select(0, c.indices(b)),
    "take_along": lambda a, b, c: c.matrix(a).take_along_dim(c.indices(b)[None, :1], 0),
    "index_put": lambda a, b, c: c.matrix(a).index_put((c.indices(b)[:3],), c.matrix(b)[0]),
    "index_accumulate": lambda a, b, c: c.matrix(a).index_put(
        (c.indices(b),), c.matrix(b), accumulate=True
    ),
    "index_add": lambda a, b, c: c.matrix(a).index_add(0, c.indices(b), c.matrix(b), alpha=0.5),
    "scatter": lambda a, b, c: c.matrix(a).scatter(0, c.indices(b)[None, :1], c.matrix(b)[:1, :1]),
    "scatter_add": lambda a, b, c: c.matrix(a).scatter_add(
        0, c.indices(b)[:, None].expand(-1, 4), c.matrix(b)[:, :4]
    ),
    "masked_select": lambda a, b, c: c.matrix(a)[c.matrix(b) > 0.1],
    "masked_scatter": lambda a, b, c: c.matrix(a).masked_scatter(
        c.matrix(b) > 0, c.matrix(b).sin()
    ),
    "embedding": lambda a, b, c: F.embedding(c.indices(a) % COLUMNS, c.layers.linear.weight),
    "embedding_bag": lambda a, b, c: F.embedding_bag(
        c.indices(a)[:8].view(2, 4) % COLUMNS, c.layers.linear.weight, mode="mean"
    ),
    "write_row": lambda a, b, c: c.matrix(a).clone().index_fill_(0, torch.tensor([2]), 0.5).cos(),
}
PRODUCTS: dict[str, Op] = {
    "matmul": lambda a, b, c: c.matrix(a) @ c.matrix(b).t() / COLUMNS,
    "square_matmul": lambda a, b, c: c.matrix(a).t() @ c.matrix(a) / COLUMNS,
    "einsum": lambda a, b, c: torch.einsum("ij,kj->ik", c.matrix(a), c.matrix(b)) / COLUMNS,
    "bmm": lambda a, b, c: c.sequences(a).bmm(c.sequences(b).transpose(1, 2)) / 8,
    "baddbmm": lambda a, b, c: torch.baddbmm(
        c.sequences(a), c.sequences(b)[:, :, :4], c.sequences(a), beta=0.5, alpha=0.25
    ),
    "outer": lambda a, b, c: torch.outer(c.matrix(a)[:, 0], c.matrix(b)[0]) / 2,
    "linear": lambda a, b, c: c.layers.linear(c.matrix(a)),
    "tied": lambda a, b, c: F.linear(c.matrix(a), c.layers.linear.weight.t()),
    "frozen": lambda a, b, c: c.matrix(a) @ c.layers.frozen,
    "solve": lambda a, b, c: torch.linalg.solve(
        torch.eye(COLUMNS) * 9 + (c.matrix(a).t() @ c.matrix(a)).tanh() / 9, c.matrix(b).t()
    ),
    "scale": lambda a, b, c: c.matrix(a) * c.layers.scale,
}
LAYERS: dict[str, Op] = {
    "layer_norm": lambda a, b, c: c.layers.norm(c.matrix(a)),
    "batch_norm": lambda a, b, c: c.layers.batch_norm(c.matrix(a)),
    "batch_norm_2d": lambda a, b, c: c.layers.batch_norm_2d(c.images(a)),
    "eval_norm": lambda a, b, c: F.batch_norm(
        c.matrix(a),
        c.layers.batch_norm.running_mean.clone(),
        c.layers.batch_norm.running_var.clone(),
    ),
    "group_norm": lambda a, b, c: c.layers.group_norm(c.matrix(a)),
    "instance_norm": lambda a, b, c: F.instance_norm(c.images(a)),
    "rms_norm": lambda a, b, c: F.rms_norm(c.matrix(a), (COLUMNS,), c.layers.scale),
    "conv": lambda a, b, c: c.layers.conv(c.matrix(a).unsqueeze(1)).squeeze(1),
    "conv_2d": lambda a, b, c: c.layers.conv_2d(c.images(a)),
    "conv_channels_last": lambda a, b, c: c.layers.conv_2d(
        c.images(a).to(memory_format=torch.channels_last)
    ),
    "conv_transpose": lambda a, b, c: F.conv_transpose2d(
        c.images(a), c.layers.conv_2d.weight, stride=2
    ),
    "max_pool": lambda a, b, c: F.max_pool2d(c.images(a), 2),
    "avg_pool": lambda a, b, c: F.avg_pool2d(c.images(a), 2),
    "interpolate": lambda a, b, c: F.interpolate(c.images(a), scale_factor=2, mode="bilinear"),
    "lstm": lambda a, b, c: c.layers.lstm(c.sequences(a))[0],
    "gru": lambda a, b, c: c.layers.gru(c.sequences(a))[0],
    "attend": lambda a, b, c: F.scaled_dot_product_attention(c.heads(a), c.heads(b), c.heads(a)),
    "attend_causal": lambda a, b, c: F.scaled_dot_product_attention(
        c.heads(a), c.heads(b), c.heads(b), is_causal=True
    ),
    "spectral": lambda a, b, c: c.layers.spectral(c.matrix(a)),
    "cache": lambda a, b, c: c.matrix(a) * remember(b, c),
    "average": lambda a, b, c: c.matrix(a) - move_average(b, c),
}
RANDOM: dict[str, Op] = {
    "dropout": lambda a, b, c: F.dropout(c.matrix(a), 0.4),
    "feature_dropout": lambda a, b, c: F.dropout2d(c.images(a), 0.3),
    "alpha_dropout": lambda a, b, c: F.alpha_dropout(c.matrix(a), 0.2, training=True),
    "rrelu": lambda a, b, c: F.rrelu(c.matrix(a), training=True),
    "noise": lambda a, b, c: c.matrix(a) + torch.rand_like(c.matrix(a)),
    "noise_": lambda a, b, c: c.matrix(a) * torch.empty(c.rows, COLUMNS).uniform_(),
    "normal": lambda a, b, c: torch.normal(c.matrix(a).detach(), 0.5) * c.matrix(b),
    "bernoulli": lambda a, b, c: c.matrix(a) * torch.bernoulli(c.matrix(b).sigmoid().detach()),
    "own_generator": lambda a, b, c: (
        c.matrix(a) * torch.rand(c.rows, 1, generator=c.layers.generator)
    ),
    "own_bernoulli": lambda a, b, c: (
        c.matrix(a).clone().bernoulli_(0.5, generator=c.layers.generator) * c.matrix(b)
    ),
    "permute": lambda a, b, c: c.matrix(a)[torch.randperm(c.rows)],
    "multinomial": lambda a, b, c: c.matrix(a)[
        torch.multinomial(c.matrix(b).sigmoid().sum(1).detach().nan_to_num(1), 4)
    ],
    "gumbel": lambda a, b, c: F.gumbel_softmax(c.matrix(a)),
    "attend_dropout": lambda a, b, c: F.scaled_dot_product_attention(
        c.heads(a), c.heads(b), c.heads(a), dropout_p=0.3
    ),
    "attention": lambda a, b, c: c.layers.attention(*[c.matrix(a)[None]] * 3)[0][0],
    "draws": lambda a, b, c: functions.DrawsRandom.apply(c.matrix(a)),
}
CUSTOM: dict[str, Op] = {
    "saves_input": lambda a, b, c: functions.SavesInput.apply(c.matrix(a)),
    "saves_output": lambda a, b, c: functions.SavesOutput.apply(c.matrix(a)),
    "saves_between": lambda a, b, c: functions.SavesBetween.apply(c.matrix(a), c.matrix(b)),
    "returns_saved": lambda a, b, c: functions.ReturnsSaved.apply(c.matrix(a), c.matrix(b)),
    "returns_saved_to_leaf": lambda a, b, c: functions.ReturnsSaved.apply(
        c.layers.scale, c.matrix(a)[0].sin()
    ),
    "reads_twice": lambda a, b, c: functions.ReadsTwice.apply(c.matrix(a), c.matrix(b).tanh()),
    "marks_dirty": lambda a, b, c: functions.MarksDirty.apply(c.matrix(a).sin()),
    "keeps_on_context": lambda a, b, c: functions.KeepsOnContext.apply(c.matrix(a)),
    "many_outputs": lambda a, b, c: functions.ManyOutputs.apply(c.matrix(a), c.matrix(b))[0],
    "some_output": lambda a, b, c: functions.ManyOutputs.apply(c.matrix(a), c.matrix(b))[1] + 0.5,
    "straight": lambda a, b, c: functions.Straight.apply(a),
    "grad_inside": lambda a, b, c: functions.UsesGradInside.apply(c.matrix(a)),
    "dual": lambda a, b, c: forward_derivative(c.matrix(a), c.matrix(b).detach()),
    "keep": lambda a, b, c: c.harness.keep(c.matrix(a).sin()).cos(),
    "marked": lambda a, b, c: mark(c.matrix(a).tanh()).cos(),
    "slope": lambda a, b, c: slope_of(c.matrix(a)),
    "hooked": lambda a, b, c: hooked(c.matrix(a)),
    "raises_in_backward": lambda a, b, c: (
        functions.RaisesInBackward if c.step % 3 == 1 else functions.SavesInput
    ).apply(c.matrix(a)),
}


class Tagged(Tensor):
    """A subclass with no behaviour of its own."""


def remember(tensor: Tensor, context: Context) -> Tensor:
    """Appends to a cache that a later call overwrites, as key-value caches do."""
    with torch.no_grad():
        context.layers.cache[: context.rows].copy_(context.matrix(tensor))
    return context.layers.cache[: context.rows]


def move_average(tensor: Tensor, context: Context) -> Tensor:
    average = context.layers.average
    average.mul_(0.9).add_(context.matrix(tensor).detach().mean(0), alpha=0.1)
    return average.clone()


def forward_derivative(tensor: Tensor, direction: Tensor) -> Tensor:
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(tensor, direction)
        primal, tangent = forward_ad.unpack_dual((dual.sin() * dual).tanh())
        return primal + tangent


def mark(tensor: Tensor) -> Tensor:
    tensor._do_not_offload = True
    return tensor


def slope_of(tensor: Tensor) -> Tensor:
    """A gradient taken inside the forward pass, part of the graph."""
    if not torch.is_grad_enabled():
        return tensor.cos()
    point = tensor if tensor.requires_grad else tensor.detach().requires_grad_()
    (slope,) = torch.autograd.grad((point.sin() * point).sum(), point, create_graph=True)
    return slope


def hooked(tensor: Tensor) -> Tensor:
    result = tensor.sin()
    if result.requires_grad:
        result.register_hook(lambda gradient: gradient * 0.5)
    return result
