# SPDX-License-Identifier: BSD-3-Clause
"""The storages of a step under fake tensors: who holds them, what memory they take, and what the
recorder is told of them. The counterpart of csrc/tape.cpp, which says more about each rule."""

from __future__ import annotations

import dataclasses
import weakref
from collections.abc import Iterable
from typing import Any

import torch

from torchlms import _C


@dataclasses.dataclass
class Slot:
    """What is known of one storage of the trace."""

    number: int
    size_bytes: int
    is_root: bool
    num_alive: int = 0  # fake storages that stand for it: the program's, and what unpacks gave out
    num_handles: int = 0  # saved views
    is_managed: bool = False
    was_saved: bool = False
    was_freed: bool = False  # its last handle died
    version: int = 0
    values: dict[tuple[int, int, int], int] = dataclasses.field(default_factory=dict)

    def base_bytes(self) -> int:
        """What it adds to the bytes that are held and not managed."""
        is_held = self.num_alive > 0 or self.num_handles > 0
        is_resident = self.is_managed and self.num_handles > 0
        return self.size_bytes * (is_held - is_resident) if not self.is_root else 0


class FakeStorages:
    """Thread-safety: none."""

    def __init__(self, recorder: _C.Recorder, min_offload_bytes: int) -> None:
        self.now_us = 0.0
        self._recorder = recorder
        self._smallest_bytes = max(min_offload_bytes, 1)
        self._slots: list[Slot] = []
        self._ids: dict[int, int] = {}  # by the address of a storage that is alive
        self._deaths: dict[int, weakref.ref[torch.UntypedStorage]] = {}  # by the same
        self._awaiting_death: list[Slot] = []
        self._older_bytes = 0
        self._base_bytes = 0  # without the older ones
        self._base_peak_bytes = 0  # since the last event
        self._is_finished = False

    def slot_of(self, tensor: torch.Tensor, *, is_root: bool = False) -> Slot:
        """The slot of the tensor's storage. is_root: one not seen yet was alive at entry."""
        storage = tensor.untyped_storage()
        number = self._ids.get(storage._cdata)
        if number is not None:
            return self._slots[number]
        slot = self._add_slot(storage.nbytes(), is_root)
        self._older_bytes += slot.size_bytes if is_root else 0
        self.hold(storage, slot)
        return slot

    def hold(self, storage: torch.UntypedStorage, slot: Slot) -> None:
        """The storage stands for the slot's as long as it lives."""
        address = storage._cdata
        self._ids[address] = slot.number
        self._deaths[address] = weakref.ref(storage, lambda _: self._storage_died(address))
        self._change(slot, alive=1)

    def value_of(self, tensor: torch.Tensor, producer: int) -> int:
        """The ValueId of a tensor's bytes as they are now."""
        slot = self.slot_of(tensor)
        offset, size = int(tensor.storage_offset()) * tensor.itemsize, _span_bytes(tensor)
        key = (slot.version, offset, size)
        if key not in slot.values:
            slot.values[key] = self._recorder.add_value(
                slot.number, offset, size, slot.version, producer
            )
        return slot.values[key]

    def note_changes(self, tensors: Iterable[torch.Tensor]) -> None:
        """The tensors' storages were written."""
        for slot in {slot.number: slot for slot in map(self.slot_of, tensors)}.values():
            for value in slot.values.values():
                self._recorder.set_changed(value)
            slot.values.clear()
            slot.version += 1

    def add_handle(self, tensor: torch.Tensor, *, is_kept: bool) -> Slot:
        """Autograd saved the tensor."""
        slot = self.slot_of(tensor)
        if slot.was_freed:
            slot = self._begin_new_life(tensor)
        if not slot.was_saved:
            slot.was_saved = True
            if not slot.is_root and not is_kept and slot.size_bytes >= self._smallest_bytes:
                slot.is_managed = True
                self._awaiting_death.append(slot)
                self._recorder.set_managed(slot.number)
        self._change(slot, handles=1)
        self.add_event(_C.EventKind.PACK, slot)
        self._recorder.add_packed_bytes(slot.number, tensor.numel() * tensor.itemsize)
        return slot

    def drop_handle(self, slot: Slot) -> None:
        if slot.num_handles == 1:
            self.add_event(_C.EventKind.FREE, slot)
            slot.was_freed = True
        self._change(slot, handles=-1)

    def add_event(self, kind: _C.EventKind, slot: Slot) -> None:
        if not self._is_finished:  # a graph may outlive its step
            self._recorder.add_event(kind, slot.number, **self.sample())

    def sample(self) -> dict[str, Any]:
        """Time and memory of the event that happens now."""
        sample = {
            "time_us": self.now_us,
            "base_bytes": self._base_bytes,
            "base_peak_bytes": max(self._base_peak_bytes, self._base_bytes),
        }
        self._base_peak_bytes = self._base_bytes
        return sample

    def poll_deaths(self) -> None:
        """Events for what the program has dropped since the last call and autograd still holds."""
        awaiting = []
        for slot in self._awaiting_death:
            if slot.num_handles > 0 and slot.num_alive == 0:
                self.add_event(_C.EventKind.DEAD, slot)
            elif slot.num_handles > 0:
                awaiting.append(slot)
        self._awaiting_death = awaiting

    def finish(self) -> str:
        """The trace, as JSON."""
        self._is_finished = True
        for slot in self._slots:
            if slot.is_root or slot.num_alive > 0:
                self._recorder.set_outlives_step(slot.number)
        return self._recorder.finish_json(self._older_bytes)

    def _add_slot(self, size_bytes: int, is_root: bool) -> Slot:
        slot = Slot(self._recorder.add_storage(size_bytes, is_root), size_bytes, is_root)
        self._slots.append(slot)
        return slot

    def _begin_new_life(self, tensor: torch.Tensor) -> Slot:
        """What was freed and is saved again is a new storage."""
        address = tensor.untyped_storage()._cdata
        old = self._slots[self._ids[address]]
        slot = self._add_slot(old.size_bytes, old.is_root)
        self._change(old, alive=-1)
        self._ids[address] = slot.number
        self._change(slot, alive=1)
        return slot

    def _storage_died(self, address: int) -> None:
        del self._deaths[address]
        self._change(self._slots[self._ids.pop(address)], alive=-1)

    def _change(self, slot: Slot, alive: int = 0, handles: int = 0) -> None:
        before = slot.base_bytes()
        slot.num_alive += alive
        slot.num_handles += handles
        self._base_bytes += slot.base_bytes() - before
        self._base_peak_bytes = max(self._base_peak_bytes, self._base_bytes)


def _span_bytes(tensor: torch.Tensor) -> int:
    if tensor.numel() == 0:
        return 0
    last = sum((n - 1) * step for n, step in zip(tensor.shape, tensor.stride(), strict=True))
    return int(last + 1) * tensor.itemsize
