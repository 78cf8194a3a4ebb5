# SPDX-License-Identifier: BSD-3-Clause
"""One row of the table of peers, measured in a process of its own, since a cap holds for a whole process.
Prints one line of JSON; --out saves the gradients of a step that was computed.

The steps that are timed compute nothing: each operator takes the time that a model of the GPU says, and copies are
real. The last step computes, under the very same plan, and its gradients are compared."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import bed
import torch
import torchvision
from peers import PEERS
from small_models import Case, Gpt
from torch import nn
from torch.nn import functional as F  # noqa: N812
from torch.utils.checkpoint import checkpoint

import torchlms

MIN_OFFLOAD_BYTES = 1 << 16
NUM_LEARNING_STEPS = 10
TORCHLMS = ("auto", "hybrid", "swap", "recompute")
PEER_METHODS = ("save_on_cpu", "torchtune", "torchtune, streams", "trl", "trl, streams")
METHODS = ("plain", *TORCHLMS, "checkpoint", "checkpoint, save_on_cpu", *PEER_METHODS)
Scope = Callable[[], AbstractContextManager[Any]]


@dataclass(frozen=True)
class Speed:
    """What a GPU reaches, and how many times slower all of it is here, so that the host is never what is slow."""

    flops_per_s: float
    memory_bytes_per_s: float
    link_bytes_per_s: float
    times_slower: int

    def set_knobs(self) -> None:
        bed.set_knob("FLOPS_PER_S", self.flops_per_s / self.times_slower)
        bed.set_knob("MEMORY_BYTES_PER_S", self.memory_bytes_per_s / self.times_slower)
        for name in ("H2D_BYTES_PER_S", "D2H_BYTES_PER_S"):
            bed.set_knob(name, self.link_bytes_per_s / self.times_slower)


# Dense float32 (TF32 where there is one), device memory, the link in one direction.
SPEEDS = {
    "v100": Speed(14e12, 800e9, 12e9, 500),
    "h200": Speed(400e12, 4e12, 55e9, 4000),
}


def resnet18() -> Case:
    model = torchvision.models.resnet18(weights=None)
    return Case(model, torch.randn(32, 3, 128, 128), torch.randint(0, 1000, (32,)))


def gpt() -> Case:
    return Case(Gpt(3, 512), torch.randint(0, 100, (64, 32)), torch.randint(0, 100, (2048,)))


def tiny() -> Case:
    return Case(Gpt(4, 128), torch.randint(0, 100, (8, 32)), torch.randint(0, 100, (256,)))


MODELS = {"resnet18": resnet18, "gpt": gpt, "tiny": tiny}


def checkpoint_blocks(model: nn.Module) -> None:
    from small_models import Block

    for module in model.modules():
        if isinstance(module, (Block, torchvision.models.resnet.BasicBlock)):
            module.forward = lambda x, f=module.forward: checkpoint(f, x, use_reentrant=False)


def scope_of(method: str, model: nn.Module, budget: int) -> Scope | None:
    """None if that peer is not installed."""
    if method in TORCHLMS:
        lms = torchlms.offload(budget=budget, policy=method, min_offload_bytes=MIN_OFFLOAD_BYTES)
        return lambda: lms
    first, *rest = method.split(", ")
    if first == "checkpoint":
        checkpoint_blocks(model)
        first = rest[0] if rest else "plain"
    if first == "plain":
        return contextlib.nullcontext
    offloading = PEERS[first](rest == ["streams"])
    return None if offloading is None else lambda: offloading


def step(model: nn.Module, small: Case, scope: Scope) -> float:
    """Milliseconds on the device's clock."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    model.zero_grad(set_to_none=True)
    torch.cuda.synchronize()
    start.record()
    with scope(), torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        loss = F.cross_entropy(model(small.inputs), small.labels)
    loss.backward()
    end.record()
    torch.cuda.synchronize()
    return float(start.elapsed_time(end))


def link_busy_ms() -> float:
    return (bed.counter("h2d_busy_ns") + bed.counter("d2h_busy_ns")) / 1e6


def moved_bytes() -> int:
    return bed.counter("h2d_bytes") + bed.counter("d2h_bytes")


def told(lms: Any) -> dict[str, Any]:
    """What torchlms says of the step that ran last."""
    report = lms.report().to_dict()
    names = ("predicted_step_us", "measured_step_us", "lower_bound_us", "stall_us", "recompute_us")
    names += ("swapped_bytes", "recomputed_bytes", "evictions", "floor_bytes", "plan_us")
    return {name: report[name] for name in names}


def measure(options: argparse.Namespace) -> dict[str, Any]:
    torch.manual_seed(0)
    small = MODELS[options.model]()
    model = small.model.cuda()
    small = Case(model, small.inputs.cuda(), small.labels.cuda())
    scope = scope_of(options.method, model, options.cap)
    if scope is None:
        return {"error": "not installed"}
    torch.cuda.synchronize()
    SPEEDS[options.balance].set_knobs()
    bed.set_knob("COMPUTE", 0)
    torch.cuda.reset_peak_memory_stats()
    learns = options.method in TORCHLMS
    row: dict[str, Any] = {"reports": []}
    for number in range(-NUM_LEARNING_STEPS if learns else -1, options.steps):
        if number == 0:
            moved, busy = moved_bytes(), link_busy_ms()
            if not learns:  # what torchlms takes while it learns counts too
                torch.cuda.reset_peak_memory_stats()
            row["steps_ms"] = []
        took_ms = step(model, small, scope)
        if learns:
            row["reports"].append(told(scope()) | {"took_us": took_ms * 1e3})
        if number >= 0:
            row["steps_ms"].append(took_ms)
    row["moved_bytes"] = (moved_bytes() - moved) // options.steps
    row["link_busy_ms"] = (link_busy_ms() - busy) / options.steps
    bed.set_knob("COMPUTE", 1)
    for name in ("FLOPS_PER_S", "MEMORY_BYTES_PER_S", "H2D_BYTES_PER_S", "D2H_BYTES_PER_S"):
        bed.set_knob(name, 0)
    step(model, small, scope)
    row["allocated_bytes"] = torch.cuda.max_memory_allocated()
    row["reserved_bytes"] = torch.cuda.max_memory_reserved()
    row["races"] = bed.counter("races")
    torch.save([p.grad.cpu() for p in model.parameters()], options.out)
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("model", choices=MODELS)
    parser.add_argument("method", choices=METHODS)
    parser.add_argument("--balance", choices=SPEEDS, default="v100")
    parser.add_argument("--cap", type=int, default=0, help="also torchlms's budget")
    parser.add_argument("--steps", type=int, default=3, help="that are timed")
    parser.add_argument("--out", required=True)
    options = parser.parse_args()
    try:
        row = measure(options)
    except torch.OutOfMemoryError as error:
        row = {"error": "out of memory", "text": str(error)}
    print(json.dumps(row), flush=True)
    bed.forget_races()  # they are in the row
    if "error" in row:  # a peer's hooks may still run on autograd's thread, which does not end well
        os._exit(0)


if __name__ == "__main__":
    main()
