# SPDX-License-Identifier: BSD-3-Clause
"""One seeded bug per way in which offloading goes wrong; beside each, the same program done right."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from types import SimpleNamespace

import bed
import pytest
import torch

pytestmark = pytest.mark.skipif(
    os.environ.get("EMULATED_CUDA_RACE") != "1", reason="detector is off"
)
N = 1 << 16
Program = Callable[[bool], object]


def filled() -> torch.Tensor:
    return torch.ones(N, device="cuda")


def pinned() -> torch.Tensor:
    return torch.zeros(N, pin_memory=True)


def swap_out_of_bytes_not_computed_yet(right: bool) -> object:
    side, value = torch.cuda.Stream(), filled()
    if right:
        side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        host = pinned().copy_(value, non_blocking=True)
    side.synchronize()
    return host


def swap_in_used_before_its_copy(right: bool) -> object:
    side, host, buffer = torch.cuda.Stream(), pinned(), torch.empty(N, device="cuda")
    with torch.cuda.stream(side):
        buffer.copy_(host, non_blocking=True)
    if right:
        torch.cuda.current_stream().wait_stream(side)
    result = buffer * 2
    torch.cuda.synchronize()
    return result


def swap_in_over_a_block_still_read(right: bool) -> object:
    """The buffer comes from the compute stream, whose earlier work still reads the block's last owner."""
    side, host = torch.cuda.Stream(), pinned()
    last_owner = filled()
    result = last_owner * 2
    del last_owner
    buffer = torch.empty(N, device="cuda")
    if right:
        side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        buffer.copy_(host, non_blocking=True)
    torch.cuda.synchronize()
    return result, buffer


def block_freed_while_it_is_swapped_out(right: bool) -> object:
    side, value = torch.cuda.Stream(), filled()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        host = pinned().copy_(value, non_blocking=True)
    if right:
        torch.cuda.current_stream().wait_stream(side)
    del value
    other = torch.zeros(N, device="cuda")
    torch.cuda.synchronize()
    return host, other


def buffer_of_a_side_stream_freed_while_computed_with(right: bool) -> object:
    """As many offloaders allocate: on the side stream, without record_stream."""
    side, host = torch.cuda.Stream(), pinned()
    with torch.cuda.stream(side):
        buffer = host.to("cuda", non_blocking=True)
    torch.cuda.current_stream().wait_stream(side)
    result = buffer * 2
    if right:
        buffer.record_stream(torch.cuda.current_stream())
    del buffer
    with torch.cuda.stream(side):
        other = host.to("cuda", non_blocking=True)
    torch.cuda.synchronize()
    return result, other


def compute_stream_asked_for_once(right: bool) -> object:
    """The copy is ordered before the stream that was current at pack; unpack runs on another."""
    side, host = torch.cuda.Stream(), pinned()
    at_pack, at_unpack = torch.cuda.current_stream(), torch.cuda.Stream()
    buffer = torch.empty(N, device="cuda")
    side.wait_stream(at_pack)
    with torch.cuda.stream(side):
        buffer.copy_(host, non_blocking=True)
    (at_unpack if right else at_pack).wait_stream(side)
    with torch.cuda.stream(at_unpack):
        result = buffer * 2
    torch.cuda.synchronize()
    return result


def event_recorded_before_the_copy(right: bool) -> object:
    side, host, buffer, copied = torch.cuda.Stream(), pinned(), filled(), torch.cuda.Event()
    side.wait_stream(torch.cuda.current_stream())
    if not right:
        copied.record(side)
    with torch.cuda.stream(side):
        buffer.copy_(host, non_blocking=True)
    if right:
        copied.record(side)
    torch.cuda.current_stream().wait_event(copied)
    result = buffer * 2
    torch.cuda.synchronize()
    return result


def two_copies_into_one_buffer(right: bool) -> object:
    first, second, buffer = torch.cuda.Stream(), torch.cuda.Stream(), filled()
    hosts = pinned(), pinned()  # an allocation asks events whether copies are done, and so orders
    torch.cuda.synchronize()
    with torch.cuda.stream(first):
        buffer.copy_(hosts[0], non_blocking=True)
    if right:
        second.wait_stream(first)
    with torch.cuda.stream(second):
        buffer.copy_(hosts[1], non_blocking=True)
    torch.cuda.synchronize()
    return buffer


def host_reads_before_the_copy(right: bool) -> object:
    host, value = pinned(), filled()
    host.copy_(value, non_blocking=True)
    if right:
        torch.cuda.synchronize()
    return host[:64].sum().item()


def host_writes_while_a_copy_reads(right: bool) -> object:
    host, value = pinned(), filled()
    value.copy_(host, non_blocking=True)
    if right:
        torch.cuda.synchronize()
    host[:64].fill_(3)
    return value


