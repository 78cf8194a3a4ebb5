# SPDX-License-Identifier: BSD-3-Clause
"""How long an op should take: the larger of what its arithmetic and what its bytes need."""

from __future__ import annotations

import dataclasses
import functools
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

_aten = torch.ops.aten
_COUNTED_AS = {  # the same arguments in the same places
    _aten._scaled_dot_product_flash_attention_for_cpu: _aten._scaled_dot_product_flash_attention,
    _aten._scaled_dot_product_flash_attention_for_cpu_backward: (
        _aten._scaled_dot_product_flash_attention_backward
    ),
}

_EMPTY = {
    _aten.empty,
    _aten.empty_like,
    _aten.empty_strided,
    _aten.new_empty,
    _aten.new_empty_strided,
}


@dataclasses.dataclass(frozen=True)
class Roofline:
    """Arithmetic and bytes that a device does in a second. Immutable."""

    flops_per_s: float
    bytes_per_s: float

    @classmethod
    def of_this_machine(cls) -> Roofline:
        """Rates of one matrix product and one copy, measured at first use."""
        with _disable_current_modes(), torch.no_grad():
            return cls(_measure_flops_per_s(), _measure_bytes_per_s())

    def op_us(
        self,
        op: torch._ops.OpOverload[..., Any],
        args: Sequence[Any],
        kwargs: dict[str, Any],
        result: Any,
    ) -> float:
        """The time of one call; what makes views or empty tensors takes none."""
        outputs = _tensors(result)
        inputs = _tensors((args, kwargs))
        is_alias = not op._schema.is_mutable and _storages(outputs) <= _storages(inputs)
        if is_alias or op._overloadpacket in _EMPTY:
            return 0.0
        flops = 0
        formula = flop_registry.get(_COUNTED_AS.get(op._overloadpacket, op._overloadpacket))
        if formula is not None:
            flops = formula(*args, **kwargs, out_val=result)
        moved = sum(tensor.numel() * tensor.itemsize for tensor in (*inputs, *outputs))
        return 1e6 * max(flops / self.flops_per_s, moved / self.bytes_per_s)


def _storages(tensors: Sequence[torch.Tensor]) -> set[int]:
    return {
        tensor.untyped_storage()._cdata if tensor.layout is torch.strided else id(tensor)
        for tensor in tensors
    }


def _tensors(tree: Any) -> list[torch.Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


def _shortest_s(run: Callable[[], object], repeats: int) -> float:
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return min(times)


@functools.cache
def _measure_flops_per_s(size: int = 768) -> float:
    factor = torch.ones(size, size)
    product = torch.empty(size, size)
    return 2 * size**3 / _shortest_s(lambda: torch.mm(factor, factor, out=product), 5)


@functools.cache
def _measure_bytes_per_s(size: int = 1 << 23) -> float:
    source, target = torch.ones(size), torch.empty(size)
    return 2 * source.nbytes / _shortest_s(lambda: target.copy_(source), 5)
