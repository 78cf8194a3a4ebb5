# SPDX-License-Identifier: BSD-3-Clause
"""Every method on every model, in fractions of the memory that plain PyTorch takes, over links of
several speeds: what it costs, whether it keeps the budget, whether it computes the same.

Losses are printed like wins. A cell that cannot run has a row that says why.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import os
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from common import argument_parser, print_table, write_json
from contender import Contender, count_peaks, open_all, take_turns
from methods import (
    CHECKPOINT,
    COMPILED,
    METHODS,
    PLAIN,
    PLAIN_AGAIN,
    POLICIES,
    SELECTIVE,
    Job,
)
from models import MODELS
from row import HEAD, NO_LINK, Row, row_of
from summary import summary_figures, summary_lines

MOST_OF_A_CELL_S = 10.0
UNLIMITED = "none"
LINKS = (UNLIMITED, "400MB/s", "50MB/s")
QUICK = {
    "models": ("resnet50-224", "gpt-512", "unet3d"),
    "methods": (CHECKPOINT, *POLICIES),
    "budgets": (0.6,),
    "links": (UNLIMITED,),
    "steps": 3,
}


class ModelTable:
    """The rows of one model. Plain PyTorch's two processes live as long as it does."""

    def __init__(self, model: str, arguments: argparse.Namespace) -> None:
        self._job = Job(model, arguments.quick)
        self._methods = arguments.methods
        self._budgets = arguments.budgets or MODELS[model].budgets
        self._links = arguments.links
        self._rounds = arguments.steps
        self._most_s = arguments.most_of_a_cell_s or math.inf
        self._plains: list[Contender] = []
        self._plain_peak: int | None = None

    def rows(self) -> Iterator[Row]:
        always_same = [method for method in (CHECKPOINT, SELECTIVE) if method in self._methods]
        counted = self._count([replace(self._job, method=name) for name in (PLAIN, *always_same)])
        self._plain_peak = counted[0]
        plain_jobs = [replace(self._job, method=name) for name in (PLAIN, PLAIN_AGAIN)]
        try:
            self._plains = open_all(plain_jobs)
            yield from self._peer_rows(always_same, counted[1:])
            for budget in self._budgets:
                for link in self._links:
                    yield from self._policy_rows(budget, link)
        finally:
            for plain in self._plains:
                plain.close()

    def _count(self, jobs: Sequence[Job]) -> list[int | None]:
        """The peak of each, in bytes; None where it fails, and then it will fail when timed too."""
        counted = count_peaks([replace(job, counts=True) for job in jobs])
        return [None if count.failure else count.reports()[-1]["peak_bytes"] for count in counted]

    def _peer_rows(self, methods: Sequence[str], peaks: Sequence[int | None]) -> Iterator[Row]:
        """Checkpointing takes what it takes: measured once, judged by every budget. The compiler
        is told the budget."""
        jobs = [replace(self._job, method=method) for method in methods]
        if COMPILED in self._methods:
            jobs += [self._budgeted(COMPILED, budget) for budget in self._budgets]
        with _opened(jobs) as peers:
            self._take_turns(peers, "without torchlms")
        plain, plain_again = self._plains
        yield row_of(plain, plain, peak_bytes=self._plain_peak)
        yield row_of(plain_again, plain)
        compiled = [peer for peer in peers if peer.job.method == COMPILED]
        compiled_peaks = self._count([peer.job for peer in compiled if not peer.failure])
        counted = dict(zip(methods, peaks, strict=True))
        for index, budget in enumerate(self._budgets):
            budget_bytes = self._bytes(budget)
            for peer in peers[: len(methods)]:
                yield row_of(peer, plain, budget, NO_LINK, counted[peer.job.method], budget_bytes)
            if compiled:
                peer = compiled[index]
                peak = None if peer.failure else compiled_peaks.pop(0)
                yield row_of(peer, plain, budget, NO_LINK, peak, budget_bytes)

    def _policy_rows(self, budget: float, link: str) -> Iterator[Row]:
        limit = None if link == UNLIMITED else link
        jobs = [
            replace(self._budgeted(method, budget), link_limit=limit)
            for method in self._methods
            if method in POLICIES
        ]
        if not jobs:
            return
        with _opened(jobs) as contenders:
            self._take_turns(contenders, f"at {budget:g}, link {link}")
        plain, plain_again = self._plains
        yield row_of(plain_again, plain, budget, link)
        for contender in contenders:
            yield row_of(contender, plain, budget, link, budget_bytes=contender.job.budget_bytes)

    def _take_turns(self, contenders: Sequence[Contender], label: str) -> None:
        label = f"{self._job.model} {label}"
        take_turns([*self._plains, *contenders], self._rounds, self._most_s, label)

    def _budgeted(self, method: str, budget: float) -> Job:
        return replace(
            self._job,
            method=method,
            budget_bytes=self._bytes(budget),
            plain_peak_bytes=self._plain_peak,
        )

    def _bytes(self, budget: float) -> int | None:
        return None if self._plain_peak is None else int(budget * self._plain_peak)


