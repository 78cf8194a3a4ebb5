# SPDX-License-Identifier: BSD-3-Clause
"""torchlms on a GPU: a real one, or the emulated one of tests/emulated_cuda."""

from __future__ import annotations

import copy
import os
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

import torchlms
from models import Block
from torchlms import _C
from training import left_bytes, settle

MIB = 1 << 20


@pytest.fixture(autouse=True)
def gpu() -> Iterator[None]:
    if not torch.cuda.is_available():
        if os.environ.get("TORCHLMS_REQUIRE_CUDA") == "1":
            pytest.fail("TORCHLMS_REQUIRE_CUDA=1 and torch finds no GPU")
        pytest.skip("no GPU")
    enabled, benchmark = torch.backends.cudnn.enabled, torch.backends.cudnn.benchmark
    torch.backends.cudnn.enabled = enabled and "EMULATED_CUDA_LIBRARY" not in os.environ
    torch.backends.cudnn.benchmark = False
    torch.cuda.empty_cache()
    yield
    torch.cuda.synchronize()
    torch.backends.cudnn.enabled, torch.backends.cudnn.benchmark = enabled, benchmark


pytestmark = pytest.mark.needs_cuda


def blocks(count: int = 4) -> tuple[nn.Module, Tensor]:
    torch.manual_seed(0)
    net = nn.Sequential(*(Block(128, 4, dropout=0.0) for _ in range(count))).cuda()
    return net, torch.randn(8, 96, 128).cuda()


def step(net: nn.Module, inputs: Tensor, scope: Any = None) -> list[Tensor]:
    net.zero_grad()
    if scope is None:
        loss = net(inputs).square().mean()
    else:
        with scope:
            loss = net(inputs).square().mean()
    loss.backward()
    return [loss.detach().clone(), *(p.grad.clone() for p in net.parameters())]


def equal(one: list[Tensor], other: list[Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def test_the_backend_is_there() -> None:
    assert _C.load_cuda_backend() == ""
    memory = _C.device_memory("cuda:0")
    assert memory["total_bytes"] >= memory["available_bytes"] > 0


@pytest.mark.parametrize("policy", ["swap", "recompute", "hybrid", "auto"])
def test_everything_that_may_move_moves_and_gradients_are_equal(policy: Any) -> None:
    net, inputs = blocks()
    expected = step(net, inputs)
    lms = torchlms.offload(budget="min", min_offload_bytes=0, policy=policy)
    for _ in range(3):
        assert equal(expected, step(net, inputs, lms))
    report = lms.report().to_dict()
    assert report["swapped_bytes"] + report["recomputed_bytes"] > 0
    assert (report["host_bytes"] > 0) == (report["swapped_bytes"] > 0)


def test_a_wrapped_model_is_bounded_on_the_device_of_its_parameters() -> None:
    net, inputs = blocks()
    expected = step(net, inputs)
    wrapped = torchlms.wrap(copy.deepcopy(net), budget="min", min_offload_bytes=0, policy="swap")
    assert equal(expected, step(wrapped, inputs))
    assert torchlms.report(wrapped).to_dict()["swapped_bytes"] > 0


def test_a_model_on_the_cpu_is_bounded_there_beside_one_on_the_gpu() -> None:
    blocks()
    net = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64))
    torchlms.wrap(net, budget="min", min_offload_bytes=0, policy="swap")
    net(torch.randn(32, 64)).sum().backward()
    report = torchlms.report(net).to_dict()
    assert report["swapped_bytes"] > 0
    assert report["host_bytes"] == 0


def test_verify_finds_what_is_written_behind_pytorchs_back() -> None:
    weight = torch.randn(64, 64).cuda().requires_grad_()
    lms = torchlms.offload(budget="min", min_offload_bytes=0, policy="swap", verify=True)
    with lms:
        hidden = (torch.randn(64, 64).cuda() @ weight).tanh()
        loss = hidden.sum()
    hidden.data.zero_()
    with pytest.raises(RuntimeError, match="torchlms verify"):
        loss.backward()


def test_saved_tensors_used_on_another_stream_are_right() -> None:
    net, inputs = blocks()
    expected = step(net, inputs)
    lms = torchlms.offload(budget="min", min_offload_bytes=0, policy="swap")
    side = torch.cuda.Stream()
    for _ in range(3):
        net.zero_grad()
        with lms:
            hidden = net[0](inputs)
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                hidden = net[2](net[1](hidden))
            torch.cuda.current_stream().wait_stream(side)
            loss = net[3](hidden).square().mean()
        del hidden
        loss.backward()
        torch.cuda.synchronize()
        got = [loss.detach(), *(p.grad for p in net.parameters())]
        assert equal(expected, got)


