# SPDX-License-Identifier: BSD-3-Clause
"""Random programs: outputs, gradients, buffers and generator state equal plain PyTorch's, and nothing
is left. TORCHLMS_RANDOM_PROGRAMS says how many (default 150), TORCHLMS_RANDOM_SEED the first."""

from __future__ import annotations

import os
import random

import pytest
import torch

from random_programs import BINARY, UNARY, WRITES, Line, RandomProgram, make_program, shrink
from training import first_difference, has_hooks, held_bytes, run, run_offloaded, scopes

NUM_PROGRAMS = int(os.environ.get("TORCHLMS_RANDOM_PROGRAMS", "150"))
FIRST_SEED = int(os.environ.get("TORCHLMS_RANDOM_SEED", "0"))
NUM_GROUPS = 10
FAST_LINK = "100GB/s"  # known to the planner, which then measures no disk


def budget_of(program: RandomProgram, rng: random.Random) -> int | str:
    if rng.random() < 0.5:
        return "min"
    floors, peaks = [], []
    lms, scope = scopes(link_limit=FAST_LINK)
    for steps in range(1, len(program.endings) + 1):
        del steps
    run(program, scope)
    report = lms.report().to_dict()
    floors.append(report["peak_bytes"])
    peaks.append(report["unlimited_peak_bytes"] or report["peak_bytes"])
    return int(max(floors) + rng.random() * max(peaks[0] - floors[0], 0)) + (64 << 10)


def failure_of(program: RandomProgram, budget: int | str, **settings: object) -> str | None:
    """What differs between the program plain and under torchlms; None when nothing does."""
    expected = run(program)
    before = held_bytes()
    try:
        got, _ = run_offloaded(program, budget, link_limit=FAST_LINK, **settings)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    difference = first_difference(expected, got)
    del got
    if difference is None and has_hooks():
        return "hooks are left installed"
    if difference is None and held_bytes() != before:
        return f"{held_bytes() - before} bytes are still held"
    return difference
