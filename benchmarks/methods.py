# SPDX-License-Identifier: BSD-3-Clause
"""The methods of the table: the ways to train a model in less memory, as the subject of a cell."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts

from models import MODELS

PLAIN, PLAIN_AGAIN = "plain", "plain again"
CHECKPOINT, SELECTIVE, COMPILED = "checkpoint", "selective", "activation_memory_budget"
PEERS = (CHECKPOINT, SELECTIVE, COMPILED)
SINGLE_POLICIES = ("swap", "recompute", "hybrid")
AUTO = "auto"
POLICIES = (*SINGLE_POLICIES, AUTO)
METHODS = (*PEERS, *POLICIES)

HEAVY_OPS = (
    "convolution",
    "mm",
    "addmm",
    "bmm",
    "baddbmm",
    "_scaled_dot_product_flash_attention_for_cpu",
    "mkldnn_rnn_layer",
)


@dataclass(frozen=True)
class Job:
    """One cell: what is trained, and how."""

    model: str
    quick: bool
    method: str = PLAIN
    budget_bytes: int | None = None
    plain_peak_bytes: int | None = None
    link_limit: str | None = None
    counts: bool = False
    """Peers only: torchlms counts their bytes. Timed peers do not import it."""

    def offload_fields(self) -> dict[str, Any] | None:
        """None: torchlms is not imported."""
        if self.counts:
            return {"policy": "off"}
        if self.method not in POLICIES:
            return None
        return {
            "policy": self.method,
            "budget": self.budget_bytes,
            "link_limit": self.link_limit,
        }


class Training:
    """SGD without momentum, one batch of its own for each step, equal in every process."""

    def __init__(self, job: Job) -> None:
        self._scope: Any = contextlib.nullcontext()
        self._is_reported = (fields := job.offload_fields()) is not None
        if self._is_reported:
            import torchlms

            self._scope = torchlms.offload(**fields)
        entry = MODELS[job.model]
        torch.manual_seed(0)
        self._workload = entry.build(**entry.sizes(job.quick))
        self._model = self._workload.model
        self._forward: Any = self._model
        if job.method in (CHECKPOINT, SELECTIVE):
            _checkpoint_blocks(self._workload.blocks, saves_heavy_ops=job.method == SELECTIVE)
        elif job.method == COMPILED:
            self._forward = _compile(self._model, job)
        self._optimizer = torch.optim.SGD(self._model.parameters(), lr=0.01)
        self._num_steps = 0

    def step(self) -> dict[str, Any]:
        """Seconds, and what the report says where torchlms is there."""
        inputs, targets = self._workload.batch(self._num_steps)
        self._num_steps += 1
        self._optimizer.zero_grad()
        torch.manual_seed(self._num_steps)
        start = time.perf_counter()
        with self._scope:
            loss = self._workload.loss(self._forward(inputs), targets)
        loss.backward()
        self._optimizer.step()
        result: dict[str, Any] = {"step_s": time.perf_counter() - start}
        if self._is_reported:
            result["report"] = self._scope.report().to_dict()
        return result

    def digests(self) -> dict[str, dict[str, str]]:
        """A hash of every tensor that training changes, to be compared bit by bit."""
        gradients = {}
        for name, parameter in self._model.named_parameters():
            gradients[name] = _digest(parameter)
            gradients[f"{name}.grad"] = "" if parameter.grad is None else _digest(parameter.grad)
        buffers = {name: _digest(buffer) for name, buffer in self._model.named_buffers()}
        return {"gradients": gradients, "buffers": buffers}


def _digest(tensor: Tensor) -> str:
    values = tensor.detach().contiguous().reshape(-1).view(torch.uint8)
    return hashlib.blake2b(values.numpy(), digest_size=16).hexdigest()


def _checkpoint_blocks(blocks: list[nn.Module], saves_heavy_ops: bool) -> None:
    options: dict[str, Any] = {"use_reentrant": False}
    if saves_heavy_ops:
        packets = [getattr(torch.ops.aten, name) for name in HEAVY_OPS]
        ops = [packet.default for packet in packets]
        options["context_fn"] = functools.partial(create_selective_checkpoint_contexts, ops)
    for block in blocks:
        block.forward = functools.partial(_checkpointed, block.forward, options)


def _checkpointed(forward: Callable[..., Any], options: dict[str, Any], *args: Any) -> Any:
    # DenseNet appends to the list that it passes on: the replay must see it as it was.
    return checkpoint(forward, *(list(a) if isinstance(a, list) else a for a in args), **options)


def _compile(model: nn.Module, job: Job) -> Any:
    import torch._functorch.config

    # The setting is a fraction of the activations: what is there without them is not theirs.
    fixed = sum(tensor.nbytes for tensor in (*model.parameters(), *model.buffers()))
    fraction = (job.budget_bytes - fixed) / (job.plain_peak_bytes - fixed)
    torch._functorch.config.activation_memory_budget = min(max(fraction, 0.0), 1.0)
    # RNNs stay outside, as is the default: unrolled over their steps they compile for many minutes.
    return torch.compile(model)


class Attempt:
    """A Training whose errors are answers and not exceptions: some of them cannot be pickled."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._training: Training | None = None

    def open(self) -> dict[str, Any]:
        """Makes the model: not in the constructor, whose errors are exceptions."""

        def make() -> None:
            self._training = Training(self._job)

        return _answer(make)

    def step(self) -> dict[str, Any]:
        return _answer(self._training.step)

    def digests(self) -> dict[str, Any]:
        return _answer(self._training.digests)


def _answer(function: Callable[[], Any]) -> dict[str, Any]:
    try:
        return {"value": function()}
    except (Exception, SystemExit) as error:  # an example whose packages are missing exits
        return {"failure": f"{type(error).__name__}: {error}"}
