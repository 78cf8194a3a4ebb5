# SPDX-License-Identifier: BSD-3-Clause
"""How large a batch of ResNet-50 trains in the bytes that plain PyTorch needs at batch 8.

The floor is what the operators themselves need: the largest batch whose peak fits with everything
else moved away. No swapping can go beyond it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from tqdm import tqdm

from common import Cell, argument_parser, mib, print_table, write_json
from training import Job, ResNetTraining, count_peak

PLAIN_BATCH = 8
NUM_STEPS = 3  # one that records, one that follows the plan, one more that must fit as well
EVERYTHING_MOVED = {"budget": "min", "min_offload_bytes": 0, "policy": "swap"}
LAYOUTS = {"default": False, "channels_last": True}


def try_training(job: Job) -> dict[str, Any] | None:
    """The report of the last step, in a process of its own; None when it does not fit."""
    with Cell(ResNetTraining, job) as cell:
        result = cell.call("try_steps", NUM_STEPS)
        return None if result is None else result["report"]


def largest(fits: Callable[[int], bool], guess: int) -> int:
    """The largest batch that fits, given that every smaller one does too; 0 when none does.

    Gallops away from the guess until it lies between two batches, then halves the way.
    """
    low, high, stride = 0, guess, 1
    if fits(guess):
        low = guess
        while fits(low + stride):
            low, stride = low + stride, 2 * stride
        high = low + stride
    else:
        while high > stride and not fits(high - stride):
            high, stride = high - stride, 2 * stride
        low = max(high - stride, 0)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def measure(size: int, channels_last: bool, label: str) -> dict[str, Any]:
    base = Job(PLAIN_BATCH, size, channels_last=channels_last)
    limit = count_peak(base)["peak_bytes"]
    floors: dict[int, int] = {}
    peaks: dict[int, int | None] = {}
    trials = tqdm(desc=f"trainings, {label}", unit="", disable=None)

    def floor(batch: int) -> int:
        if batch not in floors:
            report = try_training(replace(base, batch=batch, offload=EVERYTHING_MOVED))
            trials.update()
            if report is None:
                raise RuntimeError(f"batch {batch} does not train with everything moved away")
            floors[batch] = report["peak_bytes"]
        return floors[batch]

    def trains(batch: int) -> bool:
        if batch not in peaks:
            report = try_training(replace(base, batch=batch, offload={"budget": limit}))
            trials.update()
            peaks[batch] = None if report is None else report["peak_bytes"]
        peak = peaks[batch]
        return peak is not None and peak <= limit

    per_image = (floor(3 * PLAIN_BATCH) - floor(PLAIN_BATCH)) / (2 * PLAIN_BATCH)
    room = limit - floor(3 * PLAIN_BATCH)
    guess = 3 * PLAIN_BATCH + (int(room / per_image) if per_image > 0 else 0)
    floor_batch = largest(lambda batch: floor(batch) <= limit, max(guess, 1))
    batch = largest(trains, max(floor_batch, 1))
    trials.close()
    return {
        "plain_batch": PLAIN_BATCH,
        "limit_bytes": limit,
        "batch": batch,
        "floor_batch": floor_batch,
        "peaks_bytes": peaks,
        "floors_bytes": floors,
    }


def main() -> None:
    parser = argument_parser(__doc__)
    parser.add_argument("--size", type=int, help="pixels a side")
    arguments = parser.parse_args()
    size = arguments.size or (128 if arguments.quick else 224)
    figures = {name: measure(size, last, name) for name, last in LAYOUTS.items()}
    rows = [["layout", "bytes", "plain", "torchlms", "over plain", "floor", "of the floor"]]
    for name, figure in figures.items():
        rows.append(
            [
                name,
                mib(figure["limit_bytes"]),
                str(PLAIN_BATCH),
                str(figure["batch"]),
                f"{figure['batch'] / PLAIN_BATCH:.2f}x",
                str(figure["floor_batch"]),
                f"{figure['batch'] / max(figure['floor_batch'], 1):.1%}",
            ]
        )
    print_table(f"Largest batch of ResNet-50 at {size} px, {NUM_STEPS} steps", rows)
    write_json(arguments, {"layouts": figures})


if __name__ == "__main__":
    main()