def host_reads_through_a_query(right: bool) -> object:
    host, value, copied = pinned(), filled(), torch.cuda.Event()
    host.copy_(value, non_blocking=True)
    copied.record()
    while right and not copied.query():
        pass
    return host.numpy()[N // 2].item()


def pinned_block_given_to_the_next_copy(right: bool) -> object:
    """A pool that hands out a block again although the last swap-in still reads it."""
    out, back, host = torch.cuda.Stream(), torch.cuda.Stream(), pinned()
    first, second = filled(), filled()
    torch.cuda.synchronize()
    with torch.cuda.stream(back):
        first.copy_(host, non_blocking=True)
    if right:
        out.wait_stream(back)
    with torch.cuda.stream(out):
        host.copy_(second, non_blocking=True)
    torch.cuda.synchronize()
    return host


def strided_halves(right: bool) -> object:
    """Right: the streams touch different columns. Wrong: one column is touched by both."""
    side, matrix = torch.cuda.Stream(), torch.zeros(64, 64, device="cuda")
    torch.cuda.synchronize()
    matrix[:, :32].add_(1)
    with torch.cuda.stream(side):
        matrix[:, 32 if right else 31 :].add_(1)
    torch.cuda.synchronize()
    return matrix


def freed_memory_is_read(right: bool) -> object:
    """A kernel with a raw pointer, whose tensor is gone."""
    value, result = filled(), filled()
    torch.cuda.synchronize()
    view = as_foreign(value)
    if not right:
        del value
    torch.mul(view, 2, out=result)
    torch.cuda.synchronize()
    return result


def as_foreign(tensor: torch.Tensor) -> torch.Tensor:
    interface = {
        "data": (tensor.data_ptr(), False),
        "shape": tuple(tensor.shape),
        "typestr": "<f4",
        "version": 2,
    }
    return torch.as_tensor(SimpleNamespace(__cuda_array_interface__=interface), device="cuda")


def memory_never_written_is_read(right: bool) -> object:
    value = torch.empty(N, device="cuda")
    if right:
        value.zero_()
    result = value * 2
    torch.cuda.synchronize()
    return result


def swapped_out_before_anything_was_written(right: bool) -> object:
    """An operator gives a buffer to autograd before its kernel fills it; a copy taken there is garbage."""
    noise, host = torch.empty(N, device="cuda"), pinned()
    if right:
        noise.fill_(3)
    host.copy_(noise, non_blocking=True)
    noise.fill_(3)
    back = torch.empty(N, device="cuda").copy_(host, non_blocking=True)
    result = back * 2
    torch.cuda.synchronize()
    return result


PROGRAMS: dict[Program, str] = {
    swap_out_of_bytes_not_computed_yet: "copy to the host .* reads bytes that aten::fill_",
    swap_in_used_before_its_copy: "aten::mul.* reads bytes that copy to the device .* writes",
    swap_in_over_a_block_still_read: "copy to the device .* writes bytes that aten::mul.* reads.*gave the block away",
    block_freed_while_it_is_swapped_out: "aten::zero_.* writes bytes that copy to the host .* reads.*gave the block away",
    buffer_of_a_side_stream_freed_while_computed_with: "copy to the device .* writes bytes that aten::mul.* reads.*gave",
    compute_stream_asked_for_once: "aten::mul.* reads bytes that copy to the device",
    event_recorded_before_the_copy: "aten::mul.* reads bytes that copy to the device",
    two_copies_into_one_buffer: "copy to the device .* writes bytes that copy to the device .* writes",
    host_reads_before_the_copy: "the host reads pinned memory that copy to the host",
    host_writes_while_a_copy_reads: "the host writes pinned memory that copy to the device",
    host_reads_through_a_query: "the host reads pinned memory that copy to the host",
    pinned_block_given_to_the_next_copy: "copy to the host .* writes bytes that copy to the device .* reads",
    strided_halves: "aten::add_.* writes bytes that aten::add_.* writes",
    freed_memory_is_read: "aten::mul.out .* reads freed memory",
    memory_never_written_is_read: "aten::mul.* reads memory that nothing was written to",
    swapped_out_before_anything_was_written: "aten::mul.* reads memory that nothing was written to",
}


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_a_seeded_bug_is_reported_with_both_call_sites(program: Program) -> None:
    program(False)
    torch.cuda.synchronize()
    texts = bed.races()
    bed.forget_races()
    matching = [text for text in texts if re.search(PROGRAMS[program], text)]
    assert matching, texts
    assert program.__name__ in matching[0], "the Python line is missing"


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_the_same_program_done_right_is_silent(program: Program) -> None:
    program(True)
    torch.cuda.synchronize()
    assert bed.races() == []


def test_what_the_host_does_with_pageable_memory_is_its_own_affair() -> None:
    """Nobody sees it write there, nor that the memory is freed and means something else."""
    host = torch.empty(N, device="cuda").cpu()
    host.fill_(3)
    result = host.to("cuda") * 2
    with torch.cuda.stream(torch.cuda.Stream()):
        host.copy_(filled())
    assert result.cpu().eq(6).all()
    torch.cuda.synchronize()
    assert bed.races() == []
