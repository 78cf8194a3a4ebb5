# SPDX-License-Identifier: BSD-3-Clause
"""ResNet-18 on a device that is too small for plain PyTorch.

    tests/emulated_cuda/run --cap 128MiB python tests/emulated_cuda/resnet18_fits.py

Trains three steps on the CPU, tries them with plain PyTorch on the device, and makes them there with torchlms. Fails
unless plain PyTorch runs out of memory, torchlms reserves no more than its budget, and all gradients, parameters and
running statistics of the last step are the CPU's in every bit."""

from __future__ import annotations

import contextlib
import gc
from contextlib import AbstractContextManager
from typing import Any

import torch
import torchvision
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

import torchlms

MIB = 1 << 20


def train(device: str, scope: AbstractContextManager[Any]) -> list[Tensor]:
    """Gradients, parameters and buffers after the last step."""
    torch.manual_seed(0)
    model = torchvision.models.resnet18(weights=None)
    images, labels = torch.randn(32, 3, 64, 64), torch.randint(0, 1000, (32,))
    model, images, labels = model.to(device), images.to(device), labels.to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for _ in range(3):
        optimizer.zero_grad()
        with scope:
            loss = F.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    return [t.cpu() for t in (loss, *gradients, *model.parameters(), *model.buffers())]


def runs_out_of_memory() -> bool:
    try:
        train("cuda", contextlib.nullcontext())
    except torch.OutOfMemoryError as error:
        print(f"plain PyTorch: {str(error).splitlines()[0][:100]}")
        return True
    print("plain PyTorch: trains")
    return False


def main() -> bool:
    wanted = train("cpu", contextlib.nullcontext())
    budget = torch.cuda.mem_get_info()[1]
    right = runs_out_of_memory()
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    lms = torchlms.offload(budget=budget)
    got = train("cuda", lms)
    reserved = torch.cuda.max_memory_reserved()
    print(
        f"torchlms: trains, {reserved / MIB:.0f} of {budget / MIB:.0f} MiB reserved\n{lms.report()}"
    )
    equal = sum(map(torch.equal, wanted, got))
    print(f"equal to the CPU's: {equal} of {len(wanted)} tensors")
    return right and reserved <= budget and equal == len(wanted) == len(got)


if __name__ == "__main__":
    raise SystemExit(not main())
