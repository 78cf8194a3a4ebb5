# SPDX-License-Identifier: BSD-3-Clause
"""ResNet-50 on random crops of real photographs, as the subject of a cell."""

from __future__ import annotations

import contextlib
import functools
import time
from dataclasses import dataclass, replace
from typing import Any

import torch
import torchvision
from torch.utils.checkpoint import checkpoint

from common import RETURNING_MALLOC, Cell  # also puts the folder of the examples on the path
from photos import random_crops
from resident_memory import ResidentMemory


@dataclass(frozen=True)
class Job:
    """What is trained, and how."""

    batch: int
    size: int
    channels_last: bool = False
    checkpoints_blocks: bool = False
    """torch.utils.checkpoint round each residual block."""
    offload: dict[str, Any] | None = None
    """Fields of torchlms.offload. None: torchlms is not imported."""

    def counted(self) -> Job:
        """The same without torchlms doing anything but count bytes."""
        return replace(self, offload={"policy": "off"})


class ResNetTraining:
    """Plain SGD without momentum, one batch of its own for each step, equal in every process."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._scope: Any = contextlib.nullcontext()
        torchlms = None
        if job.offload is not None:
            import torchlms
        self._memory = ResidentMemory()
        if torchlms is not None:
            self._scope = torchlms.offload(**job.offload)
        torch.manual_seed(0)
        self._model = torchvision.models.resnet50(weights=None)
        if job.channels_last:
            self._model.to(memory_format=torch.channels_last)
        if job.checkpoints_blocks:
            for layer in (getattr(self._model, f"layer{index}") for index in (1, 2, 3, 4)):
                for block in layer:
                    block.forward = functools.partial(
                        checkpoint, block.forward, use_reentrant=False
                    )
        self._optimizer = torch.optim.SGD(self._model.parameters(), lr=0.01)
        self._num_steps = 0

    def step(self) -> dict[str, Any]:
        """Seconds, and what the report says where torchlms is there."""
        images, labels = random_crops(self._job.batch, self._job.size, seed=self._num_steps)
        if self._job.channels_last:
            images = images.to(memory_format=torch.channels_last)
        self._num_steps += 1
        self._optimizer.zero_grad()
        start = time.perf_counter()
        with self._scope:
            loss = torch.nn.functional.cross_entropy(self._model(images), labels)
        loss.backward()
        self._optimizer.step()
        result: dict[str, Any] = {"step_s": time.perf_counter() - start}
        if self._job.offload is not None:
            result["report"] = self._scope.report().to_dict()
        return result

    def try_steps(self, num_steps: int) -> dict[str, Any] | None:
        """The last step's result; None when memory did not suffice."""
        try:
            return [self.step() for _ in range(num_steps)][-1]
        except torch.OutOfMemoryError:
            return None

    def resident_bytes(self) -> int:
        return self._memory.peak_above_start_bytes()

    def save(self, path: str) -> None:
        torch.save(self._model.state_dict(), path)


def count_peak(job: Job, num_steps: int = 2) -> dict[str, int]:
    """Bytes that tensors and the process hold at most, in a process of its own."""
    with Cell(ResNetTraining, job.counted(), environment=RETURNING_MALLOC) as cell:
        peaks = [cell.call("step")["report"]["peak_bytes"] for _ in range(num_steps)]
        return {"peak_bytes": max(peaks), "resident_bytes": cell.call("resident_bytes")}


def differing_tensors(path: str, other_path: str) -> list[str]:
    """Names of the parameters, running statistics and buffers that differ."""
    ours, theirs = torch.load(path), torch.load(other_path)
    return [name for name in ours | theirs if not torch.equal(ours[name], theirs[name])]
