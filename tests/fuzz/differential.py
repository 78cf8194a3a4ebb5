# SPDX-License-Identifier: BSD-3-Clause
"""One fuzzed program, plain and under torchlms with random settings: what differs, what moved."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import json
import os
import random
import tempfile
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

import torchlms
from disk_faults import DiskFault
from execution import HookedHarness, Note, PlainHarness, run_program
from program import FuzzProgram
from training import has_hooks, held_bytes

POLICIES = ("swap", "recompute", "hybrid", "auto")
MANNERS = ("context", "context", "wrap", "decorator", "made anew")
LINKS = ("100GB/s", "100GB/s", "50MB/s")  # known to the planner, which so measures no disk
SLACK_BYTES = 32 << 10
# torchlms refuses loudly, where plain PyTorch would use what was written, or need not have saved it.
REFUSAL = "whose result was to be recomputed"
COUNTED = ("swapped", "recomputed", "followed", "refused", "disk_failed", "unstable")
RUNS_TO_BE_STABLE = 3
SECONDS_TO_SETTLE = 3
LEFT = "left:"
_session_ids = itertools.count()


@dataclasses.dataclass(frozen=True)
class Settings:
    """How a program runs under torchlms. share: of the way from the floor up to plain PyTorch's peak
    that the budget lies; None for "min"."""

    policy: str = "swap"
    share: float | None = None
    manner: str = "context"
    link: str = LINKS[0]
    min_offload_bytes: int = 0
    verify: bool = False
    disk_fault: str = ""  # "write": the disk fails so during a forward pass; "read": after it
    fault_at: int = 0  # which forward pass

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self))

    @staticmethod
    def from_json(text: str) -> Settings:
        return Settings(**json.loads(text))


@dataclasses.dataclass
class Verdict:
    failure: str | None = None
    swapped: bool = False
    recomputed: bool = False
    followed: bool = False  # a step followed a plan
    refused: bool = False  # a step was refused by torchlms only, as it may
    disk_failed: bool = False  # a step failed because the disk did, as it should
    unstable: bool = False  # plain PyTorch differs from itself
    leaks_plain: bool = False  # PyTorch itself never frees its graph, a cycle: it ran no further
    errors: int = 0  # steps that plain PyTorch refuses
    floor_bytes: int = 0  # above what was held before
    peak_bytes: int = 0


class Body(nn.Module):
    """What torchlms.wrap wraps."""

    def forward(self, function: Callable[[], Any]) -> Any:
        return function()


class Offloaded:
    """A harness whose forward passes run under torchlms; it watches the report."""

    def __init__(self, settings: Settings, budget: int | str, folder: str) -> None:
        self.fields: dict[str, Any] = {
            "budget": budget,
            "policy": settings.policy,
            "min_offload_bytes": settings.min_offload_bytes,
            "link_limit": settings.link,
            "verify": settings.verify,
            "disk_path": folder,
            # A session that nobody else has: equal settings would continue with its plans.
            "disk_budget": (1 << 32) + next(_session_ids),
        }
        self.manner = settings.manner
        self.lms = torchlms.offload(**self.fields)
        self.body = torchlms.wrap(Body(), **self.fields) if self.manner == "wrap" else None
        self.seen: list[dict[str, Any]] = []
        self.fault = DiskFault(folder, settings.disk_fault) if settings.disk_fault else None
        self.fault_kind, self.fault_at = settings.disk_fault, settings.fault_at
        self.num_passes = 0

    def forward(self, function: Callable[[], Any]) -> Any:
        fault = self.fault if self.num_passes == self.fault_at else None
        if self.fault is not None:
            self.fault.end()  # of the pass before
        self.num_passes += 1
        if fault is not None and self.fault_kind == "write":
            fault.begin()
        try:
            if self.body is not None:
                return self.body(function)
            if self.manner == "decorator":
                return self.lms(function)()
            with torchlms.offload(**self.fields) if self.manner == "made anew" else self.lms:
                return function()
        finally:
            self.look()
            if fault is not None:
                fault.end()
                if self.fault_kind == "read":
                    fault.begin()

    def mend_disk(self, before: int) -> None:
        """Ends the fault, and takes note of the error that the session still has to raise once no
        copy is under way any more. before: bytes that were held then."""
        assert self.fault is not None
        self.fault.end()
        self.fault = None
        what_is_left(before, self.lms.session(), self.fields["disk_path"])
        with contextlib.suppress(OSError), self.lms:
            pass

    def look(self) -> None:
        """Notes the report, which at the end of a forward pass is of the step before."""
        self.seen.append(self.lms.report().to_dict())

    def nested(self) -> contextlib.AbstractContextManager[Any]:
        return self.lms

    def disabled(self) -> contextlib.AbstractContextManager[Any]:
        return torchlms.disabled()

    def keep(self, tensor: Tensor) -> Tensor:
        return torchlms.keep(tensor)


def make_settings(rng: random.Random) -> Settings:
    """Settings with the least budget."""
    return Settings(
        policy=rng.choice(POLICIES),
        manner=rng.choice(MANNERS),
        link=rng.choice(LINKS),
        min_offload_bytes=rng.choice([0, 0, 0, 0, 3000]),
        verify=rng.random() < 0.15,
        disk_fault=rng.choice(["read", "write"]) if rng.random() < 0.08 else "",
        fault_at=rng.randrange(4),
    )


def budgeted(settings: Settings, rng: random.Random) -> Settings:
    return dataclasses.replace(settings, policy=rng.choice(POLICIES), share=rng.random() * 1.2)


def judge(program: FuzzProgram, settings: Settings, plain: PlainRun, limit: int = 0) -> Verdict:
    """Runs the program under torchlms. limit: the budget above what is held now, 0 for "min"."""
    verdict = Verdict()
    before = held_bytes()
    with tempfile.TemporaryDirectory() as folder:
        offloaded = Offloaded(settings, before + limit if limit else "min", folder)
        try:
            got = run_program(program, offloaded)
        except torch.OutOfMemoryError as error:
            if program.changes or program.overlaps:
                verdict.refused = True  # what it needs at least was measured step by step
            else:
                verdict.failure = f"{type(error).__name__}: {error}"
            got = None
        except Exception as error:
            verdict.failure = f"{type(error).__name__}: {error}"
            got = None
        offloaded.look()
        if got is not None:
            compare(plain.results, got, program, verdict)
        if offloaded.fault is not None:
            offloaded.mend_disk(before)
            if verdict.disk_failed and verdict.failure is None:
                compare(plain.results, run_program(program, offloaded), program, verdict, True)
        note_movement(offloaded, before, verdict)
        left = None if got is None else what_is_left(before, offloaded.lms.session(), folder)
        del offloaded  # and its budget
    if verdict.failure and got is not None and not verdict.disk_failed:  # not of the run after that
        excuse(plain, got, program, verdict)
    verdict.failure = verdict.failure or left
    return verdict


def what_is_left(before: int, session: Any, folder: str) -> str | None:
    """What a program left behind, once copies in flight are done; None when nothing."""
    deadline = time.monotonic() + SECONDS_TO_SETTLE
    while True:
        left = {
            "bytes": max(held_bytes() - before, 0),
            "bytes on disk": session.disk_used_bytes(),
            "saved tensors": session.is_busy(),
            "hooks": has_hooks(),
            "files": os.listdir(folder),
        }
        if not any(left.values()):
            return None
        if time.monotonic() > deadline:
            return f"{LEFT} " + ", ".join(
                f"{what} {count}" for what, count in left.items() if count
            )
        time.sleep(0.001)


def note_movement(offloaded: Offloaded, before: int, verdict: Verdict) -> None:
    reports = offloaded.seen
    verdict.swapped = any(report["swapped_bytes"] for report in reports)
    verdict.recomputed = any(report["recomputed_bytes"] for report in reports)
    verdict.followed = any(report["state"] == "executing" for report in reports)
    peaks = [report["peak_bytes"] or 0 for report in reports]
    unlimited = [report["unlimited_peak_bytes"] or 0 for report in reports]
    verdict.floor_bytes = max(max(peaks) - before, 0)
    verdict.peak_bytes = max(max(unlimited) - before, verdict.floor_bytes)


def compare(
    expected: list[Any],
    got: list[Any],
    program: FuzzProgram,
    verdict: Verdict,
    is_mended: bool = False,
) -> None:
    """Notes the first difference. is_mended: the disk failed before, and must do so no more."""
    for trainer, (wanted, found) in enumerate(zip(expected, got, strict=True)):
        for index, (one, other) in enumerate(zip(wanted, found, strict=True)):
            part = f"trainer {trainer}, step {index // 2}, {('values', 'state')[index % 2]}"
            difference = difference_of(one, other)
            verdict.errors += any(isinstance(leaf, Note) for leaf in one)
            notes = [leaf for leaf in [*one, *other] if isinstance(leaf, Note)]
            if any(may_refuse(program, note) for note in notes):
                verdict.refused = True  # plain PyTorch may refuse it too, but later in backward
                return
            if not is_mended and any("DiskError" in note for note in notes):
                verdict.disk_failed = True  # from here on the programs are different ones
                return
            if difference is not None:
                verdict.failure = f"{part}: {difference}; {notes}"
                return


def excuse(plain: PlainRun, got: list[Any], program: FuzzProgram, verdict: Verdict) -> None:
    """Takes the failure back where PyTorch does the same under hooks that do nothing, or does not do
    the same twice."""
    other = Verdict()
    compare(run_program(program, HookedHarness()), got, program, other)
    if other.failure is None:
        verdict.failure, verdict.refused, verdict.errors = None, True, other.errors
        verdict.disk_failed |= other.disk_failed
        return
    for _ in range(RUNS_TO_BE_STABLE):
        other = Verdict()
        compare(plain.results, run_program(program, PlainHarness()), program, other)
        if other.failure is not None:
            verdict.failure, verdict.unstable = None, True
            return


def may_refuse(program: FuzzProgram, note: str) -> bool:
    """A step that differs from the recorded one, an optimizer that runs before a late backward, or a
    write that nobody sees may take from a plan what it was to run again from. verify is there to find the latter."""
    may_have_changed = program.changes or program.overlaps or program.writes_unseen
    return (REFUSAL in note and may_have_changed) or (
        "torchlms verify" in note and program.writes_unseen
    )


def difference_of(one: list[Any], other: list[Any]) -> str | None:
    left = [leaf for leaf in one if not isinstance(leaf, Note)]
    right = [leaf for leaf in other if not isinstance(leaf, Note)]
    for place, (wanted, found) in enumerate(zip(left, right, strict=False)):
        if wanted != found:
            if isinstance(wanted, tuple) and isinstance(found, tuple) and wanted[:2] == found[:2]:
                return f"leaf {place}: {wanted[:2]} has other bytes"
            return f"leaf {place}: {str(wanted)[:80]} became {str(found)[:80]}"
    return None if len(left) == len(right) else f"{len(left)} leaves became {len(right)}"


@dataclasses.dataclass
class PlainRun:
    results: list[Any]
    leaks: bool


def run_plain(program: FuzzProgram) -> PlainRun:
    before = held_bytes()
    results = run_program(program, PlainHarness())
    return PlainRun(results, held_bytes() > before)


def failure_of(program: FuzzProgram, settings: Settings) -> str | None:
    """What is wrong with the program under these settings alone; None when nothing is."""
    plain = run_plain(program)
    if plain.leaks:
        return None
    limit = 0
    if settings.share is not None:
        least = judge(program, dataclasses.replace(settings, share=None, policy="swap"), plain)
        if least.failure is not None:
            return None  # another fault
        limit = limit_of(settings, least)
    return judge(program, settings, plain, limit).failure


def limit_of(settings: Settings, least: Verdict) -> int:
    assert settings.share is not None
    return int(
        least.floor_bytes + settings.share * (least.peak_bytes - least.floor_bytes) + SLACK_BYTES
    )


def random_settings(seed: int) -> tuple[Settings, random.Random]:
    rng = random.Random(seed * 7919 + 1)
    return make_settings(rng), rng


def check(program: FuzzProgram, seed: int) -> tuple[Verdict, Settings]:
    """The program under the least budget, then half of the time under one between. The settings are
    those of the verdict's failure; movement is that of both."""
    settings, rng = random_settings(seed)
    if program.num_trainers > 1:  # their passes have no order
        settings = dataclasses.replace(settings, disk_fault="")
    plain = run_plain(program)
    if plain.leaks:
        return Verdict(leaks_plain=True), settings
    verdict = judge(program, settings, plain)
    if str(verdict.failure).startswith(LEFT):  # a cache that this program was the first to fill?
        verdict = judge(program, settings, plain)
    is_measured = program.num_trainers == 1 and not settings.disk_fault
    if verdict.failure is None and is_measured and rng.random() < 0.5:
        settings = budgeted(settings, rng)
        second = judge(program, settings, plain, limit_of(settings, verdict))
        for name in COUNTED:
            setattr(verdict, name, getattr(verdict, name) or getattr(second, name))
        verdict.failure = second.failure
    torch.set_num_threads(1)
    return verdict, settings
