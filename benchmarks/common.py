# SPDX-License-Identifier: BSD-3-Clause
"""What the benchmarks share: cells in processes of their own, interleaved; medians and ratios with
their spread; tables; JSON."""

from __future__ import annotations

import argparse
import contextlib
import json
import multiprocessing
import os
import statistics
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing.context import BaseContext
from pathlib import Path
from typing import Any, NamedTuple, Self

import torch
from tqdm import tqdm

ROOT = Path(__file__).resolve().parents[1]
sys.path.append(str(ROOT / "examples"))  # the photographs and the reading of resident memory

MIB = 2**20

# glibc gives blocks of this size back to the system as soon as they are freed, so that resident
# memory says what is held, and not what was held once. It costs time: not for cells that are timed.
RETURNING_MALLOC = {"MALLOC_MMAP_THRESHOLD_": str(64 << 10)}

_subject: Any = None  # of the cell whose process this is


def _make_subject(make: Callable[..., object], args: tuple[object, ...]) -> None:
    global _subject
    _subject = make(*args)


def _call_subject(method: str, args: tuple[object, ...]) -> Any:
    return getattr(_subject, method)(*args)


def _processes(has_environment: bool) -> BaseContext:
    """How processes start. From a server that has imported torch and has done nothing else: an
    import takes as long as several steps. The C library reads its variables at the start."""
    if has_environment:
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch", "torchvision"])
    return context


class Cell:
    """`make(*args)` in a process of its own, whose methods are called from here, one at a time.

    Closing ends the process. Exceptions come through; a process that dies is a BrokenProcessPool.
    """

    def __init__(
        self,
        make: Callable[..., object],
        *args: object,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self._executor = ProcessPoolExecutor(1, mp_context=_processes(environment is not None))
        with _environment(environment) if environment else contextlib.nullcontext():
            made = self._executor.submit(_make_subject, make, args)
        try:
            made.result()
        except BaseException:
            self.close()
            raise

    def call(self, method: str, *args: object) -> Any:
        return self._executor.submit(_call_subject, method, args).result()

    def close(self) -> None:
        self._executor.shutdown()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


@contextlib.contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    saved = dict(os.environ)
    os.environ.update(variables)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(saved)


def interleave(
    cells: Mapping[str, Cell], rounds: int, method: str = "step", label: str = ""
) -> dict[str, list[Any]]:
    """Calls `method` on every cell in turn, `rounds` times; each round begins with another cell."""
    results: dict[str, list[Any]] = {name: [] for name in cells}
    order = list(cells)
    for _ in tqdm(range(rounds), desc=label, unit="round", disable=None):
        for name in order:
            results[name].append(cells[name].call(method))
        order = order[1:] + order[:1]
    return results


class Spread(NamedTuple):
    """The median and the quartiles beside it."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        if len(values) < 2:
            return cls(values[0], values[0], values[0])
        low, median, high = statistics.quantiles(values, n=4, method="inclusive")
        return cls(median, low, high)

    @classmethod
    def of_ratios(cls, values: Sequence[float], bases: Sequence[float]) -> Spread:
        """Of each round's ratio: what slows a whole round down cancels out."""
        return cls.of([value / base for value, base in zip(values, bases, strict=True)])

    def __str__(self) -> str:
        return self.text()

    def text(self, digits: int = 3) -> str:
        return f"{self.median:.{digits}f} ({self.low:.{digits}f} to {self.high:.{digits}f})"


def mib(size_bytes: float) -> str:
    return f"{size_bytes / MIB:.1f} MiB"


def print_table(title: str, rows: Sequence[Sequence[str]]) -> None:
    """The first row is the head; the first column is aligned to the left."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    print(f"\n{title}")
    for index, row in enumerate(rows):
        cells = [f"{cell:>{width}}" for cell, width in zip(row[1:], widths[1:], strict=True)]
        print("  ".join([f"{row[0]:<{widths[0]}}", *cells]).rstrip())
        if index == 0:
            print("-" * (sum(widths) + 2 * (len(widths) - 1)))


def argument_parser(description: str | None) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--quick", action="store_true", help="smaller and fewer: does it work?")
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "benchmarks", metavar="FOLDER")
    return parser


def write_json(arguments: argparse.Namespace, figures: Mapping[str, Any]) -> None:
    name = Path(sys.argv[0]).stem
    settings = {key: value for key, value in vars(arguments).items() if key != "out"}
    machine = {"torch": str(torch.__version__), "num_threads": torch.get_num_threads()}
    arguments.out.mkdir(parents=True, exist_ok=True)
    path = arguments.out / f"{name}.json"
    content = {"benchmark": name, "settings": settings, "machine": machine, **figures}
    path.write_text(json.dumps(content, indent=2) + "\n")
    print(f"\nWritten: {os.path.relpath(path)}")
