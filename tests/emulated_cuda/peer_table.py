# SPDX-License-Identifier: BSD-3-Clause
"""Other projects' offloaders side by side on the emulated device. EMULATION: no figure is one of a GPU.

    tests/emulated_cuda/run python tests/emulated_cuda/peer_table.py [--balance v100|h200] [--json FILE]

The link is as fast, measured against what this machine computes, as that of the GPU named against what it
computes. Overlap: the part of the link's busy time that did not make the step longer than plain PyTorch's.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import json
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import bed
import torch
from peers import PEERS
from small_models import Case, Gpt, case
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

# Operations per second of dense float32 (TF32 where there is one) over bytes per second of the link, one direction.
BALANCES = {"v100": 14e12 / 12e9, "h200": 400e12 / 55e9}
Offloading = Callable[[], AbstractContextManager[Any] | None]


@dataclass
class Row:
    model: str
    method: str
    step_ms: float
    peak_bytes: int
    moved_bytes: int
    link_busy_ms: float
    overlap: float | None
    races: int
    exact: bool


def operations_per_s() -> float:
    a = torch.randn(1024, 1024, device="cuda")
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    for _ in range(3):
        start.record()
        a @ a
        end.record()
        torch.cuda.synchronize()
    return 2 * 1024**3 / start.elapsed_time(end) * 1e3


def link_busy_ms() -> float:
    return (bed.counter("h2d_busy_ns") + bed.counter("d2h_busy_ns")) / 1e6


def moved_bytes() -> int:
    return bed.counter("h2d_bytes") + bed.counter("d2h_bytes")


def step(model: torch.nn.Module, small: Case, offloading: AbstractContextManager[Any]) -> float:
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    model.zero_grad()
    start.record()
    with offloading, torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        loss = F.cross_entropy(model(small.inputs), small.labels)
    loss.backward()
    end.record()
    torch.cuda.synchronize()
    return start.elapsed_time(end)


def measure(
    name: str, method: str, small: Case, make: Offloading, plain: Row | None, wanted: list[Tensor]
) -> Row | None:
    model = copy.deepcopy(small.model).cuda()
    if (offloading := make()) is None:
        return None
    bed.forget_races()
    step(model, small, offloading)
    base = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    moved, busy = moved_bytes(), link_busy_ms()
    took_ms = step(model, small, offloading)
    busy = link_busy_ms() - busy
    extra = 0.0 if plain is None else max(0.0, took_ms - plain.step_ms)
    return Row(
        name,
        method,
        took_ms,
        torch.cuda.max_memory_allocated() - base,
        moved_bytes() - moved,
        busy,
        max(0.0, 1 - extra / busy) if busy > 0 else None,
        bed.counter("races"),
        all(map(torch.equal, wanted, [p.grad for p in model.parameters()])) if wanted else True,
    )


def rows_of(name: str, small: Case) -> list[Row]:
    small = Case(small.model, small.inputs.cuda(), small.labels.cuda())
    model = copy.deepcopy(small.model).cuda()
    step(model, small, contextlib.nullcontext())
    wanted = [p.grad for p in model.parameters()]
    plain = measure(name, "plain", small, contextlib.nullcontext, None, wanted)
    assert plain is not None
    rows: list[Row | None] = [plain]
    for peer, make in PEERS.items():
        for streams in (False, True):
            if peer == "save_on_cpu" and streams:
                continue
            method = f"{peer}, streams" if streams else peer
            rows.append(
                measure(name, method, small, lambda make=make, s=streams: make(s), plain, wanted)
            )
    return [row for row in rows if row is not None]


def show(row: Row) -> str:
    overlap = "" if row.overlap is None else f"{row.overlap:.0%}"
    return (
        f"{row.model:10} {row.method:20} {row.step_ms:9.1f} {row.peak_bytes / 2**20:9.1f} "
        f"{row.moved_bytes / 2**20:9.1f} {row.link_busy_ms:9.1f} {overlap:>8} {row.races:6} {row.exact!s:>6}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--balance", choices=BALANCES, default="v100")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    computes = operations_per_s()
    link = computes / BALANCES[options.balance]
    for name in ("H2D_BYTES_PER_S", "D2H_BYTES_PER_S"):
        bed.set_knob(name, link)
    print(
        f"EMULATION at the balance of {options.balance}: {computes / 1e9:.0f} Gop/s, link {link / 1e6:.0f} MB/s"
    )
    print(
        f"{'model':10} {'method':20} {'step ms':>9} {'peak MiB':>9} {'moved MiB':>9} {'link ms':>9} {'overlap':>8} {'races':>6} {'exact':>6}"
    )
    torch.manual_seed(0)
    gpt = Case(Gpt(4, 256), torch.randint(0, 100, (16, 32)), torch.randint(0, 100, (512,)))
    rows = [*rows_of("resnet18", case("resnet18")), *rows_of("gpt", gpt)]
    for row in rows:
        print(show(row))
    if options.json:
        described = {
            "emulation": True,
            "balance": options.balance,
            "operations_per_s": computes,
            "link_bytes_per_s": link,
        }
        options.json.write_text(
            json.dumps(described | {"rows": [asdict(row) for row in rows]}, indent=1)
        )
    bed.forget_races()  # they are in the table


if __name__ == "__main__":
    sys.exit(main())
