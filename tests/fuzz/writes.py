# SPDX-License-Identifier: BSD-3-Clause
"""The ops of fuzzed programs that change their first operand, which the program goes on using."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

import functions
from layers import Context

Write = Callable[[Tensor, Tensor, Context], object]

WRITES: dict[str, Write] = {
    "write": lambda a, b, c: a.mul_(0.5),
    "write_relu": lambda a, b, c: torch.relu_(a),
    "write_tensor": lambda a, b, c: a.add_(apart(a, b, c).mean().to(a.dtype)),
    "write_detached": lambda a, b, c: a.detach().mul_(0.75),
    "write_unseen": lambda a, b, c: without_gradients(a),
    "write_copy": lambda a, b, c: a.copy_(apart(a, b, c)[:1, :1]),
    "write_zero": lambda a, b, c: a.zero_(),
    "write_filled": lambda a, b, c: a.masked_fill_(a > 0.5, 0.5),
    "write_dirty": lambda a, b, c: functions.MarksDirty.apply(a),
    "write_view": lambda a, b, c: a[:1].add_(c.matrix(b).detach()[:1, :1].to(a.dtype)),
    "write_slice": lambda a, b, c: a[..., ::2].mul_(0.5),
    "write_row": lambda a, b, c: a[-1].fill_(0.25),
    "write_flat": lambda a, b, c: a.view(-1)[3:9].sigmoid_(),
    "write_transposed": lambda a, b, c: a.t()[:1].tanh_(),
    "write_diagonal": lambda a, b, c: a.diagonal().add_(0.5),
    "write_item": lambda a, b, c: a.__setitem__((0, 0), apart(a, b, c)[0, 1].to(a.dtype)),
    "write_indexed": lambda a, b, c: a.__setitem__(torch.tensor([0, 1]), 0.5),
    "write_put": lambda a, b, c: a.index_put_((torch.tensor([1]),), a[:1].detach() * 0.5),
    "write_scatter": lambda a, b, c: a.scatter_(0, torch.zeros(1, 1, dtype=torch.long), 0.75),
    "write_part": lambda a, b, c: a.chunk(2, -1)[0].mul_(2),
    "write_foreach": lambda a, b, c: torch._foreach_mul_([a, torch.ones(3)], 0.5),
    "write_out": lambda a, b, c: write_out(a),
    "write_shape": lambda a, b, c: a.unsqueeze_(0),
    "write_transpose": lambda a, b, c: a.transpose_(0, 1),
    "write_twice": lambda a, b, c: a.sin_().mul_(0.5),
    "write_base": lambda a, b, c: (a._base if a._base is not None else a).mul_(0.9),
    "write_cache": lambda a, b, c: c.layers.cache.mul_(0.5),
    "write_random": lambda a, b, c: a.detach().uniform_(-1, 1),
}


def apart(written: Tensor, other: Tensor, context: Context) -> Tensor:
    """The other operand, detached where it is a view of the one that is written: PyTorch itself never
    frees such a graph."""
    shared = written.untyped_storage().data_ptr() == other.untyped_storage().data_ptr()
    return context.matrix(other.detach() if shared else other)


def is_writable(tensor: Tensor) -> bool:
    """PyTorch refuses writes to expanded tensors; the rest is for it to judge."""
    return 0 not in tensor.stride() and tensor.numel() > 1 and tensor.is_floating_point()


def without_gradients(tensor: Tensor) -> None:
    with torch.no_grad():
        tensor.mul_(0.8)


def write_out(tensor: Tensor) -> None:
    with torch.no_grad():
        torch.mul(tensor, 0.9, out=tensor)
