# SPDX-License-Identifier: BSD-3-Clause
"""A method in its cell: what it did, or why it could not go on. Contenders take turns."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import Any

from tqdm import tqdm

from common import Cell
from methods import AUTO, PLAIN, PLAIN_AGAIN, Attempt, Job

NUM_COMPARED_STEPS = 3  # one that records, one that follows the plan, one more for its correction
MOST_FIRST_STEPS = 12
STEPS_OF_A_SETTLED_PLAN = 3
MOST_LEARNING_S = 20.0  # of a single policy, which has few plans to try
PLAN = ("predicted_peak_bytes", "kept_bytes", "swapped_bytes", "recomputed_bytes")
SPAWNED_AT_ONCE = 4


class Contender:
    """Owns its cell. After a failure every call does nothing, and `failure` says why."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.failure: str | None = None
        self.digests: dict[str, dict[str, str]] = {}
        self.first_steps: list[dict[str, Any]] = []
        self.timed_steps: list[dict[str, Any]] = []
        self._cell: Cell | None = None

    def open(self) -> None:
        """Untimed, and nothing is measured inside: several may open at once."""
        try:
            self._cell = Cell(Attempt, self.job)
        except BrokenProcessPool:
            self.failure = "the process died at its start"
        self._call("open")

    def make_first_steps(self) -> None:
        for _ in range(NUM_COMPARED_STEPS):
            self._step_into(self.first_steps)
        self.digests = self._call("digests") or {}
        while self._is_learning():
            self._step_into(self.first_steps)

    def take_turn(self, most_s: float) -> None:
        """A timed step, unless those before took so long that they say enough. Plain takes every
        turn: each round of the others is compared with its own."""
        if sum(self.seconds()) < most_s or self.job.method in (PLAIN, PLAIN_AGAIN):
            self.step()

    def step(self) -> None:
        self._step_into(self.timed_steps)

    def seconds(self) -> list[float]:
        return [step["step_s"] for step in self.timed_steps]

    def reports(self) -> list[dict[str, Any]]:
        """Of all steps that torchlms watched."""
        steps = self.first_steps + self.timed_steps
        return [step["report"] for step in steps if "report" in step]

    def close(self) -> None:
        if self._cell is not None:
            self._cell.close()

    def _is_learning(self) -> bool:
        """torchlms may go on to another plan: the steps before followed several."""
        steps = self.first_steps[-STEPS_OF_A_SETTLED_PLAN:]
        reports = [step["report"] for step in steps if "report" in step]
        plans = {tuple(report[name] for name in PLAN) for report in reports}
        took_s = sum(step["step_s"] for step in self.first_steps[1:])  # the first one follows none
        has_time = self.job.method == AUTO or took_s < MOST_LEARNING_S
        is_early = len(self.first_steps) < MOST_FIRST_STEPS
        return self.failure is None and is_early and has_time and len(plans) > 1

    def _step_into(self, steps: list[dict[str, Any]]) -> None:
        result = self._call("step")
        if result is not None:
            steps.append(result)

    def _call(self, method: str) -> Any:
        if self.failure is not None:
            return None
        try:
            answer = self._cell.call(method)
        except BrokenProcessPool:
            answer = {"failure": f"the process died in {method}()"}
        self.failure = answer.get("failure")
        return answer.get("value")


def open_all(jobs: Sequence[Job]) -> list[Contender]:
    """The processes start side by side; then each makes its first steps alone."""
    contenders = [Contender(job) for job in jobs]
    with ThreadPoolExecutor(SPAWNED_AT_ONCE) as pool:
        list(pool.map(Contender.open, contenders))
    for contender in tqdm(contenders, desc="first steps", unit="cell", disable=None, leave=False):
        contender.make_first_steps()
    return contenders


def take_turns(contenders: Sequence[Contender], rounds: int, most_s: float, label: str) -> None:
    """One step of each in turn, for most_s at most, in seconds and summed over its turns; each
    round begins with another one. Forgets earlier turns."""
    order = list(contenders)
    for contender in order:
        contender.timed_steps = []
    for _ in tqdm(range(rounds), desc=label, unit="round", disable=None):
        for contender in order:
            contender.take_turn(most_s)
        order = order[1:] + order[:1]


def count_peaks(jobs: Sequence[Job]) -> list[Contender]:
    """Two steps of each, several at once since nothing is timed; closed already.

    The second step says the peak: a compiler allocates in the first.
    """

    def count(job: Job) -> Contender:
        contender = Contender(job)
        contender.open()
        for _ in range(2):
            contender.step()
        contender.close()
        return contender

    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(count, jobs))
