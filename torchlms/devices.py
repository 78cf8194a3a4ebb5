# SPDX-License-Identifier: BSD-3-Clause
"""Which device a scope is for, by name as PyTorch gives it: "cpu", "cuda:0"."""

from __future__ import annotations

import functools
import logging

import torch

from torchlms import _C

_logger = logging.getLogger("torchlms")


@functools.cache
def cuda_missing() -> str:
    """Why this copy of torchlms drives no GPUs; empty where it does. Makes no CUDA context."""
    if torch.version.cuda is None:
        return "this torch is built without CUDA"
    return _C.load_cuda_backend()


def current() -> str:
    """The current GPU once this process uses CUDA, else the CPU."""
    if not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return "cpu"
    if cuda_missing():
        _warn_cpu_only()
        return "cpu"
    return f"cuda:{torch.cuda.current_device()}"


def may_become_cuda() -> bool:
    """Whether `current` may be a GPU later although it is none now."""
    is_used = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    return not is_used and not cuda_missing() and torch.cuda.is_available()


def all_of_this_machine() -> list[str]:
    """Those that this copy of torchlms can drive."""
    count = 0 if cuda_missing() else torch.cuda.device_count()
    return ["cpu", *(f"cuda:{index}" for index in range(count))]


def of_module(module: torch.nn.Module) -> str:
    """Where the module's parameters are, or its buffers; `current` for a module without either."""
    for tensors in (module.parameters(), module.buffers()):
        for tensor in tensors:
            if tensor.device.type in ("cpu", "cuda"):
                return named(str(tensor.device))
    return current()


def named(name: str) -> str:
    """The device with an index where it is a GPU.

    Raises:
        ValueError: there is no such device, or this copy of torchlms does not drive it.
    """
    device = torch.device(name)
    if device.type != "cuda":
        return "cpu"
    if cuda_missing():
        raise ValueError(f"torchlms: device={name!r} cannot be used: {cuda_missing()}")
    count = torch.cuda.device_count()
    index = torch.cuda.current_device() if device.index is None and count else device.index or 0
    if index >= count:
        raise ValueError(f"torchlms: device={name!r} is none of the {count} GPUs that there are")
    return f"cuda:{index}"


@functools.cache
def _warn_cpu_only() -> None:
    _logger.warning(
        "this copy of torchlms drives no GPUs (%s): what is on a GPU stays there", cuda_missing()
    )
