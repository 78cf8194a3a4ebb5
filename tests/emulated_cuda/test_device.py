# SPDX-License-Identifier: BSD-3-Clause
"""The emulated device behaves like one: memory, streams, events, copies, failures."""

from __future__ import annotations

import re

import bed
import pytest
import torch
from emulation import emulate, output_of


def test_memory_beyond_the_cap_is_an_out_of_memory_error_and_what_was_there_stays() -> None:
    out = output_of(
        """
        import torch
        kept = torch.ones(8 << 20, device="cuda")
        try:
            torch.empty(16 << 20, device="cuda")
        except torch.OutOfMemoryError:
            print("full", kept.sum().item() == 8 << 20, kept.numel() * 4 == torch.cuda.memory_allocated())
        del kept
        print(torch.empty(14 << 20, device="cuda").numel(), torch.cuda.mem_get_info()[1])
        """,
        "--cap",
        "64MiB",
    )
    assert out.split("\n") == ["full True True", f"{14 << 20} {64 << 20}"]


def test_statistics_and_empty_cache_are_those_of_pytorch_s_own_allocator() -> None:
    torch.cuda.empty_cache()
    before = torch.cuda.memory_allocated(), bed.counter("device_bytes")
    block = torch.empty(32 << 20, dtype=torch.uint8, device="cuda")
    assert torch.cuda.memory_allocated() - before[0] == 32 << 20
    assert bed.counter("device_bytes") - before[1] == 32 << 20
    del block
    assert torch.cuda.memory_allocated() == before[0]
    assert bed.counter("device_bytes") - before[1] == 32 << 20
    torch.cuda.empty_cache()
    assert bed.counter("device_bytes") == before[1]
    assert torch.cuda.memory_stats()["num_device_free"] > 0
    assert torch.cuda.get_allocator_backend() == "native"


def test_a_stream_held_up_by_the_link_lets_another_one_pass() -> None:
    out = output_of(
        """
        import torch
        slow, host, value = torch.cuda.Stream(), torch.zeros(1 << 20, pin_memory=True), torch.ones(1 << 20).cuda()
        torch.cuda.synchronize()
        with torch.cuda.stream(slow):
            host.copy_(value, non_blocking=True)
        other = torch.ones(4, device="cuda") + 1
        torch.cuda.current_stream().synchronize()
        print(slow.query(), other.numel())
        slow.synchronize()
        print(slow.query(), host.sum().item())
        """,
        "--d2h",
        "1MB/s",
    )
    assert out.split("\n") == ["False 4", f"True {float(1 << 20)}"]


def test_a_link_carries_one_copy_at_a_time_and_no_faster_than_its_bandwidth() -> None:
    out = output_of(
        """
        import bed, torch
        streams = torch.cuda.Stream(), torch.cuda.Stream()
        hosts = [torch.zeros(1 << 20, pin_memory=True) for _ in streams]
        values = [torch.ones(1 << 20, device="cuda") for _ in streams]
        start, ends = torch.cuda.Event(enable_timing=True), []
        torch.cuda.synchronize()
        busy = bed.counter("d2h_busy_ns"), bed.counter("d2h_bytes")
        start.record(streams[0])
        for stream, host, value in zip(streams, hosts, values):
            with torch.cuda.stream(stream):
                host.copy_(value, non_blocking=True)
                ends.append(torch.cuda.Event(enable_timing=True))
                ends[-1].record()
        torch.cuda.synchronize()
        print(bed.counter("d2h_busy_ns") - busy[0], bed.counter("d2h_bytes") - busy[1])
        print(max(start.elapsed_time(end) for end in ends))
        """,
        "--d2h",
        "100MB/s",
    )
    busy_ns, copied, took_ms = out.split()
    assert int(copied) == 8 << 20
    assert int(busy_ns) == pytest.approx((8 << 20) / 100e6 * 1e9, abs=10)
    # On the emulation's own clock; the second copy starts after `start`, and after the first one.
    assert float(took_ms) >= int(busy_ns) / 1e6


def test_events_order_streams_whatever_the_delays() -> None:
    code = """
        import torch
        main, side = torch.cuda.Stream(), torch.cuda.Stream()
        host = torch.zeros(1000, pin_memory=True)
        with torch.cuda.stream(main):
            x = torch.zeros(1000, device="cuda")
        for i in range(20):
            with torch.cuda.stream(main):
                x.add_(1)
            side.wait_stream(main)
            with torch.cuda.stream(side):
                host.copy_(x, non_blocking=True)
            main.wait_stream(side)
        side.synchronize()
        print(host.unique().tolist())
    """
    for seed in range(3):
        assert output_of(code, "--seed", str(seed), "--delays", "500us") == "[20.0]"


