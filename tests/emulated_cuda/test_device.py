# SPDX-License-Identifier: BSD-3-Clause
"""The emulated device behaves like one: memory, streams, events, copies, graphs, failures."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable

import bed
import pytest
import torch
from torch import Tensor

Knob = Callable[[str, object], None]
MIB = 1 << 20


def bytes_on_device(size: int) -> Tensor:
    return torch.empty(size, dtype=torch.uint8, device="cuda")


def empty_caches() -> None:
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    torch._C._host_emptyCache()


def test_memory_beyond_the_cap_is_an_out_of_memory_error_and_what_was_there_stays(
    knob: Knob,
) -> None:
    empty_caches()
    knob("BYTES", bed.counter("device_bytes") + 64 * MIB)
    kept = torch.ones(32 * MIB, dtype=torch.uint8, device="cuda")
    assert torch.cuda.mem_get_info()[0] == 32 * MIB
    with pytest.raises(torch.OutOfMemoryError):
        bytes_on_device(40 * MIB)
    assert kept[-1].item() == 1
    del kept
    assert (
        bytes_on_device(60 * MIB).numel() == 60 * MIB
    )  # PyTorch frees its cached block and tries again


def test_fresh_memory_is_not_zero() -> None:
    empty_caches()
    assert torch.empty(16 * MIB, device="cuda").cpu().isnan().all()
    assert torch.empty(16 * MIB, pin_memory=True).isnan().all()


def test_statistics_and_empty_cache_are_those_of_pytorch_s_own_allocator() -> None:
    empty_caches()
    before = torch.cuda.memory_allocated(), bed.counter("device_bytes")
    block = bytes_on_device(32 * MIB)
    assert torch.cuda.memory_allocated() - before[0] == 32 * MIB
    assert bed.counter("device_bytes") - before[1] == 32 * MIB
    del block
    assert torch.cuda.memory_allocated() == before[0]
    assert bed.counter("device_bytes") - before[1] == 32 * MIB
    torch.cuda.empty_cache()
    assert bed.counter("device_bytes") == before[1]
    assert torch.cuda.memory_stats()["num_device_free"] > 0
    assert torch.cuda.get_allocator_backend() == "native"


def test_pinned_memory_beyond_its_cap_is_an_error(knob: Knob) -> None:
    empty_caches()
    knob("PINNED_BYTES", bed.counter("pinned_bytes") + 16 * MIB)
    with pytest.raises(RuntimeError, match="out of memory"):
        torch.empty(64 * MIB, pin_memory=True)
    assert torch.empty(1 * MIB, pin_memory=True).is_pinned()


def test_a_stream_held_up_by_the_link_lets_another_one_pass(knob: Knob) -> None:
    slow, host, value = (
        torch.cuda.Stream(),
        torch.zeros(MIB, pin_memory=True),
        torch.ones(MIB).cuda(),
    )
    torch.cuda.synchronize()
    knob("D2H_BYTES_PER_S", 2e6)
    with torch.cuda.stream(slow):
        host.copy_(value, non_blocking=True)
    torch.ones(4, device="cuda").add_(1)
    torch.cuda.current_stream().synchronize()
    assert not slow.query()
    slow.synchronize()
    assert slow.query()
    assert host.sum().item() == MIB


def test_a_link_carries_one_copy_at_a_time_and_no_faster_than_its_bandwidth(knob: Knob) -> None:
    streams = torch.cuda.Stream(), torch.cuda.Stream()
    hosts = [torch.zeros(MIB, pin_memory=True) for _ in streams]
    values = [torch.ones(MIB, device="cuda") for _ in streams]
    start, ends = torch.cuda.Event(enable_timing=True), []
    torch.cuda.synchronize()
    knob("D2H_BYTES_PER_S", 100e6)
    busy_ns, copied = bed.counter("d2h_busy_ns"), bed.counter("d2h_bytes")
    start.record(streams[0])
    start.synchronize()
    for stream, host, value in zip(streams, hosts, values, strict=True):
        with torch.cuda.stream(stream):
            host.copy_(value, non_blocking=True)
            ends.append(torch.cuda.Event(enable_timing=True))
            ends[-1].record()
    torch.cuda.synchronize()
    busy_ns = bed.counter("d2h_busy_ns") - busy_ns
    assert bed.counter("d2h_bytes") - copied == 8 * MIB
    assert busy_ns == pytest.approx(8 * MIB / 100e6 * 1e9, abs=10)
    # On the emulation's own clock, which never lets a copy end early.
    assert max(start.elapsed_time(end) for end in ends) >= busy_ns / 1e6 - 0.001


def test_events_order_streams_whatever_the_delays(knob: Knob) -> None:
    knob("DELAY_US", 500)
    main, side = torch.cuda.Stream(), torch.cuda.Stream()
    host = torch.zeros(1000, pin_memory=True)
    for seed in range(3):
        knob("SEED", seed)
        with torch.cuda.stream(main):
            x = torch.zeros(1000, device="cuda")
        for _ in range(20):
            with torch.cuda.stream(main):
                x.add_(1)
            side.wait_stream(main)
            with torch.cuda.stream(side):
                host.copy_(x, non_blocking=True)
            main.wait_stream(side)
        side.synchronize()
        assert host.unique().tolist() == [20.0]


def test_an_event_tells_the_time_only_if_it_was_made_to() -> None:
    timed, untimed = torch.cuda.Event(enable_timing=True), torch.cuda.Event()
    timed.record()
    untimed.record()
    torch.cuda.synchronize()
    assert timed.query() and untimed.query()
    with pytest.raises((RuntimeError, ValueError)):
        timed.elapsed_time(untimed)


def test_copies_that_leave_an_allocation_are_refused() -> None:
    runtime = torch.cuda.cudart()
    assert runtime is not None
    value = bytes_on_device(32 * MIB)
    library = bed.library()
    library.cudaMemcpy.argtypes = [ctypes.c_void_p] * 2 + [ctypes.c_size_t, ctypes.c_int]
    host = torch.empty(64, dtype=torch.uint8)
    inside = value.data_ptr() + 32 * MIB - 64
    assert library.cudaMemcpy(inside, host.data_ptr(), 64, 1) == 0
    assert library.cudaMemcpy(inside + 1, host.data_ptr(), 64, 1) == 1  # cudaErrorInvalidValue
    assert (
        library.cudaMemcpy(inside, host.data_ptr(), 64, 2) == 1
    )  # the kind says the other direction
    library.cudaGetLastError()


def test_a_host_function_runs_after_the_work_before_it_and_tells_the_host_so() -> None:
    host, value, seen = (
        torch.zeros(4, pin_memory=True),
        torch.ones(4, device="cuda"),
        threading.Event(),
    )
    callback = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(lambda _: seen.set())
    host.copy_(value, non_blocking=True)
    stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
    assert bed.library().cudaLaunchHostFunc(stream, callback, None) == 0
    assert seen.wait(60)
    assert host.tolist() == [1.0] * 4  # with no other wait: the race detector agrees
    torch.cuda.synchronize()


def test_a_graph_is_captured_and_replayed_on_new_data() -> None:
    x = torch.ones(4, device="cuda")
    y = x * 2
    graph = torch.cuda.CUDAGraph()
    side = torch.cuda.Stream()
    with torch.cuda.graph(graph):
        assert torch.cuda.is_current_stream_capturing()
        main = torch.cuda.current_stream()
        side.wait_stream(main)
        with torch.cuda.stream(side):
            z = x + 1
        main.wait_stream(side)
        y.copy_(z * 10)
    assert not torch.cuda.is_current_stream_capturing()
    assert y.tolist() == [2.0] * 4
    x.fill_(4)
    graph.replay()
    assert y.tolist() == [50.0] * 4
    graph.replay()
    assert y.tolist() == [50.0] * 4


def a_step() -> str:
    layer, x = torch.nn.Linear(4, 4), torch.ones(2, 4)
    wanted = layer(x)
    try:
        bytes_on_device(48 * MIB)  # in no block that is cached
        got = layer.cuda()(x.pin_memory().cuda(non_blocking=True)).cpu()
    except RuntimeError as error:
        return type(error).__name__
    return "right" if torch.allclose(got, wanted, rtol=1e-4, atol=1e-6) else "wrong"


@pytest.mark.parametrize("function", ["cudaMalloc", "cudaHostAlloc", "cudaMemcpyAsync"])
def test_every_failure_asked_for_happens_once_and_the_next_step_is_right(
    function: str, knob: Knob, capfd: pytest.CaptureFixture[str]
) -> None:
    failures = 0
    for call in range(1, 7):
        empty_caches()
        knob("FAIL", f"{function}:{call}")
        steps = [a_step() for _ in range(3)]
        happened = capfd.readouterr().err.count(f"call {call} of {function} fails as asked")
        failures += happened
        assert happened <= 1
        assert steps[-1] == "right"
        assert steps.count("right") >= 3 - happened, steps
    assert failures >= 1


def test_a_failure_that_lasts_is_an_out_of_memory_error(knob: Knob) -> None:
    empty_caches()
    kept = torch.ones(4, device="cuda")
    knob("FAIL", "cudaMalloc:1+")
    with pytest.raises(torch.OutOfMemoryError):
        bytes_on_device(64 * MIB)
    assert kept.sum().item() == 4


def test_a_knob_that_is_none_is_refused() -> None:
    for name, value in [("NO_SUCH", 1), ("BYTES", "many"), ("FAIL", "cudaMalloc"), ("RACE", 0)]:
        with pytest.raises(ValueError, match=name):
            bed.set_knob(name, value)


def milliseconds(work: Callable[[], object]) -> float:
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    work()
    end.record()
    torch.cuda.synchronize()
    return float(start.elapsed_time(end))


def test_an_operator_takes_at_least_the_time_that_the_rates_say(knob: Knob) -> None:
    a, b = torch.ones(256, 512, device="cuda"), torch.ones(512, 128, device="cuda")
    knob("COMPUTE", 0)
    knob("FLOPS_PER_S", 1e9)
    assert milliseconds(lambda: a @ b) >= 2 * 256 * 512 * 128 / 1e6
    knob("MEMORY_BYTES_PER_S", 1e7)
    assert milliseconds(lambda: a.mul_(2)) >= 2 * a.nbytes / 1e4
    images, filters = (
        torch.ones(2, 8, 16, 16, device="cuda"),
        torch.ones(4, 8, 3, 3, device="cuda"),
    )
    knob("FLOPS_PER_S", 1e8)
    knob("MEMORY_BYTES_PER_S", 0)
    one_way = 2 * (2 * 4 * 14 * 14) * (8 * 3 * 3) / 1e5
    assert milliseconds(lambda: torch.nn.functional.conv2d(images, filters)) >= one_way
    filters.requires_grad_()
    result = torch.nn.functional.conv2d(images.requires_grad_(), filters)
    assert milliseconds(lambda: result.backward(torch.ones_like(result))) >= 2 * one_way


def test_without_computing_outputs_stay_as_they_were_and_answers_to_the_host_are_right(
    knob: Knob,
) -> None:
    value = torch.ones(4, device="cuda")
    torch.cuda.synchronize()
    knob("COMPUTE", 0)
    value.add_(1)
    assert value.nonzero().numel() == 4  # its shape depends on data
    assert value.cpu().tolist() == [1] * 4
