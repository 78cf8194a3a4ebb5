# SPDX-License-Identifier: BSD-3-Clause
"""What tests run in processes of their own, which import torchlms by themselves."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import resource
import signal
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import torchlms
from models import ConvStack
from training import SMALLEST, bits, has_hooks, held_bytes, left_bytes, seeded, settle

MIB = 1 << 20
DEADLINE_S = 120


class Child:
    """A process that runs `function(pipe, *arguments)`. Killed when the `with` block ends."""

    def __init__(self, function: Callable[..., None], *arguments: Any) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, self._far_end = context.Pipe()
        self.process = context.Process(target=function, args=(self._far_end, *arguments))
        self.process.start()
        self._far_end.close()

    def __enter__(self) -> Child:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.join()

    def receive(self) -> Any:
        """What the child sends next; EOFError when it ended instead."""
        assert self._pipe.poll(DEADLINE_S), "the child process sends nothing"
        return self._pipe.recv()

    def send(self, value: Any) -> None:
        self._pipe.send(value)

    def kill(self, number: signal.Signals) -> None:
        assert self.process.pid is not None
        os.kill(self.process.pid, number)

    def join(self) -> int | None:
        self.process.join(DEADLINE_S)
        return self.process.exitcode


def call(function: Callable[..., None], *arguments: Any) -> Any:
    """The one value that `function(pipe, *arguments)` sends, which then must end well."""
    with Child(function, *arguments) as child:
        value = child.receive()
        assert child.join() == 0
    return value


def resident_bytes(field: str) -> int:
    """VmRSS or VmHWM of this process."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) << 10
    raise KeyError(field)


def train(model: nn.Module, inputs: Tensor, lms: torchlms.offload, num_steps: int) -> None:
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    for _ in range(num_steps):
        optimizer.zero_grad()
        with lms:
            loss = model(inputs).square().mean()
        loss.backward()
        optimizer.step()


def train_and_measure_memory(pipe: Connection, budget: int) -> None:
    # Warm up first: libraries loaded and scratch memory made at first use are not tensors.
    train(ConvStack(), seeded(1, 3, 64, 64), torchlms.offload(budget="min"), 2)
    start = resident_bytes("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # VmHWM starts again
    lms = torchlms.offload(budget=budget, policy="swap")
    train(ConvStack(), seeded(16, 3, 112, 112), lms, 3)
    outcome = lms.report().to_dict()
    outcome["resident_bytes"] = resident_bytes("VmHWM") - start
    pipe.send(outcome)


def wait_in_step(pipe: Connection, folder: str) -> None:
    """Stops in the middle of a step whose saved tensors are on the disk, until it is killed."""
    model, lms = ConvStack(4), torchlms.offload(**SMALLEST, disk_path=folder)
    with lms:
        loss = model(seeded(4, 3, 64, 64)).square().mean()
        loss.backward()
        hidden = model(seeded(4, 3, 64, 64)).sin()
        pipe.send("in the middle of a step")
        pipe.recv()
    hidden.sum().backward()


def fill_files_to_limits(pipe: Connection, folder: str, limits: list[int]) -> None:
    """Runs a step per limit on the size of files; sends what became of each."""
    expected = losses_and_gradients(torchlms.disabled())
    outcomes = []
    for limit in limits:
        lms = torchlms.offload(**SMALLEST, disk_path=folder, disk_budget=(1 << 30) + limit)
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
        try:
            losses_and_gradients(lms)
            outcomes.append(0)
        except OSError as error:
            outcomes.append(error.errno or -1)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2)
        settle()
        assert not has_hooks()
        assert losses_and_gradients(lms) == expected
    pipe.send(outcomes)


def losses_and_gradients(lms: contextlib.AbstractContextManager[Any], num_steps: int = 2) -> Any:
    """Of a small model, from a fixed start."""
    torch.manual_seed(3)
    model, losses = ConvStack(3), []
    for _ in range(num_steps):
        with lms:
            loss = model(seeded(2, 3, 32, 32)).square().mean()
        loss.backward()
        losses.append(loss.detach())
    return bits([losses, [parameter.grad for parameter in model.parameters()]])


def train_side_by_side(pipe: Connection, folder: str) -> None:
    """Sends a result per round; waits for a word before each, so that two processes keep pace."""
    torch.set_num_threads(1)
    lms = torchlms.offload(**SMALLEST, disk_path=folder)
    while pipe.recv():
        pipe.send(losses_and_gradients(lms))


def step_with_plan(pipe: Connection, path: str) -> None:
    torch.set_num_threads(1)
    lms = torchlms.offload(**SMALLEST, plan=path)
    result = losses_and_gradients(lms, 1)
    pipe.send((lms.report().to_dict()["state"], result))


PLACES_TO_WAIT = ("a swap-out", "an allocation", "a swap-in")


def be_interrupted(pipe: Connection, place: str) -> None:
    """Says when a step is about to wait for a slow link; after Ctrl-C, what it left and whether the
    next steps are right."""
    signal.signal(
        signal.SIGINT, signal.default_int_handler
    )  # it may be ignored where tests are run
    before = held_bytes()
    try:
        if place == "a swap-in":
            wait_for_swap_in(pipe)
        else:
            wait_in_forward(pipe, place)
        pipe.send("not interrupted")
    except KeyboardInterrupt:
        pipe.send("interrupted")
    left = left_bytes(before)
    expected = losses_and_gradients(torchlms.disabled())
    is_exact = losses_and_gradients(torchlms.offload(**SMALLEST)) == expected
    pipe.send({"has_hooks": has_hooks(), "left_bytes": left, "is_exact": is_exact})


def wait_in_forward(pipe: Connection, place: str) -> None:
    values = torch.ones(4 << 20).requires_grad_()
    budget = "min" if place == "a swap-out" else held_bytes() + 40 * MIB
    # 16 MiB at this rate take longer than any deadline: only a wait that sees signals ends in time.
    with torchlms.offload(**(SMALLEST | {"budget": budget}), link_limit="20kB/s"):
        pipe.send("slow")
        loss = (values.exp() * 2).sin().sum()
    loss.backward()


def wait_for_swap_in(pipe: Connection) -> None:
    values = torch.ones(1 << 16).requires_grad_()
    with torchlms.offload(**SMALLEST, link_limit="50kB/s"):
        hidden = values.exp().sin()
    hidden.register_hook(
        lambda _: pipe.send("slow")
    )  # SinBackward is next: it unpacks exp's result
    hidden.sum().backward()


ENDINGS = ("after a step", "with a graph alive", "after a failed backward")


def train_and_end(pipe: Connection, ending: str) -> None:
    """The process ends when this returns: with its graph, if there is one, in a global."""
    lms = torchlms.offload(**SMALLEST)
    losses_and_gradients(lms)
    values = torch.ones(1000, requires_grad=True)
    with lms:
        doubled = values * 2
        one, other = doubled.sin(), doubled.cos()
        squared = one * one
        loss = (squared * other).sum() * 1
    if ending == "with a graph alive":
        globals()["loss"] = loss
    elif ending == "after a failed backward":
        squared.register_hook(raise_interrupt)
        with contextlib.suppress(KeyboardInterrupt):
            loss.backward()
    pipe.send(ending)


def raise_interrupt(_: Tensor) -> None:
    raise KeyboardInterrupt
