# SPDX-License-Identifier: BSD-3-Clause
"""A trace of a step that never ran."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._pytree import tree_leaves

from torchlms.api import disabled
from torchlms.config import Config, read_fields
from torchlms.fields import bad_value
from torchlms.plan_file import TraceFile

if TYPE_CHECKING:
    from torchlms.fake_step import FakeStep
    from torchlms.roofline import Roofline


def dry_run(
    fn: Callable[..., torch.Tensor],
    /,
    *args: Any,
    flops_per_s: float | None = None,
    bytes_per_s: float | None = None,
    **kwargs: Any,
) -> TraceFile:
    """Records one forward and backward pass of `fn(*args, **kwargs)` under fake tensors.

    Nothing is computed and no memory is taken, so that a step that fits nowhere can be planned:
    `torchlms.dry_run(fn, x).plan("8GiB")`, or `torchlms plan` on the saved trace. Real tensors
    that `fn` meets (parameters, buffers, inputs) are neither read nor written, and gradients stay
    as they are. They may also lie on the meta device or be fake already.

    Times are estimates: of each op the larger of its arithmetic and its bytes, at the given rates.
    Memory that an op takes and gives back while it runs (workspaces, such as the buffer of an
    unfolded convolution, and all that oneDNN allocates) is not seen, so that the real peak may be
    higher; neither is the workspace that oneDNN's LSTM layer saves for backward.

    Args:
        fn: returns the loss. Of any other tensor the sum is taken.
        flops_per_s, bytes_per_s: what the device does; by default that of a matrix product and a
            copy, measured on this machine.

    Raises:
        TypeError: `fn` returned no tensor.
        ValueError: a rate that is not above zero.
        Whatever PyTorch raises where fake tensors cannot go, such as control flow that depends on
        data, or a loss without gradients.
    """
    # What these import is much, and needed nowhere else.
    from torch._guards import detect_fake_mode
    from torch._subclasses.fake_tensor import FakeTensorMode

    from torchlms.fake_step import FakeStep

    roofline = _roofline(flops_per_s, bytes_per_s)
    tensors = [*_tensors_of(fn), *_tensors_of(getattr(fn, "__self__", None))]
    tensors += [tensor for leaf in tree_leaves((args, kwargs)) for tensor in _tensors_of(leaf)]
    fake_mode = detect_fake_mode(tensors) or FakeTensorMode(allow_non_fake_inputs=True)
    fields, _ = read_fields(Config())
    step = FakeStep(fake_mode, roofline, fields["min_offload_bytes"])
    with disabled(), fake_mode, step:
        step.count_older(tensors)
        with torch.autograd.graph.saved_tensors_hooks(step.pack, step.unpack):
            loss = fn(*args, **kwargs)
            if not isinstance(loss, torch.Tensor):
                raise TypeError(
                    f"torchlms.dry_run: expected fn to return a tensor, got {type(loss).__name__}"
                )
            if loss.dim() > 0:
                loss = loss.sum()
        step.end_forward()
        with _gradients_kept(loss, step):
            loss.backward()  # type: ignore[no-untyped-call]
        return TraceFile(step.finish(), "the trace of a dry run")


def _roofline(flops_per_s: float | None, bytes_per_s: float | None) -> Roofline:
    from torchlms.roofline import Roofline

    for name, rate in (("flops_per_s", flops_per_s), ("bytes_per_s", bytes_per_s)):
        if rate is not None and not rate > 0:
            raise bad_value(name, rate, "is not above zero", "a number above 0")
    if flops_per_s is None or bytes_per_s is None:
        measured = Roofline.of_this_machine()
        flops_per_s = flops_per_s or measured.flops_per_s
        bytes_per_s = bytes_per_s or measured.bytes_per_s
    return Roofline(flops_per_s, bytes_per_s)


def _tensors_of(value: Any) -> list[torch.Tensor]:
    """A tensor, or those of a module, with their gradients."""
    if isinstance(value, torch.nn.Module):
        tensors = [*value.parameters(), *value.buffers()]
    else:
        tensors = [value] if isinstance(value, torch.Tensor) else []
    gradients = [tensor.grad for tensor in tensors if tensor.is_leaf]
    return tensors + [gradient for gradient in gradients if gradient is not None]


@contextlib.contextmanager
def _gradients_kept(loss: torch.Tensor, step: FakeStep) -> Iterator[None]:
    """Inside, the leaves of the graph have fake gradients where they have any; outside, those that
    they had."""
    before = [(leaf, leaf.grad) for leaf in _leaves(loss)]
    try:
        for leaf, gradient in before:
            leaf.grad = None if gradient is None else step.fake(gradient)
        yield
    finally:
        for leaf, gradient in before:
            leaf.grad = gradient


def _leaves(loss: torch.Tensor) -> list[torch.Tensor]:
    nodes = [loss.grad_fn]
    seen = set(nodes)
    leaves = []
    while nodes:
        node = nodes.pop()
        if node is None:
            continue
        if hasattr(node, "variable"):
            leaves.append(node.variable)
        for following, _ in node.next_functions:
            if following not in seen:
                seen.add(following)
                nodes.append(following)
    return leaves
