# SPDX-License-Identifier: BSD-3-Clause
"""torchlms and other projects' offloaders side by side on the emulated device. EMULATION: no figure is one of a GPU.

    tests/emulated_cuda/run python tests/emulated_cuda/peer_table.py [--balance v100|h200] [--json FILE]

Operators and the link take the time that they would take on the GPU named, from its peak rates, times a factor. Every
method but plain gets the same memory, and no more than that. Overlap: the part of the link's busy time that did not
make the step longer than plain PyTorch's and what was computed again.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import torch
from peer_row import METHODS, MIN_OFFLOAD_BYTES, PEER_METHODS, SPEEDS

HERE = Path(__file__).resolve().parent
MIB = 1 << 20
ROOMY = 4096 * MIB
SHARES = {"resnet18": 0.8, "gpt": 0.65, "tiny": 0.8}  # of the memory that plain PyTorch reserves
Row = dict[str, Any]


def row_of(model: str, method: str, balance: str, cap: int, folder: Path, steps: int) -> Row:
    if method in PEER_METHODS:
        steps = 1  # they take long, and the same each time
    out = folder / f"{model} {method}.pt"
    environment = os.environ | {"EMULATED_CUDA_BYTES": str(cap or ROOMY)}
    command = [sys.executable, HERE / "peer_row.py", model, method, "--balance", balance]
    command += ["--cap", str(cap), "--steps", str(steps), "--out", str(out)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=1200)
    if done.returncode != 0:
        raise RuntimeError(f"{model}, {method}: {done.stderr[-4000:]}")
    row: Row = {"model": model, "method": method} | json.loads(done.stdout.splitlines()[-1])
    if "error" not in row:
        row["gradients"] = torch.load(out)
    return row


def compare(row: Row, plain: Row) -> None:
    """Completes a row by what plain PyTorch did."""
    if "error" in row:
        return
    row["step_ms"] = median(row["steps_ms"])
    row["exact"] = all(map(torch.equal, plain["gradients"], row["gradients"]))
    extra_ms = row["step_ms"] - median(plain["steps_ms"])
    row["over_plain"] = row["step_ms"] / median(plain["steps_ms"])
    if row["reports"]:
        extra_ms -= median(r["recompute_us"] for r in row["reports"][-len(row["steps_ms"]) :]) / 1e3
    if row["link_busy_ms"] > 0:
        row["overlap"] = min(1.0, max(0.0, 1 - extra_ms / row["link_busy_ms"]))


def rows_of(
    model: str,
    balance: str,
    methods: tuple[str, ...] = METHODS,
    steps: int = 3,
    at_once: int = 2,
    tell: Callable[[Row], None] = lambda row: None,
) -> list[Row]:
    with TemporaryDirectory() as folder, ThreadPoolExecutor(at_once) as pool:
        plain = row_of(model, "plain", balance, 0, Path(folder), steps)
        cap = int(SHARES[model] * plain["reserved_bytes"]) // (2 * MIB) * 2 * MIB

        def one(method: str) -> Row:
            row = row_of(model, method, balance, cap, Path(folder), steps)
            return finish(row)

        def finish(row: Row) -> Row:
            row["cap_bytes"] = cap
            compare(row, plain)
            tell(row)
            return row

        finish(plain)
        rows = [plain, *pool.map(one, (method for method in methods if method != "plain"))]
    for row in rows:
        row.pop("gradients", None)
    return rows


HEAD = (
    f"{'model':9} {'method':24} {'step ms':>9} {'x plain':>8} {'allocated':>9} {'reserved':>9} {'cap MiB':>8} "
    f"{'moved MiB':>9} {'overlap':>8} {'races':>6} {'exact':>6}  predicted / measured by torchlms"
)


def show(row: Row) -> str:
    head = f"{row['model']:9} {row['method']:24} "
    if "error" in row:
        return head + row["error"]
    overlap = f"{row['overlap']:.0%}" if "overlap" in row else ""
    predicted = ""
    if row["reports"]:
        report = row["reports"][-1]
        predicted = (
            f"  {report['predicted_step_us'] / 1e3:.1f} / {report['measured_step_us'] / 1e3:.1f} ms"
        )
    return (
        f"{head}{row['step_ms']:9.1f} {row['over_plain']:8.2f} {row['allocated_bytes'] / MIB:9.1f} "
        f"{row['reserved_bytes'] / MIB:9.1f} {row['cap_bytes'] / MIB:8.1f} {row['moved_bytes'] / MIB:9.1f} "
        f"{overlap:>8} {row['races']:6} {row['exact']!s:>6}{predicted}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--balance", choices=SPEEDS, default="v100")
    parser.add_argument("--models", nargs="+", choices=SHARES, default=["resnet18", "gpt"])
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=METHODS)
    parser.add_argument("--at-once", type=int, default=2, help="processes")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    speed = SPEEDS[options.balance]
    print(
        f"EMULATION of {options.balance}, {speed.times_slower} times slower: "
        f"{speed.flops_per_s / 1e12:g} TFLOP/s, memory {speed.memory_bytes_per_s / 1e9:g} GB/s, "
        f"link {speed.link_bytes_per_s / 1e9:g} GB/s in each direction.\n"
        f"min_offload_bytes {MIN_OFFLOAD_BYTES}.\n{HEAD}",
        flush=True,
    )
    rows = []
    for model in options.models:
        rows += rows_of(
            model,
            options.balance,
            tuple(options.methods),
            at_once=options.at_once,
            tell=lambda row: print(show(row), flush=True),
        )
    if options.json:
        described = {"emulation": True, "balance": options.balance} | vars(speed)
        options.json.write_text(json.dumps(described | {"rows": rows}, indent=1))


if __name__ == "__main__":
    sys.exit(main())
