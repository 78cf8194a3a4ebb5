# SPDX-License-Identifier: BSD-3-Clause
"""What torchlms costs when the step fits its budget anyway and nothing moves.

The chain of small operators shows the cost per operator, ResNet-50 that it vanishes in a real step.
Plain PyTorch runs twice, in two processes: their ratio is the noise of this run.
"""

from __future__ import annotations

import time

import torch

from common import Cell, Spread, argument_parser, interleave, print_table, write_json
from training import Job, ResNetTraining, count_peak

NUM_PAIRS = 200
NUM_FORWARD_OPS = 2 * NUM_PAIRS + 1  # matmul and ReLU, and one sum
AMPLE_BUDGET = 0.5  # of the device
METHODS = ("plain", "plain again", "torchlms")


class Chain:
    """200 times matmul and ReLU of 8x8, forward and backward."""

    def __init__(self, offloads: bool, steps_per_turn: int) -> None:
        self._scope = None
        if offloads:
            import torchlms

            self._scope = torchlms.offload(budget=AMPLE_BUDGET)
        self._steps_per_turn = steps_per_turn
        torch.manual_seed(0)
        self._weight = torch.randn(8, 8).mul_(0.3).requires_grad_()
        self._input = torch.randn(8, 8)
        self.step()  # warms up

    def step(self) -> dict[str, float]:
        """The median of one turn's steps, in seconds, whole and of the forward pass alone."""
        whole, forward = [], []
        for _ in range(self._steps_per_turn):
            self._weight.grad = None
            start = time.perf_counter()
            if self._scope is None:
                loss = self._forward()
            else:
                with self._scope:
                    loss = self._forward()
            middle = time.perf_counter()
            loss.backward()
            whole.append(time.perf_counter() - start)
            forward.append(middle - start)
        return {"step_s": Spread.of(whole).median, "forward_s": Spread.of(forward).median}

    def _forward(self) -> torch.Tensor:
        x = self._input
        for _ in range(NUM_PAIRS):
            x = torch.relu(x @ self._weight)
        return x.sum()


def chain(rounds: int, steps_per_turn: int) -> dict[str, object]:
    cells = {name: Cell(Chain, name == "torchlms", steps_per_turn) for name in METHODS}
    results = interleave(cells, rounds, label="chain")
    for cell in cells.values():
        cell.close()
    rows = [["method", "step [us]", "us more per op, step", "forward only", "step over plain"]]
    figures = {}
    for name in METHODS:
        figure = {}
        for part in ("step", "forward"):
            seconds = [result[f"{part}_s"] for result in results[name]]
            plain = [result[f"{part}_s"] for result in results["plain"]]
            more = [
                (ours - base) * 1e6 / NUM_FORWARD_OPS
                for ours, base in zip(seconds, plain, strict=True)
            ]
            figure |= {
                f"{part}_s": Spread.of(seconds),
                f"{part}_us_more_per_op": Spread.of(more),
                f"{part}_over_plain": Spread.of_ratios(seconds, plain),
            }
        rows.append(
            [
                name,
                f"{figure['step_s'].median * 1e6:.0f}",
                figure["step_us_more_per_op"].text(2),
                figure["forward_us_more_per_op"].text(2),
                str(figure["step_over_plain"]),
            ]
        )
        figures[name] = {key: value._asdict() for key, value in figure.items()}
    print_table(
        f"Chain of {NUM_FORWARD_OPS} forward operators, {rounds} rounds of {steps_per_turn} steps",
        rows,
    )
    return figures


def resnet(job: Job, rounds: int) -> dict[str, object]:
    budget = 2 * count_peak(job)["peak_bytes"]
    jobs = dict.fromkeys(METHODS, job) | {
        "torchlms": Job(job.batch, job.size, offload={"budget": budget})
    }
    cells = {name: Cell(ResNetTraining, jobs[name]) for name in METHODS}
    interleave(cells, 2, label="warm-up")
    results = interleave(cells, rounds, label="ResNet-50")
    for cell in cells.values():
        cell.close()
    seconds = {name: [result["step_s"] for result in results[name]] for name in METHODS}
    swapped = max(result["report"]["swapped_bytes"] for result in results["torchlms"])
    rows = [["method", "step [s]", "step over plain"]]
    figures: dict[str, object] = {"budget_bytes": budget, "swapped_bytes": swapped}
    for name in METHODS:
        step, ratio = Spread.of(seconds[name]), Spread.of_ratios(seconds[name], seconds["plain"])
        rows.append([name, str(step), str(ratio)])
        figures[name] = {"step_s": step._asdict(), "over_plain": ratio._asdict()}
    print_table(
        f"ResNet-50, batch {job.batch}, {job.size} px, twice the budget it needs, {rounds} rounds",
        rows,
    )
    print(f"bytes moved: {swapped}")
    return figures


def main() -> None:
    parser = argument_parser(__doc__)
    parser.add_argument("--rounds", type=int, help="interleaved steps of each method")
    arguments = parser.parse_args()
    if arguments.quick:
        rounds, steps_per_turn, job = arguments.rounds or 5, 20, Job(batch=4, size=96)
    else:
        rounds, steps_per_turn, job = arguments.rounds or 40, 50, Job(batch=16, size=224)
    figures = {"chain": chain(rounds, steps_per_turn), "resnet50": resnet(job, rounds)}
    write_json(arguments, figures)


if __name__ == "__main__":
    main()
