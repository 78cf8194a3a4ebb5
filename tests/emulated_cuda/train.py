# SPDX-License-Identifier: BSD-3-Clause
"""Trains a small model on the emulated device, plain or under torchlms; a program of its own, since caps, delays
and failures hold for a whole process. Prints one line of JSON; --out saves what must be equal."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import bed
import torch
import torch.nn.functional as F  # noqa: N812
import torchvision
from torch import Tensor, nn

import torchlms
from models import Block

torch.backends.cudnn.enabled = False  # the emulation has no cuDNN

Loss = Callable[[], Tensor]


def resnet18() -> tuple[nn.Module, Loss]:
    net = torchvision.models.resnet18(weights=None).cuda()
    images, labels = torch.randn(32, 3, 64, 64).cuda(), torch.randint(0, 1000, (32,)).cuda()
    return net, lambda: F.cross_entropy(net(images), labels)


def gpt() -> tuple[nn.Module, Loss]:
    net = nn.Sequential(*(Block(128, 4, dropout=0.1) for _ in range(4))).cuda()
    inputs = torch.randn(16, 96, 128).cuda()
    return net, lambda: net(inputs).square().mean()


def lstm() -> tuple[nn.Module, Loss]:
    net = nn.LSTM(128, 256, num_layers=2, batch_first=True).cuda()
    inputs = torch.randn(64, 48, 128).cuda()
    return net, lambda: net(inputs)[0].square().mean()


MODELS = {"resnet18": resnet18, "gpt": gpt, "lstm": lstm}


def grown(levels: list[int]) -> int:
    """By how much the level of later steps is above that of the first that follow a plan."""
    return max(levels[len(levels) // 2 :]) - max(levels[: len(levels) // 2])


class PinnedBlocks:
    """Watches how many page-locked blocks are made in steps that repeat the one before: that follow the same plan,
    and evict nothing that it did not foresee."""

    def __init__(self) -> None:
        self._steps: list[tuple[int, Any]] = []

    def step_ended(self, lms: torchlms.offload | None) -> None:
        report = lms.report().to_dict() if lms else {}
        plan = [report.get(name) for name in ("state", "evictions", "predicted_step_us")]
        self._steps.append((bed.counter("pinned_allocations"), plan))

    def new_in_later_half(self) -> int:
        later = self._steps[len(self._steps) // 2 :]
        return sum(two - one for (one, plan), (two, same) in pairwise(later) if plan == same)


def train(options: argparse.Namespace) -> dict[str, Any]:
    torch.manual_seed(options.model_seed)
    net, loss_of = MODELS[options.model]()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    settings: dict[str, Any] = {"policy": options.policy, "min_offload_bytes": options.min_bytes}
    settings |= {"host_budget": options.host_budget} if options.host_budget is not None else {}
    settings |= {"disk_path": options.disk_path} if options.disk_path else {}
    lms = None if options.plain else torchlms.offload(budget=options.budget, **settings)
    results: list[Any] = []
    allocated, errors = [], []
    pinned = PinnedBlocks()
    if options.fail:
        bed.set_knob("FAIL", options.fail)
    for step in range(options.steps):
        torch.manual_seed(1)
        try:
            if lms is None:
                loss = loss_of()
            else:
                with lms:
                    loss = loss_of()
            loss.backward()
            torch.cuda.synchronize()
        except (RuntimeError, OSError) as error:
            if not options.keep_going:
                raise
            errors.append(f"{type(error).__name__}: {error}")
            loss = None
            optimizer.zero_grad()
            continue
        if step == options.steps - 1:
            bed.set_knob("FAIL", "")
            results = [loss.detach().cpu(), *(p.grad.cpu() for p in net.parameters())]
            results += [b.cpu() for b in net.buffers()]
        if options.update:
            optimizer.step()
        optimizer.zero_grad()
        del loss
        allocated.append(torch.cuda.memory_allocated())
        pinned.step_ended(lms)
    if options.out:
        torch.save(results, options.out)
    found = {
        "reserved": torch.cuda.max_memory_reserved(),
        "allocated": torch.cuda.max_memory_allocated(),
        "grown": grown(allocated) if len(allocated) > 3 else 0,
        "new_pinned": pinned.new_in_later_half(),
        "errors": errors,
        "races": bed.races(),
    }
    return found if lms is None else found | {"report": lms.report().to_dict()}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("model", choices=MODELS)
    parser.add_argument("--plain", action="store_true")
    parser.add_argument("--budget", type=int)
    parser.add_argument("--policy", default="swap")
    parser.add_argument("--min-bytes", type=int, default=1 << 12)
    parser.add_argument("--host-budget", type=int)
    parser.add_argument("--disk-path")
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--model-seed", type=int, default=0)
    parser.add_argument("--update", action="store_true", help="step the optimizer")
    parser.add_argument("--keep-going", action="store_true", help="after a step that failed")
    parser.add_argument("--fail", help="once the model is there: cudaMalloc:7")
    parser.add_argument("--out")
    options = parser.parse_args()
    try:
        found = train(options)
    except torch.OutOfMemoryError as error:
        found = {"out_of_memory": str(error)}
    print(json.dumps(found))


if __name__ == "__main__":
    main()
