# SPDX-License-Identifier: BSD-3-Clause
"""Running a fuzzed program, plain or under torchlms, and noting all that must be equal."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from layers import COLUMNS, Context, Harness, Layers
from program import OPS, FuzzProgram, Line, Step
from regions import REGIONS, run_region
from training import bits, in_threads, seeded, settle
from writes import WRITES, is_writable

MOST_REGISTERS = 6


class PlainHarness:
    """PyTorch by itself."""

    def forward(self, function: Callable[[], Any]) -> Any:
        return function()

    def nested(self) -> contextlib.AbstractContextManager[Any]:
        return contextlib.nullcontext()

    def disabled(self) -> contextlib.AbstractContextManager[Any]:
        return contextlib.nullcontext()

    def keep(self, tensor: Tensor) -> Tensor:
        return tensor


class HookedHarness(PlainHarness):
    """PyTorch with hooks that do nothing but what PyTorch leaves to hooks: to look at versions."""

    def forward(self, function: Callable[[], Any]) -> Any:
        with saved_tensors_hooks(pack, unpack):
            return function()


def version_of(tensor: Tensor) -> int:
    return 0 if tensor.is_inference() else tensor._version


def pack(tensor: Tensor) -> tuple[Tensor, int]:
    return tensor.detach(), version_of(tensor)


def unpack(packed: tuple[Tensor, int]) -> Tensor:
    tensor, version = packed
    if version_of(tensor) != version:
        raise RuntimeError("a saved tensor has been modified by an inplace operation")
    return tensor.detach()


def make_optimizer(name: str, layers: Layers) -> torch.optim.Optimizer | None:
    parameters = [parameter for parameter in layers.parameters() if parameter.requires_grad]
    if "sgd" in name or name == "momentum":
        momentum = 0.9 if name == "momentum" else 0.0
        return torch.optim.SGD(parameters, 0.01, momentum=momentum, fused="fused" in name or None)
    if "adam" in name:
        return torch.optim.Adam(
            parameters, 0.01, fused="fused" in name or None, foreach="foreach" in name or None
        )
    return None


def run_lines(
    lines: tuple[Line, ...], registers: list[Tensor], context: Context, skipped: int = -1
) -> None:
    index = 0
    while index < len(lines):
        line = lines[index]
        index += 1
        if index - 1 == skipped:
            continue
        if line.op in REGIONS:
            body = lines[index : index + 1 + line.first % 4]
            index += len(body)
            if line.op in ("hooks", "checkpoint", "two_checkpoints"):
                # Hooks copy rrelu's noise before rrelu has made it; a checkpoint that runs again stops there.
                body = tuple(
                    dataclasses.replace(inner, op="gelu") if inner.op == "rrelu" else inner
                    for inner in body
                )
            run_region(
                line.op,
                lambda inner, body=body: run_lines(body, inner, context),
                registers,
                context,
            )
            continue
        run_line(line, registers, context)


def run_line(line: Line, registers: list[Tensor], context: Context) -> None:
    first = registers[line.first % len(registers)]
    second = registers[line.second % len(registers)]
    if line.op in OPS:
        registers.append(OPS[line.op](first, second, context))
    elif line.op in WRITES:
        if is_writable(first):
            WRITES[line.op](first, second, context)
    elif line.op == "threads":
        torch.set_num_threads(3 - min(torch.get_num_threads(), 2))
    elif line.op == "raises":
        if context.step % 3 == 1:
            raise LookupError("a line of the program")
    elif len(registers) > 1:
        registers.pop(line.first % len(registers))  # "forget"
    if len(registers) > MOST_REGISTERS:
        registers.pop(line.second % 3)  # dead, or alive through its graph only


class Trainer:
    """One thread's run of a program: its own layers, inputs and optimizer."""

    def __init__(self, program: FuzzProgram, harness: Any, results: list[Any]) -> None:
        self.program = program
        self.harness = harness
        self.layers = Layers()
        self.parameters = list(self.layers.parameters())
        self.inputs = seeded(32, COLUMNS).requires_grad_()
        self.optimizer = make_optimizer(program.optimizer, self.layers)
        self.late: Tensor | None = None  # a loss of an earlier step, to go backward from
        self.results = results

    def train(self) -> None:
        for index, step in enumerate(self.program.steps):
            values: list[Any] = []
            try:
                self._step(index, step, values)
                if self.optimizer is not None:
                    self.optimizer.step()
                values.append("done")
            except torch.OutOfMemoryError:
                raise
            except Exception as error:
                # Plain PyTorch must refuse the same step, maybe at another place: any hooks make it look at
                # the history of what is saved when it is saved, not when it is read.
                values[:] = [type(error).__name__]
                values.append(Note(f"step {index} {step}: {type(error).__name__}: {error}"))
                self.late = None
                del error
                self._forget_gradients(
                    to_none=True
                )  # how far a backward came that raised is nobody's promise
                settle()
            self.results.append(values)
            self.results.append(self._state())
            if not step.accumulates:
                self._forget_gradients(to_none=index % 2 == 0)
        self.late = None

    def _forget_gradients(self, to_none: bool) -> None:
        self.inputs.grad = None
        for parameter in self.parameters:
            if to_none or parameter.grad is None:
                parameter.grad = None
            else:
                parameter.grad.detach_().zero_()

    def _state(self) -> list[Any]:
        state: list[Any] = [self.inputs.grad, list(self.layers.buffers())]
        state += [(parameter, parameter.grad) for parameter in self.parameters]
        if self.optimizer is not None:
            state += [list(values.values()) for values in self.optimizer.state.values()]
        return bits([state, torch.get_rng_state(), self.layers.generator.get_state()])

    def _forward(self, index: int, step: Step, values: list[Any]) -> Tensor:
        """The loss of one forward pass, wholly or partly under the harness."""
        harness: Harness = self.harness
        context = Context(self.layers, harness, step.rows, index)
        registers = [self.inputs[: step.rows].clone(), self.inputs[: step.rows].sin()]
        lines = self.program.lines

        def loss_of() -> Tensor:
            chosen = [registers[output % len(registers)] for output in self.program.outputs]
            losses = [context.matrix(output).clamp(-50, 50).square().mean() for output in chosen]
            values.extend(bits(chosen))
            registers.clear()
            return torch.stack(losses).sum()

        def whole() -> Tensor:
            run_lines(lines, registers, context, step.skipped)
            return loss_of()

        if step.ending == "outside":
            return whole()
        if step.ending in ("split", "half_outside"):
            half = len(lines) // 2
            first = self.harness.forward if step.ending == "split" else lambda function: function()
            first(lambda: run_lines(lines[:half], registers, context, step.skipped))
            return self.harness.forward(
                lambda: (run_lines(lines[half:], registers, context), loss_of())[1]
            )
        return self.harness.forward(whole)

    def _step(self, index: int, step: Step, values: list[Any]) -> None:
        late, self.late = self.late, None
        if step.ending in ("eval", "inference"):
            with torch.no_grad() if step.ending == "eval" else torch.inference_mode():
                self._forward(index, step, values)
        elif step.ending in ("inside", "double_inside"):
            ending = step.ending.removesuffix("_inside")
            with self.harness.nested():
                self._finish(ending, self._forward(index, step, values), index, step, values)
        else:
            self._finish(step.ending, self._forward(index, step, values), index, step, values)
        if late is not None:
            late.backward()

    def _finish(self, ending: str, loss: Tensor, index: int, step: Step, values: list[Any]) -> None:
        values += bits(loss)
        some = [self.inputs, self.layers.scale, self.layers.linear.weight]
        if ending == "retain":
            loss.backward(retain_graph=True)
            values += bits(torch.autograd.grad(loss, some, retain_graph=True, allow_unused=True))
            loss.backward()
        elif ending == "retain_late":
            loss.backward(retain_graph=True)
            self.late = loss
        elif ending == "late":
            self.late = loss
        elif ending == "grad":
            values += bits(torch.autograd.grad(loss, some, allow_unused=True))
        elif ending == "inputs":
            loss.backward(inputs=some[:2])
        elif ending == "double":
            (slope,) = torch.autograd.grad(loss, self.inputs, create_graph=True)
            (loss + slope.square().sum()).backward()
        elif ending in ("pair", "interleaved"):
            other = self._forward(index, step, values)
            if ending == "pair":
                (loss + other).backward()
            else:
                other.backward()
                loss.backward()
        elif ending == "thread":
            in_threads(loss.backward)
        elif ending != "drop":
            self._change_parameters(ending)
            loss.backward()

    def _change_parameters(self, ending: str) -> None:
        parameters = [
            parameter for parameter in self.layers.parameters() if parameter.requires_grad
        ]
        if ending == "stale":
            with torch.no_grad():
                torch._foreach_mul_(parameters, 0.9)
        elif ending == "stale_fused":  # bumps no version
            for parameter in parameters:
                parameter.grad = torch.ones_like(parameter)
            torch.optim.SGD(parameters, 0.01, fused=True).step()
        elif ending == "swap_data":  # backward sees the new bytes of leaves, at whatever version
            for parameter in self.parameters:
                parameter.data = parameter.data * 0.9


class Note(str):
    """Says what happened; not compared."""


def run_program(program: FuzzProgram, harness: Any) -> list[Any]:
    """Results of each trainer from a known generator state on."""
    settle()
    torch.set_num_threads(1)
    torch.manual_seed(1)
    results: list[list[Any]] = [[] for _ in range(program.num_trainers)]
    trainers = [Trainer(program, harness, place) for place in results]
    if program.num_trainers == 1:
        trainers[0].train()
    else:
        in_threads(*(trainer.train for trainer in trainers))
    return results
