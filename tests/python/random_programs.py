# SPDX-License-Identifier: BSD-3-Clause
"""Random training programs as plain values: made from a seed, run, shrunk, printed.

A program is a list of instructions over registers that hold tensors of N x N, N x 1, 1 x N or 1 x 1.
Operands are taken modulo what is there, so any sub-list of a program's lines is a program too.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from training import ScopeMaker, bits, seeded, settle

N = 32


class Shared(nn.Module):
    """What several instructions of a program use: parameters, and layers with buffers."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(N, N)
        self.norm = nn.LayerNorm(N)
        self.batch_norm = nn.BatchNorm1d(N)
        self.conv = nn.Conv1d(1, 1, 3, padding=1)
        self.scale = nn.Parameter(torch.ones(N))
        self.frozen = nn.Parameter(torch.full((N, N), 0.5), requires_grad=False)


def full(value: Tensor) -> Tensor:
    return value.expand(N, N)


Unary = Callable[[Tensor, Shared], Tensor]
Binary = Callable[[Tensor, Tensor, Shared], Tensor]

UNARY: dict[str, Unary] = {
    "sin": lambda a, _: a.sin(),
    "sigmoid": lambda a, _: a.sigmoid(),
    "exp": lambda a, _: (a.clamp(-3, 3)).exp(),
    "gelu": lambda a, _: F.gelu(a),
    "softmax": lambda a, _: full(a).softmax(1),
    "linear": lambda a, s: s.linear(full(a)),
    "tied": lambda a, s: F.linear(full(a), s.linear.weight.t()),
    "frozen": lambda a, s: full(a) @ s.frozen,
    "norm": lambda a, s: s.norm(full(a)),
    "batch_norm": lambda a, s: s.batch_norm(full(a)),
    "conv": lambda a, s: s.conv(full(a).unsqueeze(1)).squeeze(1),
    "scale": lambda a, s: a * s.scale,
    "transpose": lambda a, _: a.t(),
    "flip": lambda a, _: a.flip(0),
    "diagonal": lambda a, _: full(a).diagonal()[None],
    "slice": lambda a, _: full(a)[:, 1:2],
    "strided": lambda a, _: full(a).contiguous()[::2].repeat_interleave(2, 0),
    "sum": lambda a, _: a.mean(1, keepdim=True),
    "max": lambda a, _: full(a).max(0, keepdim=True).values,
    "cumsum": lambda a, _: a.tanh().cumsum(0),
    "half": lambda a, _: a.to(torch.bfloat16).sin().float(),
    "double": lambda a, _: (a.double() * a.double()).tanh().float(),
    "gather": lambda a, _: full(a).gather(1, full(a).argsort(1)),
    "dropout": lambda a, _: F.dropout(a, 0.4),
    "rrelu": lambda a, _: F.rrelu(a, training=True),
    "noise": lambda a, _: a + torch.rand_like(a),
    "relu_": lambda a, _: (a * 2).relu_(),
    "add_": lambda a, _: a.clone().add_(1.5).tanh(),
    "write_row": lambda a, _: full(a).clone().index_fill_(0, torch.tensor([2]), 0.5).cos(),
    "branch": lambda a, _: a.cos() if float(a.detach().sum()) > 0 else a.sin() * a,
}
BINARY: dict[str, Binary] = {
    "add": lambda a, b, _: a + b,
    "mul": lambda a, b, _: a * b,
    "div": lambda a, b, _: a / (b.square() + 1),
    "matmul": lambda a, b, _: (full(a) @ full(b)) / N,
    "where": lambda a, b, _: torch.where(a > b, a.sin(), b),
    "cat": lambda a, b, _: torch.cat([full(a)[:, :5], full(b)[:, 5:]], 1),
    "mul_": lambda a, b, _: (a + b).mul_(b.detach()),
}
# These write into a register's own tensor or a view of it, as the program goes on using it.
WRITES: dict[str, Binary] = {
    "write": lambda a, b, _: a.mul_(0.5),
    "write_relu": lambda a, b, _: torch.relu_(a),
    "write_view": lambda a, b, _: a[:1].add_(b.detach()[:1, :1]),
}
# After what a forward made: how its loss is used.
ENDINGS = ("backward", "retain", "grad", "double", "drop")


