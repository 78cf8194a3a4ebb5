# SPDX-License-Identifier: BSD-3-Clause
"""A few hundred fuzzed programs, and that the fuzzer itself does what it says.
TORCHLMS_FUZZ_PROGRAMS says how many (default 300)."""

from __future__ import annotations

import gc
import os
import random
from collections.abc import Iterator

import pytest
import torch

import fuzz
from differential import Settings, failure_of, judge, run_plain
from execution import Note, Trainer
from program import OPS, SPECIAL, FuzzProgram, Line, Step, make_program, shrink
from regions import REGIONS
from workers import NUM_WARM_UPS, Worker
from writes import WRITES

NUM_PROGRAMS = int(os.environ.get("TORCHLMS_FUZZ_PROGRAMS", "300"))


@pytest.fixture(scope="module", autouse=True)
def _fast_collections() -> Iterator[None]:
    for seed in range(NUM_WARM_UPS):
        run_plain(make_program(seed))
    gc.collect()
    gc.freeze()  # the many collections need not walk what imports made
    yield
    gc.unfreeze()


def program_of(*lines: Line, steps: int = 3) -> FuzzProgram:
    return FuzzProgram(lines, (2, 3, 4), (Step("backward"),) * steps)


def test_fuzzed_programs_are_exact_and_leave_nothing_and_most_of_them_move_something() -> None:
    results = fuzz.run_many(0, NUM_PROGRAMS, num_workers=2)
    assert len(results) == NUM_PROGRAMS
    failures = [fuzz.describe(result) for result in results if result["failure"] is not None]
    assert not failures, "\n\n".join(failures)
    assert fuzz.share_moved(results) > 0.5
    for what in ("swapped", "recomputed", "followed"):
        assert sum(result[what] for result in results) > NUM_PROGRAMS // 4, what
    refused = sum(result["errors"] for result in results)
    assert refused < sum(result["steps"] for result in results) // 4
    assert sum(result["refused"] for result in results) < NUM_PROGRAMS // 20


@pytest.mark.parametrize("policy", ["swap", "recompute"])
def test_every_op_runs_in_a_program_of_its_own(policy: str) -> None:
    for op in [*OPS, *WRITES, *REGIONS]:
        program = program_of(Line("add", 0, 1), Line(op, 2, 1), Line("sin", 2, 0), steps=2)
        refused = [leaf for leaf in run_plain(program).results[0][0] if isinstance(leaf, Note)]
        assert not refused or op == "write_part", (op, refused)
        assert failure_of(program, Settings(policy)) is None, op


def test_a_step_that_pytorch_refuses_under_any_hooks_is_no_failure() -> None:
    lines = (Line("lerp", 56, 52), Line("index_put", 51, 3), Line("saves_input", 28, 8))
    lines += (Line("unbind", 36, 4), Line("write_flat", 19, 44), Line("checkpoint", 19, 54))
    program = FuzzProgram(lines, (16,), (Step("backward"),))
    plain = run_plain(program)
    assert not any(isinstance(leaf, Note) for leaf in plain.results[0][0])
    verdict = judge(program, Settings(), plain)
    assert verdict.failure is None
    assert verdict.refused


def test_an_op_that_writes_a_storage_and_saves_it_again_is_not_run_again() -> None:
    lines = (Line("returns_saved", 27, 25), Line("frozen", 23, 55), Line("rrelu", 31, 26))
    lines += (Line("add", 46, 5), Line("forget", 46, 23), Line("write_flat", 8, 49))
    lines += (Line("diagonal", 28, 16), Line("integers", 3, 5), Line("marked", 12, 13))
    program = FuzzProgram(lines, (37,), (Step("backward"), Step("backward")))
    verdict = judge(program, Settings(policy="recompute"), run_plain(program))
    assert verdict.failure is None
    assert verdict.followed


def test_a_write_that_is_no_op_of_the_record_does_not_make_a_step_follow_with_other_storages() -> (
    None
):
    lines = (Line("write_unseen", 40, 43), Line("reads_twice", 55, 14))
    program = FuzzProgram(lines, (17,), (Step("half_outside"), Step("backward")))
    assert judge(program, Settings("recompute"), run_plain(program)).failure is None


@pytest.mark.parametrize("what", ["read", "write"])
def test_a_disk_that_fails_for_a_while_fails_a_step_and_the_next_run_is_exact(what: str) -> None:
    # So long that the disk's thread begins to write before the pass ends.
    program = program_of(Line("matmul", 0, 1), *(Line("sin", value, 0) for value in range(2, 42)))
    verdict = judge(program, Settings(disk_fault=what, fault_at=1), run_plain(program))
    assert verdict.disk_failed
    assert verdict.failure is None


def test_a_failing_program_is_shrunk_to_the_line_that_fails() -> None:
    program = make_program(3)
    culprit = program.lines[len(program.lines) // 2].op

    def fails(candidate: FuzzProgram) -> bool:
        return any(line.op == culprit for line in candidate.lines)

    assert [line.op for line in shrink(program, fails).lines] == [culprit]


def test_programs_reach_every_op_and_can_be_read_back() -> None:
    programs = [make_program(seed) for seed in range(1000)]
    reached = {line.op for program in programs for line in program.lines}
    assert reached == {*OPS, *WRITES, *REGIONS, *SPECIAL}
    assert all(FuzzProgram.from_json(program.to_json()) == program for program in programs[:50])


def test_a_worker_that_crashes_fails_one_program_only() -> None:
    worker = Worker()
    try:
        assert worker.ask({"seed": "crash"})["failure"] is not None
        assert worker.ask({"seed": 0})["failure"] is None
    finally:
        worker.stop()


def test_a_difference_in_one_bit_of_one_gradient_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    program = program_of(Line("linear", 0, 0), Line("sin", 2, 0))
    assert failure_of(program, Settings()) is None
    finish = Trainer._finish

    def flawed(self: Trainer, *args: object) -> None:
        finish(self, *args)
        if hasattr(self.harness, "lms"):
            bits = self.layers.linear.bias.grad.view(torch.int32)
            bits[random.randrange(bits.numel())] ^= 1

    monkeypatch.setattr(Trainer, "_finish", flawed)
    assert "other bytes" in str(failure_of(program, Settings()))
