# SPDX-License-Identifier: BSD-3-Clause
"""Random programs: outputs, gradients, buffers and generator state equal plain PyTorch's, and nothing
is left. TORCHLMS_RANDOM_PROGRAMS says how many (default 150), TORCHLMS_RANDOM_SEED the first."""

from __future__ import annotations

import os
import random

import pytest

import torchlms
from random_programs import BINARY, UNARY, WRITES, Line, RandomProgram, make_program, shrink
from training import first_difference, has_hooks, held_bytes, left_bytes, run, run_offloaded, scopes

NUM_PROGRAMS = int(os.environ.get("TORCHLMS_RANDOM_PROGRAMS", "150"))
FIRST_SEED = int(os.environ.get("TORCHLMS_RANDOM_SEED", "0"))
NUM_GROUPS = 10
POLICIES = ("swap", "recompute", "hybrid", "auto")
FAST_LINK = "100GB/s"  # so that the planner knows the link and measures no disk
SLACK_BYTES = 16 << 10  # four tensors


def random_budget(program: RandomProgram, rng: random.Random) -> int | str:
    """ "min", or bytes above those held before: from what the program needs when all is moved to a
    little above what plain needs."""
    if rng.random() < 0.4:
        return "min"
    before = held_bytes()
    lms, _ = scopes(link_limit=FAST_LINK)
    peaks, unlimited_peaks = [], []

    def scope() -> torchlms.offload:
        report = lms.report().to_dict()
        peaks.append(report["peak_bytes"] or 0)
        unlimited_peaks.append(report["unlimited_peak_bytes"] or 0)
        return lms

    run(program, scope)
    scope()
    floor, peak = max(peaks), max(unlimited_peaks)
    return int(floor - before + rng.random() * 1.1 * max(peak - floor, 0)) + SLACK_BYTES


def failure_of(program: RandomProgram, budget: int | str, policy: str = "swap") -> str | None:
    """What is wrong with the program under torchlms; None when nothing is."""
    expected = run(program)
    before = held_bytes()
    limit = budget if budget == "min" else before + budget
    try:
        got, _ = run_offloaded(program, limit, link_limit=FAST_LINK, policy=policy)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    difference = first_difference(expected, got)
    del got
    left = left_bytes(before)
    if difference is None and (left or has_hooks()):
        return f"{left} bytes are held, hooks installed: {has_hooks()}"
    return difference


@pytest.mark.parametrize("group", range(NUM_GROUPS))
def test_random_programs_are_exact_and_leave_nothing(group: int) -> None:
    for seed in range(FIRST_SEED + group, FIRST_SEED + NUM_PROGRAMS, NUM_GROUPS):
        program = make_program(seed)
        rng = random.Random(seed)
        budget = random_budget(program, rng)
        policy = rng.choice(POLICIES)
        failure = failure_of(program, budget, policy)
        if failure is not None:
            settings = (budget, policy)
            small = shrink(
                program, lambda candidate, at=settings: failure_of(candidate, *at) is not None
            )
            pytest.fail(f"seed {seed}, {settings}: {failure}\nshrunk to\n{small}", pytrace=False)


def test_every_op_runs_in_a_program_of_its_own() -> None:
    for op in [*UNARY, *BINARY, *WRITES]:
        program = RandomProgram((Line(op, 0, 1), Line("sin", 2, 0)), (2, 3), ("backward",) * 2, -1)
        results = run(program)
        assert "RuntimeError" not in results[0], op
        for policy in ("swap", "recompute"):
            assert failure_of(program, "min", policy) is None, (op, policy)


def test_a_failing_program_is_shrunk_to_the_line_that_fails() -> None:
    program = make_program(3)
    culprit = program.lines[len(program.lines) // 2].op

    def fails(candidate: RandomProgram) -> bool:
        return any(line.op == culprit for line in candidate.lines)

    assert [line.op for line in shrink(program, fails).lines] == [culprit]


def test_programs_reach_every_op_and_most_give_gradients() -> None:
    programs = [make_program(seed) for seed in range(NUM_PROGRAMS)]
    reached = {line.op for program in programs for line in program.lines}
    assert reached == {*UNARY, *BINARY, *WRITES}
    refused = sum("RuntimeError" in run(program)[0] for program in programs[:40])
    assert refused < 20
