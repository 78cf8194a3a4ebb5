# SPDX-License-Identifier: BSD-3-Clause
"""Trains ResNet-50 on real photographs twice, with plain PyTorch and with torchlms in less than
half of its memory, and compares the results bit for bit.

Each training has a process of its own. Left in the output folder: report.json, every figure of this
run, and memory.png, the last step over time. Exits with 1 when a bit differs or the budget was
exceeded.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import multiprocessing
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import torchvision
from tqdm import tqdm

from photos import random_crops
from resident_memory import ResidentMemory

# glibc gives blocks of this size back to the system as soon as they are freed, so that resident
# memory says what is held, and not what was held once.
RETURNING_MALLOC = {"MALLOC_MMAP_THRESHOLD_": str(64 << 10)}


@dataclass(frozen=True)
class Training:
    """What is trained: the same in every process."""

    batch: int
    size: int
    steps: int

    def run(
        self,
        label: str,
        scope: contextlib.AbstractContextManager[object],
        after_step: Callable[[], None] = lambda: None,
        results_path: str | None = None,
    ) -> list[float]:
        """Trains with each forward pass inside `scope`; returns the seconds of each step."""
        torch.manual_seed(0)
        model = torchvision.models.resnet50(weights=None)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        seconds, losses = [], []
        for step in tqdm(range(self.steps), desc=f"{label:<24}", unit="step", mininterval=0):
            images, labels = random_crops(self.batch, self.size, seed=step)
            optimizer.zero_grad()
            start = time.perf_counter()
            with scope:
                loss = torch.nn.functional.cross_entropy(model(images), labels)
            loss.backward()
            optimizer.step()
            seconds.append(time.perf_counter() - start)
            losses.append(loss.detach())
            after_step()
        if results_path is not None:
            gradients = {name: weight.grad for name, weight in model.named_parameters()}
            results = {"loss": dict(enumerate(losses)), "gradient": gradients}
            torch.save(results | {"state": model.state_dict()}, results_path)
        return seconds


def count_plain(training: Training) -> dict[str, int]:
    """The bytes that plain PyTorch holds: two steps, counted and otherwise left alone."""
    import torchlms

    memory = ResidentMemory()
    scope = torchlms.offload(policy="off")
    peaks = []
    counted = Training(training.batch, training.size, steps=2)
    counted.run(
        "plain PyTorch, counted",
        scope,
        after_step=lambda: peaks.append(scope.report().to_dict()["peak_bytes"]),
    )
    return {"peak_bytes": max(peaks), "resident_peak_bytes": memory.peak_above_start_bytes()}


def time_plain(training: Training, results_path: str) -> list[float]:
    """Plain PyTorch; torchlms is not even imported."""
    return training.run("plain PyTorch", contextlib.nullcontext(), results_path=results_path)


def train_offloaded(
    training: Training, budget: int | str, results_path: str, picture_path: str
) -> dict[str, Any]:
    """torchlms within the budget: measurements, the table of its report, and the picture."""
    import torchlms

    memory = ResidentMemory()
    scope = torchlms.offload(budget=budget)
    reports = []
    seconds = training.run(
        "torchlms",
        scope,
        after_step=lambda: reports.append(scope.report()),
        results_path=results_path,
    )
    reports[-1].plot(picture_path)
    steps = [report.to_dict() for report in reports]
    return {
        "seconds": seconds,
        "peaks": [step["peak_bytes"] for step in steps],
        "resident_peak_bytes": memory.peak_above_start_bytes(),
        "report": steps[-1],
        "table": str(reports[-1]),
    }


def in_own_process(function: Callable[..., Any], *args: object, **environment: str) -> Any:
    saved = {name: os.environ.get(name) for name in environment}
    os.environ.update(environment)
    try:
        spawning = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(1, mp_context=spawning) as executor:
            return executor.submit(function, *args).result()
    finally:
        for name, value in saved.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def differing_tensors(path: str, other_path: str) -> list[str]:
    """Names of losses, gradients, parameters, running statistics and buffers that differ."""
    ours, theirs = torch.load(path), torch.load(other_path)
    return [
        f"{kind} {name}"
        for kind in ours
        for name in ours[kind] | theirs[kind]
        if not torch.equal(ours[kind][name], theirs[kind][name])
    ]


def typical(seconds: list[float]) -> float:
    """The median, without the first step, in which PyTorch warms up and torchlms records."""
    return statistics.median(seconds[1:])


def budget_from(text: str, plain_peak_bytes: int) -> int | str:
    """A fraction of plain's peak; any other form is left to torchlms."""
    try:
        fraction = float(text)
    except ValueError:
        return text
    return int(fraction * plain_peak_bytes) if fraction <= 1 else int(fraction)


