# SPDX-License-Identifier: BSD-3-Clause
"""Running one program twice, plain and under torchlms, and comparing every bit.

A program is a function of `scope`, which gives the context manager to put round a forward pass. It
returns all that must be equal: tensors, None, numbers, in lists and dicts.
"""

from __future__ import annotations

import contextlib
import gc
import itertools
import threading
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

import torchlms
from torchlms import _C
from torchlms.report import Report

ScopeMaker = Callable[[], contextlib.AbstractContextManager[Any]]
Program = Callable[[ScopeMaker], Any]

SMALLEST: dict[str, Any] = {"budget": "min", "min_offload_bytes": 0, "policy": "swap"}
_session_ids = itertools.count()
BUDGETS = ("min", "tight", "roomy")


def flatten(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return [leaf for key in value for leaf in (key, *flatten(value[key]))]
    if isinstance(value, list | tuple):
        return [leaf for element in value for leaf in flatten(element)]
    return [value]


def bits(value: Any) -> list[Any]:
    """The value's leaves, each tensor as its type, shape and bytes, which take no device memory."""
    leaves = flatten(value)
    for place, leaf in enumerate(leaves):
        if isinstance(leaf, Tensor):
            plain = leaf.detach().resolve_conj().resolve_neg().contiguous().reshape(-1)
            raw = plain.view(torch.uint8).numpy().tobytes()
            leaves[place] = (str(leaf.dtype), tuple(leaf.shape), raw)
    return leaves


def first_difference(expected: Any, got: Any) -> str | None:
    """Where two results differ in a single bit; None if nowhere."""
    left, right = bits(expected), bits(got)
    if len(left) != len(right):
        return f"{len(left)} results became {len(right)}"
    for place, (one, other) in enumerate(zip(left, right, strict=True)):
        if one != other:
            if not isinstance(one, tuple) or not isinstance(other, tuple):
                return f"result {place}: {one!r} became {other!r}"
            return f"result {place}: {one[:2]} became {other[:2]} of other bytes"
    return None


def run(program: Program, scope: ScopeMaker = contextlib.nullcontext) -> list[Any]:
    """The program's results from a fixed generator state on, and the state it leaves behind."""
    settle()
    torch.manual_seed(1)
    result = program(scope)
    return [result, torch.get_rng_state()]


def scopes(budget: Any = "min", **settings: Any) -> tuple[torchlms.offload, ScopeMaker]:
    """An offload of a session that nobody else has: equal settings would continue with its plans."""
    settings.setdefault("disk_budget", (1 << 32) + next(_session_ids))
    lms = torchlms.offload(**(SMALLEST | {"budget": budget} | settings))
    return lms, lambda: lms


def budget_between(program: Program, budget: str) -> Any:
    """ "min"; or bytes a little above the program's floor, which swapping reaches ("tight"), or half
    way up to its plain peak ("roomy")."""
    if budget == "min":
        return budget
    report = run_offloaded(program, "min", policy="swap")[1].to_dict()
    floor, peak = report["peak_bytes"], max(report["unlimited_peak_bytes"], report["peak_bytes"])
    share = {"tight": 0.1, "roomy": 0.5}[budget]
    return int(floor + share * (peak - floor)) + (256 << 10)


def run_offloaded(program: Program, budget: Any, **settings: Any) -> tuple[list[Any], Report]:
    """The program's results and the last step's report; the budget has ended when it returns."""
    lms, scope = scopes(budget, **settings)
    return run(program, scope), lms.report()


def assert_exact(program: Program, budget: str = "min", **settings: Any) -> dict[str, Any]:
    """Checks the program under torchlms against plain, and returns the last step's report."""
    expected = run(program)
    got, report = run_offloaded(program, budget_between(program, budget), **settings)
    difference = first_difference(expected, got)
    assert difference is None, f"{difference}\n{report}"
    return report.to_dict()


def moved_bytes(report: dict[str, Any]) -> int:
    return report["swapped_bytes"] + report["recomputed_bytes"]


def state_of(model: nn.Module, optimizer: torch.optim.Optimizer | None = None) -> list[Any]:
    """Parameters, gradients, buffers and optimizer state."""
    state = [model.state_dict(), [parameter.grad for parameter in model.parameters()]]
    if optimizer is not None:
        state += [list(values.values()) for values in optimizer.state.values()]
    return state


def seeded(*shape: int, seed: int = 0, **options: Any) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), **options)


def settle() -> None:
    """Frees graphs that nobody uses: those in the cycles of caught exceptions, and what PyTorch left
    queued on this thread when a backward raised, until the next backward."""
    gc.collect()
    torch.zeros((), requires_grad=True).backward()


def held_bytes() -> int:
    """Bytes that tensors in use hold on the device now."""
    settle()
    return _C.device_memory()["held_bytes"]


def left_bytes(before: int, held: Callable[[], int] = held_bytes) -> int:
    """Bytes held above `before`, once copies in flight, which free their blocks when they end, are
    done; 0 when nothing is left."""
    deadline = time.monotonic() + 60
    while (left := held() - before) > 0 and time.monotonic() < deadline:
        time.sleep(0.001)
    return max(left, 0)


def has_hooks() -> bool:
    return torch._C._autograd._top_saved_tensors_default_hooks(True) is not None


def in_threads(*functions: Callable[[], None]) -> None:
    """Runs the functions at once; raises the first error of any."""
    errors: list[BaseException] = []

    def guarded(function: Callable[[], None]) -> None:
        try:
            function()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(function,)) for function in functions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