@contextlib.contextmanager
def _opened(jobs: Sequence[Job]) -> Iterator[list[Contender]]:
    contenders = open_all(jobs)
    try:
        yield contenders
    finally:
        for contender in contenders:
            contender.close()


def parse_arguments() -> argparse.Namespace:
    parser = argument_parser(__doc__)
    choices = {"models": tuple(MODELS), "methods": METHODS}
    for name, possible in choices.items():
        parser.add_argument(f"--{name}", nargs="+", choices=possible, metavar="NAME")
    parser.add_argument("--budgets", nargs="+", type=float, help="fractions of plain's peak")
    parser.add_argument("--links", nargs="+", help=f"link limits, or {UNLIMITED!r}")
    parser.add_argument("--steps", type=int, help="interleaved, per cell, however slow")
    arguments = parser.parse_args()
    arguments.most_of_a_cell_s = MOST_OF_A_CELL_S if arguments.steps is None else None
    full = {
        "models": [name for name, entry in MODELS.items() if entry.is_default],
        "methods": METHODS,
        "budgets": None,  # each model has its own
        "links": LINKS,
        "steps": 5,
    }
    for name, value in (QUICK if arguments.quick else full).items():
        if getattr(arguments, name) is None:
            setattr(arguments, name, value)
    return arguments


def print_rows(model: str, rows: Sequence[Row]) -> None:
    notes: list[str] = []
    lines = [HEAD]
    for row in rows:
        note = row.failure or ""
        if note and note not in notes:
            notes.append(note)
        lines.append(row.cells(f"[{notes.index(note) + 1}]" if note else ""))
    print_table(
        f"{model}: training steps within fractions of plain's peak. budget, of budget: bytes that "
        "tensors hold. over plain: of each round.\ngradients, buffers: bit by bit, after "
        "the same first steps. Losses and failures are rows like all others.",
        lines,
    )
    for number, note in enumerate(notes, 1):
        print(f"[{number}] {note}", flush=True)


def left_out(arguments: argparse.Namespace) -> str:
    """What this run was not asked for: a table must not look more complete than it is."""
    parts = []
    for name, every in {"models": tuple(MODELS), "methods": METHODS, "links": LINKS}.items():
        missing = [value for value in every if value not in getattr(arguments, name)]
        if missing:
            parts.append(f"{name} {', '.join(missing)}")
    return f"left out: {'; '.join(parts)}" if parts else ""


def main() -> None:
    arguments = parse_arguments()
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as folder:
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = folder  # compile times without an older cache
        for model in arguments.models:
            found = list(ModelTable(model, arguments).rows())
            print_rows(model, found)
            rows += found
    lines = [line for line in (left_out(arguments),) if line] + summary_lines(rows)
    print("\n" + "\n".join(lines))
    figures: dict[str, Any] = {"rows": [row.to_dict() for row in rows]}
    write_json(arguments, figures | {"summary": summary_figures(rows)})


if __name__ == "__main__":
    main()
