# SPDX-License-Identifier: BSD-3-Clause
"""Fuzzed training programs as plain values: made from a seed, shrunk, printed, read back.

A program is a list of instructions over registers that hold tensors, and what its steps do with the
loss. Operands are taken modulo what is there, so any sub-list of a program's lines is a program too.
"""

from __future__ import annotations

import dataclasses
import json
import random
from collections.abc import Callable, Iterator
from typing import Any

import ops
from regions import REGIONS
from writes import WRITES

GROUPS: tuple[dict[str, ops.Op], ...] = (
    ops.POINTWISE,
    ops.TYPES,
    ops.SHAPES,
    ops.REDUCTIONS,
    ops.INDEXING,
    ops.PRODUCTS,
    ops.LAYERS,
    ops.RANDOM,
    ops.CUSTOM,
)
OPS: dict[str, ops.Op] = {name: op for group in GROUPS for name, op in group.items()}
SPECIAL = ("threads", "raises", "forget")
# Threads that train at once draw from one generator in any order, and share PyTorch's settings.
UNFIT_FOR_THREADS = {*ops.RANDOM, "write_random", "threads", "deterministic", "dual"}

# How a step's loss is used.
ENDINGS = (
    *("backward",) * 6,
    "retain",
    "retain_late",
    "grad",
    "inputs",
    "double",
    "double_inside",
    "inside",
    "pair",
    "interleaved",
    "late",
    "thread",
    "split",
    "half_outside",
    "outside",
    "eval",
    "drop",
    "stale",
    "stale_fused",
)
OPTIMIZERS = ("", "", "sgd", "momentum", "fused_sgd", "adam", "fused_adam", "foreach_adam")


@dataclasses.dataclass(frozen=True)
class Line:
    op: str
    first: int
    second: int

    def __str__(self) -> str:
        return f"{self.op}({self.first}, {self.second})"


@dataclasses.dataclass(frozen=True)
class Step:
    ending: str
    skipped: int = -1  # index of a line that this step leaves out
    rows: int = 32
    accumulates: bool = False  # leaves the gradients for the next step to add to

    def __str__(self) -> str:
        changes = f" without line {self.skipped}" if self.skipped >= 0 else ""
        return f"{self.ending}{changes}, {self.rows} rows{', accumulates' * self.accumulates}"


@dataclasses.dataclass(frozen=True)
class FuzzProgram:
    lines: tuple[Line, ...]
    outputs: tuple[int, ...]
    steps: tuple[Step, ...]
    optimizer: str = ""
    num_trainers: int = 1  # threads that each run the whole program at once

    def __str__(self) -> str:
        lines = [f"  {line}" for line in self.lines]
        steps = [f"  step {index}: {step}" for index, step in enumerate(self.steps)]
        tail = f"  outputs {self.outputs}, optimizer {self.optimizer or None}, trainers {self.num_trainers}"
        return "\n".join([*lines, tail, *steps])

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self))

    @staticmethod
    def from_json(text: str) -> FuzzProgram:
        values: dict[str, Any] = json.loads(text)
        values["lines"] = tuple(Line(**line) for line in values["lines"])
        values["steps"] = tuple(Step(**step) for step in values["steps"])
        values["outputs"] = tuple(values["outputs"])
        return FuzzProgram(**values)

    @property
    def changes(self) -> bool:
        """Whether its steps differ."""
        return len(set(self.steps)) > 1 or any(line.op == "raises" for line in self.lines)

    @property
    def overlaps(self) -> bool:
        """Whether graphs of several forward passes are alive at once."""
        overlapping = ("pair", "interleaved", "late", "retain_late")
        return self.num_trainers > 1 or any(step.ending in overlapping for step in self.steps)


def make_program(seed: int) -> FuzzProgram:
    rng = random.Random(seed)
    num_trainers = 2 if rng.random() < 0.04 else 1
    lines = tuple(_lines(rng, num_trainers))
    steps = []
    usual = Step(rng.choice(ENDINGS), rows=rng.choice([32, 32, 32, 16]))
    for index in range(rng.choice([2, 3, 3, 4, 4, 5])):
        step = usual
        if rng.random() < 0.35:
            step = dataclasses.replace(step, ending=rng.choice(ENDINGS))
        if index > 1 and rng.random() < 0.15:
            step = dataclasses.replace(step, skipped=rng.randrange(len(lines)))
        if index > 0 and rng.random() < 0.05:
            step = dataclasses.replace(step, rows=48 - step.rows)
        steps.append(dataclasses.replace(step, accumulates=rng.random() < 0.1))
    return FuzzProgram(
        lines,
        tuple(rng.randrange(64) for _ in range(rng.randint(1, 3))),
        tuple(steps),
        rng.choice(OPTIMIZERS),
        num_trainers,
    )


def _lines(rng: random.Random, num_trainers: int) -> Iterator[Line]:
    unfit = UNFIT_FOR_THREADS if num_trainers > 1 else set()
    for _ in range(rng.randint(2, 24)):
        kind = rng.random()
        if kind < 0.10:
            names = sorted(WRITES)
        elif kind < 0.17:
            names = list(REGIONS)
        elif kind < 0.20:
            names = list(SPECIAL)
        else:
            names = list(rng.choice(GROUPS))
        fit = [name for name in names if name not in unfit]
        yield Line(rng.choice(fit or ["sin"]), rng.randrange(64), rng.randrange(64))


def shrink(
    program: FuzzProgram, fails: Callable[[FuzzProgram], bool], tries: int = 300
) -> FuzzProgram:
    """The smallest program found by leaving out lines, steps and outputs of one that fails."""
    smaller = True
    while smaller:
        smaller = False
        for candidate in _smaller(program):
            tries -= 1
            if tries < 0:
                return program
            if fails(candidate):
                program, smaller = candidate, True
                break
    return program


def _smaller(program: FuzzProgram) -> Iterator[FuzzProgram]:
    for name in ("steps", "lines", "outputs"):
        values = getattr(program, name)
        for count in dict.fromkeys((len(values) // 2, len(values) // 4, 1)):
            for at in range(0, len(values), max(count, 1)):
                rest = values[:at] + values[at + count :]
                if count and rest:
                    yield dataclasses.replace(program, **{name: rest})
    if program.optimizer:
        yield dataclasses.replace(program, optimizer="")
    if program.num_trainers > 1:
        yield dataclasses.replace(program, num_trainers=1)
    plain = tuple(Step("backward") for _ in program.steps)
    if program.steps != plain:
        yield dataclasses.replace(program, steps=plain)
    for at, step in enumerate(program.steps):
        if step != Step(step.ending):
            simple = (*program.steps[:at], Step(step.ending), *program.steps[at + 1 :])
            yield dataclasses.replace(program, steps=simple)
