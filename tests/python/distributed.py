# SPDX-License-Identifier: BSD-3-Clause
"""Programs that several processes run together, each a function of the scope; run by child processes."""

from __future__ import annotations

import os
from multiprocessing.connection import Connection
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)
from torch.nn.parallel import DistributedDataParallel

from training import (
    ScopeMaker,
    first_difference,
    moved_bytes,
    run,
    run_offloaded,
    seeded,
)

NUM_RANKS = 2
NUM_STEPS = 3


class Branches(nn.Module):
    """Uses one of two layers, by its input, and leaves the gradient of the other out."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.left, self.right = nn.Linear(8, 16), nn.Linear(16, 8), nn.Linear(16, 8)
        self.norm = nn.BatchNorm1d(16)

    def forward(self, inputs: Tensor, goes_left: bool) -> Tensor:
        hidden = F.gelu(self.norm(self.enter(inputs)))
        return (self.left if goes_left else self.right)(hidden).tanh()


def local(tensor: Tensor | None) -> Tensor | None:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def trained(model: nn.Module, scope: ScopeMaker, *, branches: bool) -> Any:
    optimizer, results = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9), []
    for step in range(NUM_STEPS):
        optimizer.zero_grad()
        inputs = seeded(6, 8, seed=10 * dist.get_rank() + step)
        with scope():
            outputs = model(inputs, not (branches and step == 1))
            loss = outputs.square().mean()
        loss.backward()
        results.append([loss.detach(), [local(p.grad) for p in model.parameters()]])
        optimizer.step()
    return [results, [local(value) for value in model.state_dict().values()]]


def unused_parameters(scope: ScopeMaker) -> Any:
    model = DistributedDataParallel(Branches(), find_unused_parameters=True)
    return trained(model, scope, branches=True)


def static_graph(scope: ScopeMaker) -> Any:
    model = DistributedDataParallel(Branches(), static_graph=True, gradient_as_bucket_view=True)
    return trained(model, scope, branches=False)


def fully_sharded(scope: ScopeMaker) -> Any:
    model = Branches()
    for layer in (model.enter, model.left, model.right):
        fully_shard(layer, reshard_after_forward=True)
    fully_shard(model)
    return trained(model, scope, branches=False)


def tensor_parallel(scope: ScopeMaker) -> Any:
    mesh = init_device_mesh("cpu", (NUM_RANKS,))
    model = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8))
    parallelize_module(model, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
    results = []
    for step in range(NUM_STEPS):
        model.zero_grad()
        with scope():
            loss = model(seeded(6, 8, seed=step)).tanh().square().mean()
        loss.backward()
        results.append([loss.detach(), [local(p.grad) for p in model.parameters()]])
    return results


def distributed_tensors(scope: ScopeMaker) -> Any:
    mesh = init_device_mesh("cpu", (NUM_RANKS,))
    weight = distribute_tensor(seeded(8, 8), mesh, [Shard(1)]).requires_grad_()
    results = []
    for step in range(NUM_STEPS):
        weight.grad = None
        inputs = distribute_tensor(seeded(4, 8, seed=step), mesh, [Replicate()])
        with scope():
            outputs = (inputs @ weight).sin().exp()
            loss = outputs.redistribute(placements=[Replicate()]).to_local().sum()
        loss.backward()
        results.append([loss.detach(), local(weight.grad)])
    return results


PROGRAMS = {
    "unused parameters": unused_parameters,
    "static graph": static_graph,
    "fully sharded": fully_sharded,
    "tensor parallel": tensor_parallel,
    "distributed tensors": distributed_tensors,
}


def rank_main(pipe: Connection, rank: int, store: str, policies: list[str]) -> None:
    """Sends, per program and policy: where it differs from plain PyTorch, and the bytes that moved."""
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=NUM_RANKS)
    found: dict[tuple[str, str], Any] = {}
    for name, program in PROGRAMS.items():
        expected = run(program)
        for policy in policies:
            got, report = run_offloaded(program, "min", policy=policy)
            found[name, policy] = (first_difference(expected, got), moved_bytes(report.to_dict()))
    pipe.send(found)
    dist.destroy_process_group()