def print_table(figures: dict[str, Any]) -> None:
    def mib(size: int) -> str:
        return f"{size / 2**20:.1f} MiB"

    def of_plain(name: str) -> str:
        return f"{figures[name] / figures[f'plain_{name}']:.2f}x"

    rows = [
        ("", "plain PyTorch", "torchlms", "ratio"),
        ("budget", "none", mib(figures["budget_bytes"]), ""),
    ]
    for label, name, form in (
        ("peak of all tensors", "peak_bytes", mib),
        ("peak resident, above start", "resident_peak_bytes", mib),
        ("time of a step", "step_s", lambda seconds: f"{seconds:.2f} s"),
    ):
        plain, ours = figures[f"plain_{name}"], figures[name]
        rows.append((label, form(plain), form(ours), of_plain(name)))
    print()
    for label, *columns in rows:
        print(f"{label:<28}" + "".join(f"{column:>16}" for column in columns))


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch", type=int, default=16, help="images in a batch")
    parser.add_argument("--size", type=int, default=224, help="pixels a side")
    parser.add_argument("--steps", type=int, default=4, help="steps, the first of which records")
    parser.add_argument(
        "--budget",
        default="0.45",
        help='fraction of the peak of plain PyTorch, or bytes such as "700MiB"',
    )
    parser.add_argument("--out", type=Path, default=Path("build/demo"), help="output folder")
    arguments = parser.parse_args()
    if min(arguments.batch, arguments.steps) < 2:
        parser.error("batch normalisation and a median need --batch and --steps of 2 at least")
    return arguments


def main() -> int:
    arguments = parse_arguments()
    arguments.out.mkdir(parents=True, exist_ok=True)
    training = Training(arguments.batch, arguments.size, arguments.steps)
    print(
        f"ResNet-50, batch {training.batch}, {training.size} px, {training.steps} steps; "
        f"torch {torch.__version__}, {torch.get_num_threads()} threads"
    )
    with tempfile.TemporaryDirectory() as folder:
        plain_path, our_path = f"{folder}/plain.pt", f"{folder}/torchlms.pt"
        counted = in_own_process(count_plain, training, **RETURNING_MALLOC)
        plain_seconds = in_own_process(time_plain, training, plain_path)
        budget = budget_from(arguments.budget, counted["peak_bytes"])
        picture_path = str(arguments.out / "memory.png")
        try:
            ours = in_own_process(train_offloaded, training, budget, our_path, picture_path)
        except torch.OutOfMemoryError as error:
            print(f"This budget is too small.\n{error}", file=sys.stderr)
            return 1
        differing = differing_tensors(plain_path, our_path)

    figures = {
        "gradients_equal": not differing,
        "peak_bytes": max(ours["peaks"]),
        "budget_bytes": ours["report"]["budget_bytes"],
        "plain_peak_bytes": counted["peak_bytes"],
        "step_s": typical(ours["seconds"]),
        "plain_step_s": typical(plain_seconds),
        "resident_peak_bytes": ours["resident_peak_bytes"],
        "plain_resident_peak_bytes": counted["resident_peak_bytes"],
        "steps_s": ours["seconds"],
        "plain_steps_s": plain_seconds,
        "peaks_bytes": ours["peaks"],
        **asdict(training),
        "torch": str(torch.__version__),
        "num_threads": torch.get_num_threads(),
        "report": ours["report"],
    }
    (arguments.out / "report.json").write_text(json.dumps(figures, indent=2) + "\n")
    print_table(figures)
    print("\nThe last step, as torchlms reports it:\n" + ours["table"])
    print(f"\nWritten: {arguments.out / 'report.json'}, {arguments.out / 'memory.png'}")
    return verdict(figures, differing)


def verdict(figures: dict[str, Any], differing: list[str]) -> int:
    """Says what came out; returns the exit status."""
    if differing:
        print(f"DIFFERENT from plain PyTorch: {len(differing)} tensors, first {differing[0]}")
    else:
        print("Losses, gradients, parameters, running statistics and buffers: equal in every bit.")
    exceeded = figures["peak_bytes"] > figures["budget_bytes"]
    if exceeded:
        print(f"BUDGET EXCEEDED: a peak of {figures['peak_bytes']} bytes")
    return 1 if differing or exceeded else 0


if __name__ == "__main__":
    sys.exit(main())
