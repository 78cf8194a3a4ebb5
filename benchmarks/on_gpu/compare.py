# SPDX-License-Identifier: BSD-3-Clause
"""The parts of gpu_check.sh that train: gradients within a budget, step times."""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
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
SHARES = (0.6, 0.4)


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


def gpt(scale: int, checkpointed: bool) -> tuple[nn.Module, Loss]:
    net = BlockStack(4 * scale, 256 * scale, checkpointed=checkpointed).cuda()
    inputs = torch.randn(2 * scale, 256, 256 * scale, device="cuda")
    return net, lambda: net(inputs).square().mean()


def resnet50(scale: int, checkpointed: bool) -> tuple[nn.Module, Loss]:
    import torchvision

    net = torchvision.models.resnet50(weights=None).cuda()
    if checkpointed:
        for stage in (net.layer1, net.layer2, net.layer3, net.layer4):
            for block in stage:
                plain = block.forward
                block.forward = lambda x, f=plain: torch.utils.checkpoint.checkpoint(
                    f, x, use_reentrant=False
                )
    images = torch.randn(16 * scale, 3, 224, 224, device="cuda")
    labels = torch.randint(0, 1000, (16 * scale,), device="cuda")
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
    return seconds


def measure(model: str, scale: int, method: str, budget: int, count: int) -> dict[str, Any]:
    """One row: step time and peaks of one way to train one model."""
    torch.manual_seed(0)
    net, loss_of = MODELS[model](scale, method == "checkpoint")
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    lms = torchlms.offload(budget=budget, policy=method) if budget else None
    scope: ScopeMaker = nullcontext
    if lms is not None:
        offload = lms
        scope = lambda: offload  # noqa: E731
    elif method == "save_on_cpu":
        scope = lambda: torch.autograd.graph.save_on_cpu(pin_memory=True)  # noqa: E731
    row: dict[str, Any] = {"model": model, "method": method, "budget_bytes": budget or None}
    try:
        row["step_s"] = statistics.median(steps(net, loss_of, scope, count)[count // 2 :])
    except torch.OutOfMemoryError as error:
        row["error"] = str(error)[:500]
    row["reserved_bytes"] = torch.cuda.max_memory_reserved()
    row["allocated_bytes"] = torch.cuda.max_memory_allocated()
    if lms is not None:
        row["report"] = lms.report().to_dict()
        row["within_budget"] = row["reserved_bytes"] <= budget
    row["gradients"] = [p.grad for p in net.parameters()]
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


def compare(scale: int, methods: dict[str, tuple[float, ...]], count: int) -> list[dict[str, Any]]:
    rows = []
    for model in MODELS:
        plain = measure(model, scale, "plain", 0, count)
        rows.append(plain)
        show(plain)
        for method, shares in methods.items():
            for share in shares:
                budget = int(share * plain["reserved_bytes"])
                row = measure(model, scale, method, budget, count)
                if share:
                    row["share"] = share
                if "step_s" in row and "step_s" in plain:
                    row["num_differing"] = differing(plain["gradients"], row["gradients"])
                del row["gradients"]
                rows.append(row)
                show(row)
        del plain["gradients"]
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("part", choices=("exact", "times"))
    parser.add_argument("--out", required=True)
    parser.add_argument("--scale", type=int, help="size of the models; default: 1 or 4")
    options = parser.parse_args()
    torch.backends.cudnn.benchmark = False
    torch.backends.cudnn.deterministic = True
    if options.part == "exact":
        methods = {"swap": SHARES, "auto": SHARES}
        rows = compare(options.scale or 1, methods, count=4)
    else:
        methods = {"auto": SHARES, "swap": SHARES[:1], "save_on_cpu": (0.0,), "checkpoint": (0.0,)}
        rows = compare(options.scale or 4, methods, count=8)
    Path(options.out).write_text(json.dumps(rows, indent=1))
    bad = [r for r in rows if r.get("num_differing") or r.get("within_budget") is False]
    if options.part == "exact":
        bad += [r for r in rows if "error" in r]
    print(f"{len(rows)} rows, {len(bad)} bad")
    return 1 if bad and options.part == "exact" else 0


if __name__ == "__main__":
    raise SystemExit(main())
