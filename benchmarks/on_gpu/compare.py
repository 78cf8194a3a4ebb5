# SPDX-License-Identifier: BSD-3-Clause
"""The parts of gpu_check.sh: gradients within a budget, the link, step times beside other ways."""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

import torchlms

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests/python"))
from models import Block

Loss = Callable[[], Tensor]
ScopeMaker = Callable[[], AbstractContextManager[Any]]


class BlockStack(nn.Module):
    def __init__(self, num_blocks: int, width: int, *, checkpointed: bool) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block(width, width // 64, 0.0) for _ in range(num_blocks))
        self.checkpointed = checkpointed

    def forward(self, hidden: Tensor) -> Tensor:
        for block in self.blocks:
            if self.checkpointed:
                hidden = torch.utils.checkpoint.checkpoint(block, hidden, use_reentrant=False)
            else:
                hidden = block(hidden)
        return hidden


@dataclass(frozen=True)
class Size:
    batch: int  # of ResNet-50
    pixels: int
    num_blocks: int  # of the GPT
    width: int
    rows: int
    shares: tuple[float, ...] = (0.6, 0.4)  # of plain PyTorch's memory that budgets give
    min_offload_bytes: int = 1 << 20


SIZES = {
    "tiny": Size(16, 64, 4, 128, 4, (0.9, 0.8), 1 << 14),  # to try the script, without a GPU too
    "small": Size(16, 224, 4, 256, 2),
    "large": Size(64, 224, 16, 1024, 8),
}


def gpt(size: Size, checkpointed: bool) -> tuple[nn.Module, Loss]:
    net = BlockStack(size.num_blocks, size.width, checkpointed=checkpointed).cuda()
    inputs = torch.randn(size.rows, 256, size.width, device="cuda")
    return net, lambda: net(inputs).square().mean()


def resnet50(size: Size, checkpointed: bool) -> tuple[nn.Module, Loss]:
    import torchvision

    net = torchvision.models.resnet50(weights=None).cuda()
    if checkpointed:
        for stage in (net.layer1, net.layer2, net.layer3, net.layer4):
            for block in stage:
                plain = block.forward
                block.forward = lambda x, f=plain: torch.utils.checkpoint.checkpoint(
                    f, x, use_reentrant=False
                )
    images = torch.randn(size.batch, 3, size.pixels, size.pixels, device="cuda")
    labels = torch.randint(0, 1000, (size.batch,), device="cuda")
    return net, lambda: F.cross_entropy(net(images), labels)


MODELS = {"resnet50": resnet50, "gpt": gpt}


def steps(net: nn.Module, loss_of: Loss, scope: ScopeMaker, count: int) -> list[float]:
    seconds = []
    for _ in range(count):
        net.zero_grad(set_to_none=True)
        torch.cuda.synchronize()
        start = time.perf_counter()
        with scope():
            loss = loss_of()
        loss.backward()
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - start)
        del loss
    return seconds


def scope_maker(method: str, budget: int, size: Size) -> ScopeMaker | None:
    """None if what that method needs is not installed."""
    if budget:
        lms = torchlms.offload(
            budget=budget, policy=method, min_offload_bytes=size.min_offload_bytes
        )
        return lambda: lms
    if method == "save_on_cpu":
        return lambda: torch.autograd.graph.save_on_cpu(pin_memory=True)
    if method == "trl":
        try:
            from trl.models.activation_offloading import OffloadActivations
        except ImportError as error:
            print(f"no TRL: {error}")
            return None
        offloading = OffloadActivations(use_pin_memory=True, use_streams=True)
        return lambda: offloading
    return nullcontext