def test_backward_on_another_thread_and_stream_is_right() -> None:
    import threading

    net, inputs = blocks()
    expected = step(net, inputs)
    lms = torchlms.offload(budget="min", min_offload_bytes=0, policy="swap")
    net.zero_grad()
    with lms:
        loss = net(inputs).square().mean()

    def backward() -> None:
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.default_stream())
        with torch.cuda.stream(side):
            loss.backward()
        side.synchronize()

    thread = threading.Thread(target=backward)
    thread.start()
    thread.join()
    torch.cuda.synchronize()
    assert equal(expected[1:], [p.grad for p in net.parameters()])


def test_a_dropped_graph_gives_back_device_and_host_memory() -> None:
    net, inputs = blocks()
    lms = torchlms.offload(budget="min", min_offload_bytes=0, policy="swap")
    step(net, inputs, lms)
    host_bytes = lms.report().to_dict()["host_bytes"]
    net.zero_grad()
    before = torch.cuda.memory_allocated()
    for _ in range(3):
        with lms:
            loss = net(inputs).square().mean()
        del loss
        # Copies that were queued keep their blocks until they end, which the device knows nothing of.
        assert left_bytes(before, torch.cuda.memory_allocated) == 0
    step(net, inputs, lms)
    assert 0 < lms.report().to_dict()["host_bytes"] < 2 * host_bytes


def test_the_end_of_the_budget_gives_the_allocator_back() -> None:
    net, inputs = blocks(1)
    torch.cuda.memory.set_per_process_memory_fraction(1.0)
    lms = torchlms.offload(budget=200 * MIB, min_offload_bytes=0)
    step(net, inputs, lms)
    del lms
    big = torch.empty(300 * MIB, dtype=torch.uint8, device="cuda")
    assert big.numel() == 300 * MIB


def test_pytorchs_own_statistics_go_on_under_a_budget() -> None:
    net, inputs = blocks(2)
    lms = torchlms.offload(budget=400 * MIB, min_offload_bytes=0)
    torch.cuda.reset_peak_memory_stats()
    step(net, inputs, lms)
    assert torch.cuda.max_memory_allocated() > torch.cuda.memory_allocated() > 0
    assert torch.cuda.memory_snapshot()
    assert torch.cuda.get_allocator_backend() == "native"
    torch.cuda.empty_cache()


def test_times_are_the_devices() -> None:
    net, inputs = blocks()
    lms = torchlms.offload(budget="min", min_offload_bytes=0, policy="swap")
    for _ in range(3):
        step(net, inputs, lms)
    torch.cuda.synchronize()
    report = lms.report().to_dict()
    assert report["measured_step_us"] > 0
    assert 0 <= report["stall_us"] <= report["measured_step_us"]


def test_a_device_that_is_not_there_is_an_error_at_once() -> None:
    with pytest.raises(ValueError, match="cuda:63"):
        torchlms.offload(device="cuda:63")


def test_named_devices_are_used() -> None:
    net, inputs = blocks(1)
    lms = torchlms.offload(device="cuda:0", budget="min", min_offload_bytes=0, policy="swap")
    step(net, inputs, lms)
    assert lms.report().to_dict()["swapped_bytes"] > 0


def test_a_budget_that_cannot_be_met_is_out_of_memory_in_words() -> None:
    net, inputs = blocks()
    held = torch.cuda.memory_allocated()
    lms = torchlms.offload(budget=held + 2 * MIB, min_offload_bytes=0)
    with pytest.raises(torch.OutOfMemoryError, match="Raise budget to at least") as caught:
        step(net, inputs, lms)
    del caught, lms  # the traceback holds the graph, and the scope its budget
    settle()
    assert equal(step(net, inputs), step(net, inputs))


def test_functional_loss_under_autocast_is_equal() -> None:
    net, inputs = blocks(2)
    lms = torchlms.offload(budget="min", min_offload_bytes=0)

    def run(scope: Any) -> list[Tensor]:
        net.zero_grad()
        with scope, torch.autocast("cuda", dtype=torch.bfloat16):
            loss = F.mse_loss(net(inputs).float(), inputs)
        loss.backward()
        return [loss.detach(), *(p.grad.clone() for p in net.parameters())]

    expected = run(torch.enable_grad())
    for _ in range(2):
        assert equal(expected, run(lms))
