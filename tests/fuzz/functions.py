# SPDX-License-Identifier: BSD-3-Clause
"""Custom autograd Functions that save, return and change tensors in every way that is allowed."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable


class SavesInput(Function):
    @staticmethod
    def forward(ctx: Any, a: Tensor) -> Tensor:
        ctx.save_for_backward(a)
        return a.sin()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        (a,) = ctx.saved_tensors
        return gradient * a.cos()


class SavesOutput(Function):
    @staticmethod
    def forward(ctx: Any, a: Tensor) -> Tensor:
        result = a.tanh()
        ctx.save_for_backward(result)
        return result

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        (result,) = ctx.saved_tensors
        return gradient * (1 - result * result)


class SavesBetween(Function):
    """What it saves is neither an input nor an output, and is saved twice as two views."""

    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor) -> Tensor:
        between = a.cos() + b.sin()
        ctx.save_for_backward(between, between.t(), b)
        return between * b

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
        between, transposed, b = ctx.saved_tensors
        return gradient * b.tanh(), gradient * transposed.t() + between * 0.1


class ReturnsSaved(Function):
    """A saved tensor is itself the gradient, which AccumulateGrad may steal."""

    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor) -> Tensor:
        ctx.save_for_backward(b)
        return (a * b).sum()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        (b,) = ctx.saved_tensors
        return b, None


class ReadsTwice(Function):
    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor) -> Tensor:
        ctx.save_for_backward(a, b)
        return a * b

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
        first, _ = ctx.saved_tensors
        _, second = ctx.saved_tensors
        return gradient * second, gradient * first


class MarksDirty(Function):
    @staticmethod
    def forward(ctx: Any, a: Tensor) -> Tensor:
        a.mul_(0.5).tanh_()
        ctx.mark_dirty(a)
        ctx.save_for_backward(a)
        return a

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        (result,) = ctx.saved_tensors
        return gradient * (1 - result.square()) * 0.5


class KeepsOnContext(Function):
    """A tensor held by the context itself, past save_for_backward."""

    @staticmethod
    def forward(ctx: Any, a: Tensor) -> Tensor:
        ctx.between = a.exp().clamp(max=5)
        return ctx.between.sqrt()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient * ctx.between.sqrt() / 2


class ManyOutputs(Function):
    """One output is not differentiable, one may get no gradient, an input gets none."""

    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        ctx.set_materialize_grads(False)
        signs = (a > b).float()
        ctx.mark_non_differentiable(signs)
        ctx.save_for_backward(signs, a)
        return a.sin(), a * signs, signs

    @staticmethod
    def backward(ctx: Any, first: Tensor | None, second: Tensor | None, _: Any) -> tuple[Any, None]:
        signs, a = ctx.saved_tensors
        total = torch.zeros_like(a)
        if first is not None:
            total = total + first * a.cos()
        if second is not None:
            total = total + second * signs
        return total, None


class Straight(Function):
    """Saves nothing, returns a view of its input."""

    @staticmethod
    def forward(ctx: Any, a: Tensor) -> Tensor:
        return a.view_as(a)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient * 0.9


class RaisesInBackward(Function):
    @staticmethod
    def forward(ctx: Any, a: Tensor) -> Tensor:
        ctx.save_for_backward(a)
        return a * 2

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        (a,) = ctx.saved_tensors
        raise ArithmeticError(f"a gradient of shape {tuple(a.shape)} is refused")


class DrawsRandom(Function):
    """Draws in forward and again in backward, from the generator that everybody uses."""

    @staticmethod
    def forward(ctx: Any, a: Tensor) -> Tensor:
        mask = torch.rand_like(a) > 0.3
        ctx.save_for_backward(mask)
        return a * mask

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        (mask,) = ctx.saved_tensors
        return gradient * mask + torch.rand_like(gradient) * 1e-3


class UsesGradInside(Function):
    """Builds a graph of its own in forward and goes backward through it: what reentrant
    checkpointing does."""

    @staticmethod
    def forward(ctx: Any, a: Tensor) -> Tensor:
        with torch.enable_grad():
            inner = a.detach().requires_grad_()
            result = (inner.sin() * inner).tanh()
        ctx.inner, ctx.result = inner, result
        return result.detach()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        (slope,) = torch.autograd.grad(ctx.result, ctx.inner, gradient, retain_graph=True)
        return slope
