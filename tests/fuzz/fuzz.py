# SPDX-License-Identifier: BSD-3-Clause
"""Runs fuzzed programs, plain and under torchlms, in processes of their own; shrinks what fails.

python tests/fuzz/fuzz.py --programs 20000           the seeds 0 to 19999
python tests/fuzz/fuzz.py --seconds 600 --first-seed 50000
python tests/fuzz/fuzz.py --seed 1234                one program, and what it is
python tests/fuzz/fuzz.py --run '{...}' '{...}'      a program and its settings, as a failure prints
"""

from __future__ import annotations

import argparse
import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parent
sys.path[:0] = [str(FOLDER), str(FOLDER.parent / "python")]

from workers import Worker, serve  # noqa: E402

Result = dict[str, Any]
COUNTED = ("swapped", "recomputed", "followed", "refused", "disk_failed", "unstable")


def run_seed(seed: int, worker: Worker, shrinks: bool = True) -> Result:
    """The worker's verdict; where the program failed, also the smallest one that fails so."""
    result = worker.ask({"seed": seed}) | {"seed": seed}
    if result["failure"] is None or not shrinks:
        return result
    from differential import random_settings
    from program import make_program, shrink

    program = make_program(seed)
    settings = result.get("settings") or random_settings(seed)[0].to_json()

    def failure_of(candidate: Any) -> str | None:
        return worker.ask({"program": candidate.to_json(), "settings": settings})["failure"]

    small = shrink(program, lambda candidate: failure_of(candidate) is not None)
    return result | {
        "settings": settings,
        "program": small.to_json(),
        "shrunk_failure": failure_of(small),
    }


def describe(result: Result) -> str:
    from program import FuzzProgram

    lines = [f"seed {result['seed']}: {result['failure']}"]
    if "program" in result:
        command = f"python tests/fuzz/fuzz.py --run '{result['program']}' '{result['settings']}'"
        program = FuzzProgram.from_json(result["program"])
        lines += [f"shrunk to: {result['shrunk_failure']}", str(program), f"  {command}"]
    return "\n".join(lines)


def run_many(
    first: int,
    count: int,
    num_workers: int,
    seconds: float = 0,
    until_failure: bool = False,
    report: Callable[[str], None] = print,
) -> list[Result]:
    """The results of the seeds; progress and failures are reported as they come."""
    seeds = iter(range(first, first + count))
    results: list[Result] = []
    lock, start = threading.Lock(), time.monotonic()

    def next_seed() -> int | None:
        with lock:
            is_late = seconds > 0 and time.monotonic() - start > seconds
            has_failed = until_failure and any(result["failure"] for result in results)
            return None if is_late or has_failed else next(seeds, None)

    def run() -> None:
        worker = Worker()
        while (seed := next_seed()) is not None:
            result = run_seed(seed, worker, not until_failure)
            with lock:
                results.append(result)
                if result["failure"] is not None:
                    report(f"\n{describe(result)}\n")
                if len(results) % 100 == 0:
                    report(f"{summary(results)}; {time.monotonic() - start:.0f} s")
        worker.stop()

    threads = [threading.Thread(target=run) for _ in range(num_workers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


def share_moved(results: list[Result]) -> float:
    moved = [result.get("swapped", False) or result.get("recomputed", False) for result in results]
    return sum(moved) / max(len(moved), 1)


def summary(results: list[Result]) -> str:
    failed = [result["seed"] for result in results if result["failure"] is not None]
    total = max(len(results), 1)
    shares = [
        f"{name} {sum(result.get(name, False) for result in results) / total:.0%}"
        for name in COUNTED
    ]
    steps = max(sum(result.get("steps", 0) for result in results), 1)
    errors = sum(result.get("errors", 0) for result in results)
    return (
        f"{len(results)} programs, {len(failed)} failed {failed[:20] or ''}; moved "
        f"{share_moved(results):.0%}: {', '.join(shares)}; steps that PyTorch refuses {errors / steps:.0%}"
    )


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--programs", type=int, default=1000)
    parser.add_argument("--seconds", type=float, default=0, help="begin no program after so long")
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=min(2, os.cpu_count() or 1))
    parser.add_argument("--seed", type=int, help="run this one")
    parser.add_argument("--until-failure", action="store_true", help="stop there, shrink nothing")
    parser.add_argument("--run", nargs=2, metavar=("PROGRAM", "SETTINGS"))
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        serve()
        return 0
    if options.run:
        from differential import Settings, failure_of
        from program import FuzzProgram

        program = FuzzProgram.from_json(options.run[0])
        print(program, flush=True)
        failure = failure_of(program, Settings.from_json(options.run[1]))
        print(failure or "no difference")
        return failure is not None
    if options.seed is not None:
        from program import make_program

        print(make_program(options.seed), flush=True)
        options.first_seed, options.programs, options.workers = options.seed, 1, 1
    print_now = lambda text: print(text, flush=True)  # noqa: E731
    results = run_many(
        options.first_seed,
        options.programs,
        options.workers,
        options.seconds,
        options.until_failure,
        print_now,
    )
    print(summary(results))
    return any(result["failure"] is not None for result in results)


if __name__ == "__main__":
    sys.exit(main())