def test_several_devices_have_memory_and_streams_of_their_own() -> None:
    out = output_of(
        """
        import torch
        a = torch.ones(8 << 20, device="cuda:0")
        b = torch.full((8 << 20,), 2.0, device="cuda:1")
        print(torch.cuda.device_count(), (a.to("cuda:1") + b).sum().item(), (a + b.to("cuda:0")).device)
        """,
        "--devices",
        "2",
        "--cap",
        "160MiB",
    )
    assert out == f"2 {3.0 * (8 << 20)} cuda:0"


def test_a_real_kernel_ends_the_process_with_its_name() -> None:
    done = emulate("import torch; torch.cuda._sleep(100)")
    assert done.returncode != 0
    assert re.search(r"a real kernel was launched: .*spin_kernel", done.stderr)


def test_expandable_segments_are_refused() -> None:
    done = emulate(
        "import torch; torch.ones(1, device='cuda')", PYTORCH_CUDA_ALLOC_CONF="expandable_segments:True"
    )
    assert done.returncode == 2
    assert "expandable segments are not emulated" in done.stderr
    late = emulate(
        """
        import torch
        torch.cuda.memory._set_allocator_settings("expandable_segments:True")
        torch.ones(1, device="cuda")
        """
    )
    assert late.returncode != 0
    assert "expandable segments are not emulated" in late.stderr


def test_an_index_out_of_range_breaks_the_device_as_an_assert_does() -> None:
    done = emulate(
        """
        import torch
        x = torch.ones(3, device="cuda")[torch.tensor([7], device="cuda")]
        torch.cuda.synchronize()
        """
    )
    assert done.returncode != 0
    assert "device-side assert" in done.stderr


def test_a_process_that_raced_does_not_succeed() -> None:
    code = """
        import torch
        value, host = torch.ones(99, device="cuda"), torch.zeros(99, pin_memory=True)
        host.copy_(value, non_blocking=True)
        print(host[0].item())
    """
    assert emulate(code, "--race").returncode == 86
    assert emulate(code, "--no-race").returncode == 0


FAILING_STEPS = """
    import torch
    x = torch.nn.Linear(4, 4)
    wanted = x(torch.ones(2, 4)).tolist()
    for i in range(3):
        try:
            x.cuda()
            y = x(torch.ones(2, 4).pin_memory().cuda(non_blocking=True)).tolist()
            print("right" if torch.allclose(torch.tensor(y), torch.tensor(wanted)) else "wrong")
        except (RuntimeError, torch.OutOfMemoryError) as error:
            print(type(error).__name__)
"""


@pytest.mark.parametrize("function", ["cudaMalloc", "cudaHostAlloc", "cudaMemcpyAsync"])
def test_every_failure_asked_for_happens_once_and_the_next_step_is_right(function: str) -> None:
    failed = 0
    for call in range(1, 6):
        done = emulate(FAILING_STEPS, "--fail", f"{function}:{call}")
        steps = done.stdout.split()
        happened = f"call {call} of {function} fails as asked" in done.stderr
        failed += happened
        assert len(steps) == 3, done.stderr
        assert steps[-1] == "right"
        assert steps.count("right") >= (2 if happened else 3)
    assert failed >= 1


def test_lasting_failures_of_an_allocation_are_out_of_memory_errors() -> None:
    out = output_of(
        """
        import torch
        kept = torch.ones(4, device="cuda")
        try:
            torch.empty(64 << 20, device="cuda")
        except torch.OutOfMemoryError:
            print("full", kept.sum().item())
        """,
        "--fail",
        "cudaMalloc:2+",
    )
    assert out == "full 4.0"


def test_pinned_memory_beyond_its_cap_is_an_error() -> None:
    done = emulate("import torch; torch.empty(64 << 20, pin_memory=True)", "--pinned-cap", "16MiB")
    assert done.returncode != 0
    assert "out of memory" in done.stderr


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


def test_waiting_for_a_stream_that_captures_is_an_error() -> None:
    done = emulate(
        """
        import torch
        x = torch.ones(4, device="cuda")
        with torch.cuda.graph(torch.cuda.CUDAGraph()):
            (x + 1).sum().item()
        """
    )
    assert done.returncode != 0
    assert "captur" in done.stderr
