# SPDX-License-Identifier: BSD-3-Clause
"""ResNet-50 within fractions of the memory that plain PyTorch takes: is it equal, how fast is it.

torch.utils.checkpoint round each residual block stands beside it as the known way to save memory on
a CPU. Plain PyTorch runs twice: the ratio of the two is the noise of this run.
"""

from __future__ import annotations

import tempfile
from dataclasses import replace
from typing import Any

import torch

from common import (
    Cell,
    Spread,
    argument_parser,
    interleave,
    mib,
    print_table,
    write_json,
)
from training import Job, ResNetTraining, count_peak, differing_tensors

NUM_COMPARED_STEPS = 3
FRACTIONS = (0.7, 0.45, 0.35)
PLAIN, PLAIN_AGAIN, CHECKPOINT = "plain", "plain again", "checkpoint per block"


def jobs_of(plain: Job, plain_peak_bytes: int) -> dict[str, Job]:
    jobs = {PLAIN: plain, PLAIN_AGAIN: plain, CHECKPOINT: replace(plain, checkpoints_blocks=True)}
    for fraction in FRACTIONS:
        budget = int(fraction * plain_peak_bytes)
        jobs[f"torchlms {fraction:g}"] = replace(plain, offload={"budget": budget})
    return jobs


def compare_first_steps(
    jobs: dict[str, Job],
) -> tuple[dict[str, Cell], dict[str, dict[str, Any]]]:
    """Opens the cells and makes the first steps in each.

    Returns:
        The cells that succeeded, and for every job its reports and which tensors differ from those
        of plain PyTorch, or why it failed.
    """
    cells, figures = {}, {}
    with tempfile.TemporaryDirectory() as folder:
        plain_path, path = f"{folder}/plain.pt", f"{folder}/other.pt"
        for name, job in jobs.items():
            cell = Cell(ResNetTraining, job)
            try:
                steps = [cell.call("step") for _ in range(NUM_COMPARED_STEPS)]
            except torch.OutOfMemoryError as error:
                cell.close()
                figures[name] = {"failure": str(error)}
                continue
            cell.call("save", plain_path if name == PLAIN else path)
            differing = [] if name == PLAIN else differing_tensors(plain_path, path)
            cells[name] = cell
            figures[name] = {"differing": differing, "steps": steps}
    return cells, figures


def measure(jobs: dict[str, Job], rounds: int) -> dict[str, dict[str, Any]]:
    cells, figures = compare_first_steps(jobs)
    results = interleave(cells, rounds, label="steps")
    plain_seconds = [result["step_s"] for result in results[PLAIN]]
    for name, cell in cells.items():
        seconds = [result["step_s"] for result in results[name]]
        reports = [step["report"] for step in figures[name].pop("steps") if "report" in step]
        reports += [result["report"] for result in results[name] if "report" in result]
        figures[name] |= {
            "step_s": Spread.of(seconds)._asdict(),
            "over_plain": Spread.of_ratios(seconds, plain_seconds)._asdict(),
            "resident_bytes": cell.call("resident_bytes"),
        }
        if reports:
            figures[name] |= {
                "peaks_bytes": [report["peak_bytes"] for report in reports],
                "peak_bytes": max(report["peak_bytes"] for report in reports),
                "budget_bytes": reports[-1]["budget_bytes"],
                "report": reports[-1],
            }
        cell.close()
    return figures


def equality(differing: list[str]) -> str:
    if not differing:
        return "yes"
    buffers = ("running_mean", "running_var", "num_batches_tracked")
    return "parameters only" if all(name.endswith(buffers) for name in differing) else "NO"


def comparison_rows(figures: dict[str, dict[str, Any]]) -> list[list[str]]:
    rows = ["method|budget|peak|of budget|steps above|resident|of budget|equal|step [s]|over plain"]
    for name, figure in figures.items():
        if "failure" in figure:
            rows.append(f"{name}|" + "|" * 6 + "does not fit||")
            continue
        budget, peak = figure.get("budget_bytes"), figure.get("peak_bytes")
        resident = figure["resident_bytes"]
        columns = [
            name,
            mib(budget) if budget else "",
            mib(peak) if peak else "",
            f"{peak / budget:.1%}" if budget else "",
            str(sum(size > budget for size in figure["peaks_bytes"])) if budget else "",
            mib(resident) if peak else "",
            f"{resident / budget:.1%}" if budget else "",
            equality(figure["differing"]),
            Spread(**figure["step_s"]).text(2),
            str(Spread(**figure["over_plain"])),
        ]
        rows.append("|".join(columns))
    return [row.split("|") for row in rows]


def inside_rows(figures: dict[str, dict[str, Any]]) -> list[list[str]]:
    rows = [["method", "peak", "predicted", "time [s]", "predicted", "out", "in", "stalls"]]
    rows[0] += ["evictions", "smallest budget"]
    for name, figure in figures.items():
        report = figure.get("report")
        if report is None:
            continue
        measured_us, predicted_us = report["measured_step_us"], report["predicted_step_us"]
        predicted_peak = report["predicted_peak_bytes"]
        rows.append(
            [
                name,
                mib(report["peak_bytes"]),
                f"{predicted_peak / report['peak_bytes']:.1%}" if predicted_peak else "?",
                f"{measured_us / 1e6:.2f}" if measured_us else "?",
                f"{predicted_us / measured_us:.1%}" if predicted_us and measured_us else "?",
                mib(report["link"]["out"]["bytes"]),
                mib(report["link"]["in"]["bytes"]),
                f"{report['stall_us'] / measured_us:.1%}" if measured_us else "?",
                str(report["evictions"]),
                mib(report["floor_bytes"] or 0),
            ]
        )
    return rows


def main() -> None:
    parser = argument_parser(__doc__)
    parser.add_argument("--batch", type=int)
    parser.add_argument("--size", type=int, help="pixels a side")
    parser.add_argument("--rounds", type=int, help="interleaved steps of each method")
    arguments = parser.parse_args()
    batch, size, rounds = (8, 160, 3) if arguments.quick else (16, 224, 40)
    plain = Job(arguments.batch or batch, arguments.size or size)

    counted = count_peak(plain)
    jobs = jobs_of(plain, counted["peak_bytes"])
    figures = measure(jobs, arguments.rounds or rounds)
    figures[PLAIN] |= counted
    figures[CHECKPOINT] |= count_peak(jobs[CHECKPOINT])

    print_table(
        f"ResNet-50, batch {plain.batch}, {plain.size} px, SGD without momentum; plain's peak "
        f"{mib(counted['peak_bytes'])}; equality after {NUM_COMPARED_STEPS} steps",
        comparison_rows(figures),
    )
    print_table("The last step of each budget", inside_rows(figures))
    for name, figure in figures.items():
        if "failure" in figure:
            print(f"\n{name}: {figure['failure']}")
    write_json(arguments, {"plain": counted, "methods": figures})


if __name__ == "__main__":
    main()
