# SPDX-License-Identifier: BSD-3-Clause
"""A step under fake tensors, observed op by op and written down as the recorder of real steps does.

The counterpart of csrc/hooks.cpp and csrc/tape_recording.cpp, which say more about each rule.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

from torchlms import _C
from torchlms.fake_storages import FakeStorages, Slot
from torchlms.roofline import Roofline

Op = torch._ops.OpOverload[..., Any]

_NO_OP = -1
_NUMBER = torch.zeros(())  # stands for a number that PyTorch passes where the schema has a tensor


@dataclasses.dataclass
class _Handle:
    """What autograd stores for a saved tensor: no tensor, so that what the program drops dies."""

    storages: FakeStorages
    slot: Slot
    size: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device

    def __del__(self) -> None:
        self.storages.drop_handle(self.slot)


class FakeStep(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """One forward and backward pass under `fake_mode`, which lies below it on the stack of modes.

    Real tensors that ops meet are replaced by fake ones and count as alive at entry: they are
    neither read nor written. Thread-safety: none.
    """

    def __init__(
        self, fake_mode: FakeTensorMode, roofline: Roofline, min_offload_bytes: int
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._fake_mode = fake_mode
        self._roofline = roofline
        self._recorder = _C.Recorder()
        self._storages = FakeStorages(self._recorder, min_offload_bytes)
        self._stand_ins: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}  # by id of the first
        self._num_ops = 0
        self._is_idle = False
        self._is_backward = False

    def count_older(self, tensors: Iterable[torch.Tensor]) -> None:
        """Counts tensors that are held all the time, whether ops meet them or not."""
        for tensor in tensors:
            self.fake(tensor)

    def fake(self, tensor: torch.Tensor) -> torch.Tensor:
        """The fake tensor that stands for a real one; a fake one as it is."""
        if not isinstance(tensor, FakeTensor):
            if id(tensor) not in self._stand_ins:
                stand_in = self._fake_mode.from_tensor(tensor, static_shapes=True)
                self._stand_ins[id(tensor)] = (tensor, stand_in)
            tensor = self._stand_ins[id(tensor)][1]
        if _is_plain(tensor):
            self._storages.slot_of(tensor, is_root=True)
        return tensor

    def pack(self, tensor: torch.Tensor) -> object:
        """The hook for tensors that autograd saves."""
        is_kept = bool(getattr(tensor, "_do_not_offload", False))
        tensor = self.fake(tensor)
        if not _is_plain(tensor):
            return tensor.detach()
        self._storages.poll_deaths()
        slot = self._storages.add_handle(tensor, is_kept=is_kept)
        size, stride = tuple(tensor.shape), tuple(tensor.stride())
        return _Handle(self._storages, slot, size, stride, tensor.dtype, tensor.device)

    def unpack(self, packed: object) -> torch.Tensor:
        """The hook for backward, which gets a new fake tensor."""
        if not isinstance(packed, _Handle):
            assert isinstance(packed, torch.Tensor)
            return packed.detach()
        self.end_forward()
        self._storages.add_event(_C.EventKind.UNPACK, packed.slot)
        node = torch._C._current_autograd_node()
        self._recorder.set_backward_node("" if node is None else node.name())
        self._is_idle = True
        try:
            tensor = torch.empty_strided(
                packed.size, packed.stride, dtype=packed.dtype, device=packed.device
            )
        finally:
            self._is_idle = False
        self._storages.hold(tensor.untyped_storage(), packed.slot)
        return tensor

    def end_forward(self) -> None:
        """What follows belongs to backward, if not so already."""
        self._storages.poll_deaths()
        self._is_backward = True
        self._recorder.end_forward()

    def finish(self) -> str:
        """The trace, as JSON."""
        return self._storages.finish()

    def __torch_dispatch__(
        self,
        func: Op,
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if self._is_idle or func.namespace == "prim":
            return func(*args, **kwargs)
        args, kwargs = tree_map_only(torch.Tensor, self.fake, (args, kwargs))
        if self._is_backward:
            return self._run(func, args, kwargs)[0]
        # PyTorch itself detaches subclasses when it saves or wraps them; it costs nothing.
        if torch.is_grad_enabled() and func is not torch.ops.aten.detach.default:
            return self._record(func, args, kwargs)
        if func._schema.is_mutable:
            self._note_unseen_writes(func, args, kwargs)
        return self._run(func, args, kwargs)[0]

    def _run(self, op: Op, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, float]:
        result = op(*args, **kwargs)
        for tensor in _plain_tensors(result):
            self._storages.slot_of(tensor)
        duration_us = self._roofline.op_us(op, args, kwargs, result)
        self._storages.now_us += duration_us
        return result, duration_us

    def _record(self, op: Op, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        arguments = _in_order(op, args, kwargs)
        is_replayable, written_places = _purity(op, args, kwargs)
        inputs: list[tuple[int, Slot]] = []
        written: list[tuple[int, Slot]] = []
        changed = []
        for place, argument in enumerate(arguments):
            for tensor in _plain_tensors(argument):
                inputs.append(self._value_of(tensor, _NO_OP))
                if place in written_places:
                    written.append(inputs[-1])
                    alias = op._schema.arguments[place].alias_info
                    changed += [tensor] if alias is not None and alias.is_write else []
        signature = _signature(op, arguments, inputs)
        self._storages.poll_deaths()
        result, duration_us = self._run(op, args, kwargs)
        self._storages.note_changes(changed)
        outputs = [self._value_of(tensor, self._num_ops) for tensor in _plain_tensors(result)]
        self._recorder.add_op(
            name=_name(op),
            signature=signature,
            duration_us=duration_us,
            inputs=[value for value, _ in inputs],
            outputs=[value for value, _ in outputs],
            written=_left_changed(inputs, outputs, written),
            is_replayable=is_replayable and _is_all_plain((arguments, result)),
            **self._storages.sample(),
        )
        self._num_ops += 1
        self._storages.poll_deaths()
        return result

    def _value_of(self, tensor: torch.Tensor, producer: int) -> tuple[int, Slot]:
        return self._storages.value_of(tensor, producer), self._storages.slot_of(tensor)

    def _note_unseen_writes(self, op: Op, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        arguments = _in_order(op, args, kwargs)
        for place in _purity(op, args, kwargs)[1]:
            tensors = _plain_tensors(arguments[place])
            self._storages.note_changes(tensors)
            for tensor in tensors:
                self._recorder.set_opaque(self._storages.slot_of(tensor).number)


def _left_changed(
    inputs: Sequence[tuple[int, Slot]],
    outputs: Sequence[tuple[int, Slot]],
    written: Sequence[tuple[int, Slot]],
) -> list[int]:
    """The outputs on storages that the op made, and on those that it wrote; the latter at last
    where it returns none."""
    read, wrote, returned = (
        {slot.number for _, slot in values} for values in (inputs, written, outputs)
    )
    changed = [value for value, slot in outputs if slot.number not in read or slot.number in wrote]
    return changed + [value for value, slot in written if slot.number not in returned]


def _is_plain(tensor: torch.Tensor) -> bool:
    return tensor.layout is torch.strided and not tensor.is_quantized and not tensor.is_nested


def _plain_tensors(tree: Any) -> list[torch.Tensor]:
    leaves = tree_leaves(tree)
    return [leaf for leaf in leaves if isinstance(leaf, torch.Tensor) and _is_plain(leaf)]


def _is_all_plain(tree: Any) -> bool:
    return all(_is_plain(leaf) for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor))


def _in_order(op: Op, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
    """The arguments as the schema lists them; None for those that are left out."""
    names = [argument.name for argument in op._schema.arguments]
    return [*args, *(kwargs.get(name) for name in names[len(args) :])]


def _name(op: Op) -> str:
    schema = op._schema
    return f"{schema.name}.{schema.overload_name}" if schema.overload_name else schema.name


def _purity(op: Op, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[bool, list[int]]:
    """Whether the call may run again, and the places of the arguments that it writes."""
    arguments = [
        _NUMBER
        if isinstance(value, int | float | complex) and argument.type.kind() == "TensorType"
        else value
        for value, argument in zip(args, op._schema.arguments, strict=False)
    ]
    return _C.purity_of(op._schema.name, op._schema.overload_name, *arguments, **kwargs)


def _signature(op: Op, arguments: Sequence[Any], inputs: Sequence[tuple[int, Slot]]) -> int:
    geometry = [(tensor.dtype, tuple(tensor.shape)) for tensor in _plain_tensors(arguments)]
    text = repr((_name(op), geometry, [value for value, _ in inputs]))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")
