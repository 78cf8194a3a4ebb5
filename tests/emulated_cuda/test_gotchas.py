# SPDX-License-Identifier: BSD-3-Clause
"""What docs/cuda_gotchas.md says, as far as the emulated device can show it and no other test does."""

from __future__ import annotations

import contextlib
from contextlib import AbstractContextManager
from typing import Any

import pytest
import torch
from emulation import emulate, output_of
from torch import Tensor, nn

import torchlms

MIB = 1 << 20
LEAST: dict[str, Any] = {"budget": "min", "min_offload_bytes": 0}


def layers() -> tuple[nn.Module, Tensor]:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64)).cuda()
    return net, torch.randn(512, 64).cuda()


def gradients(net: nn.Module, x: Tensor, scope: AbstractContextManager[Any]) -> list[Tensor]:
    net.zero_grad(set_to_none=True)
    with scope:
        loss = net(x).square().mean()
    loss.backward()
    return [p.grad for p in net.parameters() if p.grad is not None]


def num_captures(lms: Any) -> int:
    return int(lms.report().to_dict()["not_planned"].get("CUDA graph capture", 0))


def test_a_scope_entered_during_a_capture_does_nothing_and_is_counted() -> None:
    net, x = layers()
    lms = torchlms.offload(policy="swap", **LEAST)
    gradients(net, x, lms)
    assert num_captures(lms) == 0
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph), lms:
        captured = net(x)
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(captured, net(x))
    assert num_captures(lms) == 1


def test_a_capture_inside_a_scope_is_passed_through_and_counted() -> None:
    net, x = layers()
    wanted = gradients(net, x, contextlib.nullcontext())
    lms = torchlms.offload(policy="swap", **LEAST)
    net.zero_grad(set_to_none=True)
    with lms:
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.no_grad(), torch.cuda.graph(graph):
            captured = net(x)
        loss = net(x).square().mean()
    loss.backward()
    graph.replay()
    assert all(map(torch.equal, wanted, [p.grad for p in net.parameters()]))
    assert torch.equal(captured, net(x).detach())
    assert num_captures(lms) > 0
    assert all(map(torch.equal, wanted, gradients(net, x, lms)))


def test_a_budget_above_what_is_reserved_leaves_the_cache_and_one_below_gives_it_back() -> None:
    net, x = layers()
    torch.cuda.empty_cache()
    cached = torch.empty(100 * MIB, dtype=torch.uint8, device="cuda")
    del cached
    for budget, is_kept in ((400 * MIB, True), (60 * MIB, False)):
        lms = torchlms.offload(budget=budget)
        gradients(net, x, lms)
        assert (torch.cuda.memory_reserved() >= 100 * MIB) == is_kept
        del lms


@pytest.mark.parametrize("fused", [False, True])
def test_an_optimizer_step_between_forward_and_backward_is_noticed_unless_it_is_fused(
    fused: bool,
) -> None:
    net, x = layers()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, fused=fused)
    lms = torchlms.offload(policy="recompute", **LEAST)
    for _ in range(3):
        gradients(net, x, lms)
    assert lms.report().to_dict()["recomputed_bytes"] > 0
    with lms:
        loss = net(x).square().mean()
    version = net[0].weight._version
    optimizer.step()
    assert (net[0].weight._version == version) == fused
    if fused:
        loss.backward()  # the documented limit: nothing tells on a GPU
    else:
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            loss.backward()


def test_a_budget_belongs_to_the_gpu_that_is_current_named_or_the_model_s() -> None:
    out = output_of(
        """
        import bed, torch, torchlms
        from torch import nn

        LEAST = {"budget": "min", "min_offload_bytes": 0, "policy": "swap"}

        def moves(lms, device, wrap=lambda net: net):
            net = wrap(nn.Sequential(*(nn.Sequential(nn.Linear(64, 64), nn.ReLU()) for _ in range(4))).to(device))
            x = torch.randn(99, 64).to(device)
            for _ in range(2):  # the first one may measure the link
                torch.cuda.synchronize(device)
                before = bed.counter("d2h_bytes")
                with lms:
                    loss = net(x).square().sum()
                loss.backward()
            torch.cuda.synchronize(device)
            return bed.counter("d2h_bytes") > before

        lms = torchlms.offload(**LEAST)
        torch.cuda.set_device(1)
        print(moves(lms, "cuda:1"), moves(lms, "cuda:0"))  # current when the scope is entered
        del lms
        lms = torchlms.offload(device="cuda:0", **LEAST)
        print(moves(lms, "cuda:0"), moves(lms, "cuda:1"))  # named
        del lms
        torch.cuda.set_device(0)
        print(moves(torch.enable_grad(), "cuda:1", lambda net: torchlms.wrap(net, **LEAST)))
        """,
        "--devices",
        "2",
    )
    assert out.split() == ["True", "False", "True", "False", "True"]


def test_pageable_memory_is_warned_of_once() -> None:
    done = emulate(
        """
        import logging, torch, torchlms
        from torch import nn

        logging.basicConfig()
        net = nn.Sequential(*(nn.Sequential(nn.Linear(512, 512), nn.ReLU()) for _ in range(6))).cuda()
        x = torch.randn(2048, 512).cuda()
        lms = torchlms.offload(budget="min", min_offload_bytes=0, policy="swap")
        for _ in range(3):
            with lms:
                loss = net(x).square().sum()
            loss.backward()
        """,
        "--pinned-cap",
        "4MiB",
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("no more page-locked memory") == 1