@dataclasses.dataclass(frozen=True)
class Line:
    op: str
    first: int
    second: int


@dataclasses.dataclass(frozen=True)
class RandomProgram:
    lines: tuple[Line, ...]
    outputs: tuple[int, ...]
    endings: tuple[str, ...]  # of each step
    dropped_line: int  # that steps after the second leave out: the program changes; -1 for none

    def __str__(self) -> str:
        lines = (f"  r{line.first} r{line.second} -> {line.op}" for line in self.lines)
        tail = f"  outputs {self.outputs}, endings {self.endings}, dropped {self.dropped_line}"
        return "\n".join([*lines, tail])

    def __call__(self, scope: ScopeMaker) -> list[Any]:
        shared, inputs = Shared(), seeded(N, N).requires_grad_()
        results: list[Any] = []
        for step, ending in enumerate(self.endings):
            try:
                results.append(self._step(scope, shared, inputs, step, ending))
            except RuntimeError as error:
                if isinstance(error, torch.OutOfMemoryError):
                    raise
                results.append(type(error).__name__)  # plain PyTorch must refuse the same step
                settle()
            gradients = [parameter.grad for parameter in shared.parameters()]
            results.append(bits([gradients, inputs.grad, list(shared.buffers())]))
            del gradients
            shared.zero_grad()
            inputs.grad = None
        return results

    def _step(
        self, scope: ScopeMaker, shared: Shared, inputs: Tensor, step: int, ending: str
    ) -> list[Any]:
        with scope():
            outputs = self._forward(shared, inputs, step)
            loss = torch.stack([output.square().mean() for output in outputs]).sum()
        values = bits(outputs)
        del outputs
        if ending == "backward":
            loss.backward()
        elif ending == "retain":
            loss.backward(retain_graph=True)
            values += bits(torch.autograd.grad(loss, inputs, retain_graph=True))
            loss.backward()
        elif ending == "grad":
            some = torch.autograd.grad(loss, [inputs, shared.scale], allow_unused=True)
            values += bits(some)
        elif ending == "double":
            (slope,) = torch.autograd.grad(loss, inputs, create_graph=True)
            (loss + slope.square().sum()).backward()
        return values

    def _forward(self, shared: Shared, inputs: Tensor, step: int) -> list[Tensor]:
        registers = [inputs.clone(), inputs.sin()]
        for index, line in enumerate(self.lines):
            if step > 1 and index == self.dropped_line:
                continue
            first = registers[line.first % len(registers)]
            second = registers[line.second % len(registers)]
            if line.op in UNARY:
                registers.append(UNARY[line.op](first, shared))
            elif line.op in BINARY:
                registers.append(BINARY[line.op](first, second, shared))
            elif 0 not in first.stride():  # PyTorch refuses writes to expanded tensors
                WRITES[line.op](first, second, shared)
            if len(registers) > 6:
                registers.pop(line.second % 3)  # dead, or alive through its graph only
        return [registers[output % len(registers)] for output in self.outputs]


def make_program(seed: int) -> RandomProgram:
    rng = random.Random(seed)
    ops = [*UNARY, *BINARY, *BINARY, *WRITES]
    lines = tuple(
        Line(rng.choice(ops), rng.randrange(64), rng.randrange(64))
        for _ in range(rng.randint(2, 24))
    )
    return RandomProgram(
        lines,
        tuple(rng.randrange(64) for _ in range(rng.randint(1, 3))),
        tuple(rng.choice(ENDINGS) for _ in range(rng.randint(2, 5))),
        rng.choice([-1, -1, rng.randrange(24)]),
    )


def shrink(program: RandomProgram, fails: Callable[[RandomProgram], bool]) -> RandomProgram:
    """The smallest program found by leaving out lines, steps and outputs of one that fails."""
    smaller = True
    while smaller:
        smaller = False
        for candidate in _smaller(program):
            if fails(candidate):
                program, smaller = candidate, True
                break
    return program


def _smaller(program: RandomProgram) -> list[RandomProgram]:
    candidates = []
    for name in ("lines", "endings", "outputs"):
        values = getattr(program, name)
        for count in (len(values) // 2, 1):
            for at in range(0, len(values), max(count, 1)):
                rest = values[:at] + values[at + count :]
                if count and rest:
                    candidates.append(dataclasses.replace(program, **{name: rest}))
    return candidates
