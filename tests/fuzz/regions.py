# SPDX-License-Identifier: BSD-3-Clause
"""What a fuzzed program's lines may run inside of: checkpoints, grad modes, autocast, other hooks."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.checkpoint import checkpoint

from layers import Context

Lines = Callable[[list[Tensor]], None]
"""Runs lines on registers, in place."""

GUARDS: dict[str, Callable[[Context], contextlib.AbstractContextManager[Any]]] = {
    "no_grad": lambda c: torch.no_grad(),
    "enable_grad": lambda c: torch.enable_grad(),
    "inference": lambda c: torch.inference_mode(),
    "autocast": lambda c: torch.autocast("cpu", torch.bfloat16),
    "disabled": lambda c: c.harness.disabled(),
    "nested": lambda c: c.harness.nested(),
    "hooks": lambda c: saved_tensors_hooks(lambda tensor: tensor.clone(), lambda copy: copy),
    "deterministic": lambda c: deterministic(),
}
CHECKPOINTS = {"checkpoint": False, "reentrant": True}
REGIONS = (*GUARDS, *CHECKPOINTS, "two_checkpoints")


@contextlib.contextmanager
def deterministic() -> Any:
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before)


def run_region(region: str, lines: Lines, registers: list[Tensor], context: Context) -> None:
    if region in GUARDS:
        with GUARDS[region](context):
            lines(registers)
        return

    def function(*tensors: Tensor) -> Tensor:
        inner = list(tensors)
        lines(inner)
        return inner[-1]

    if region == "two_checkpoints":
        result = checkpoint(
            lambda *tensors: checkpoint(function, *tensors, use_reentrant=False).sin(),
            *registers,
            use_reentrant=False,
        )
    else:
        result = checkpoint(function, *registers, use_reentrant=CHECKPOINTS[region])
    registers.append(result)