def measure(model: str, size: Size, method: str, budget: int, count: int) -> dict[str, Any] | None:
    """One row: step time and peaks of one way to train one model."""
    scope = scope_maker(method, budget, size)
    if scope is None:
        return None
    torch.manual_seed(0)
    net, loss_of = MODELS[model](size, method == "checkpoint")
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    row: dict[str, Any] = {"model": model, "method": method, "budget_bytes": budget or None}
    try:
        row["step_s"] = statistics.median(steps(net, loss_of, scope, count)[count // 2 :])
    except torch.OutOfMemoryError as error:
        row["error"] = str(error)[:500]
    row["reserved_bytes"] = torch.cuda.max_memory_reserved()
    row["allocated_bytes"] = torch.cuda.max_memory_allocated()
    if budget:
        row["report"] = scope().report().to_dict()  # type: ignore[attr-defined]
        row["within_budget"] = row["reserved_bytes"] <= budget
    row["gradients"] = [None if p.grad is None else p.grad.cpu() for p in net.parameters()]
    return row


def differing(plain: list[Any], other: list[Any]) -> int:
    pairs = zip(plain, other, strict=True)
    return sum(one is None or two is None or not torch.equal(one, two) for one, two in pairs)


def show(row: dict[str, Any]) -> None:
    mib = row["reserved_bytes"] / 2**20
    step = f"{row['step_s'] * 1e3:9.1f} ms" if "step_s" in row else "no room"
    share = f"{row['share']:.1f} of plain" if "share" in row else ""
    grads = f"gradients that differ: {row['num_differing']}" if "num_differing" in row else ""
    print(f"{row['model']:9} {row['method']:12} {step:>12} {mib:9.0f} MiB  {share:13} {grads}")


def compare(size: Size, methods: dict[str, tuple[float, ...]], count: int) -> list[dict[str, Any]]:
    rows = []
    for model in MODELS:
        plain = measure(model, size, "plain", 0, count)
        assert plain is not None
        rows.append(plain)
        show(plain)
        for method, shares in methods.items():
            for share in shares:
                budget = int(share * plain["reserved_bytes"])
                row = measure(model, size, method, budget, count)
                if row is None:
                    continue
                if share:
                    row["share"] = share
                if "step_s" in row and "step_s" in plain:
                    row["num_differing"] = differing(plain["gradients"], row["gradients"])
                del row["gradients"]
                rows.append(row)
                show(row)
        del plain["gradients"]
    return rows


def link() -> list[dict[str, Any]]:
    """Bytes per second of copies of 256 MiB, the fastest of a few."""
    size = 256 << 20
    device = [torch.empty(size, dtype=torch.uint8, device="cuda") for _ in range(2)]
    rows = []
    for memory, pinned in (("page-locked", True), ("pageable", False)):
        host = [torch.zeros(size, dtype=torch.uint8, pin_memory=pinned) for _ in range(2)]
        directions = {"out": [(host[0], device[0])], "in": [(device[1], host[1])]}
        if pinned:
            directions["both at once"] = directions["out"] + directions["in"]
        for direction, copies in directions.items():
            seconds = min(timed_copies(copies) for _ in range(5))
            row = {"memory": memory, "direction": direction, "bytes_per_s": size / seconds}
            print(f"{memory:12} {direction:12} {row['bytes_per_s'] / 1e9:8.2f} GB/s each way")
            rows.append(row)
    return rows


def timed_copies(copies: list[tuple[Tensor, Tensor]]) -> float:
    torch.cuda.synchronize()
    start = time.perf_counter()
    for to, source in copies:
        with torch.cuda.stream(torch.cuda.Stream()):
            to.copy_(source, non_blocking=True)
    torch.cuda.synchronize()
    return time.perf_counter() - start


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("part", choices=("exact", "times", "link"))
    parser.add_argument("--out", required=True)
    parser.add_argument("--size", choices=SIZES, help="default: small, for times large")
    options = parser.parse_args()
    torch.backends.cudnn.benchmark = False
    torch.backends.cudnn.deterministic = True
    size = SIZES[options.size or ("large" if options.part == "times" else "small")]
    if options.part == "link":
        rows = link()
    elif options.part == "exact":
        rows = compare(size, {"swap": size.shares, "auto": size.shares}, count=4)
    else:
        peers = {"save_on_cpu": (0.0,), "checkpoint": (0.0,), "trl": (0.0,)}
        rows = compare(size, {"auto": size.shares, "swap": size.shares[:1], **peers}, count=8)
    Path(options.out).write_text(json.dumps(rows, indent=1))
    bad = [r for r in rows if r.get("num_differing") or r.get("within_budget") is False]
    if options.part == "exact":
        bad += [r for r in rows if "error" in r]
    print(f"{len(rows)} rows, {len(bad)} bad")
    return 1 if bad and options.part == "exact" else 0


if __name__ == "__main__":
    raise SystemExit(main())
