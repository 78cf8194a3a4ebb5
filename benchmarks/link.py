# SPDX-License-Identifier: BSD-3-Clause
"""How fast a step that is bound by swapping moves bytes, beside the same bytes moved plainly.

Plainly: the same number of writes and reads of the same size, with O_DIRECT, on the same disk, in
turn with the steps. Also whether link_limit is kept.
"""

from __future__ import annotations

import errno
import json
import mmap
import os
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch

from common import MIB, Cell, Spread, argument_parser, interleave, print_table, write_json

DEPTHS = (1, 2, 4)  # plain transfers in flight; the fastest of them is the measure
LIMIT_BYTES_PER_S = 200_000_000
NUM_LIMITED_STEPS = 3
RATES = ("out_rate", "in_rate")
TORCHLMS = "torchlms"


class SaveStorage(torch.autograd.Function):
    """Saves a storage of its own and computes next to nothing: the link is the bottleneck."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, num_elements: int, content: float) -> torch.Tensor:
        ctx.save_for_backward(torch.full((num_elements,), content))
        ctx.content = content
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        (saved,) = ctx.saved_tensors
        if saved[0] != ctx.content or saved[-1] != ctx.content:
            raise RuntimeError(f"a storage of {ctx.content} came back as {saved[0]}, {saved[-1]}")
        return grad, None, None


class SwapBoundStep:
    """A step that saves much more than its budget and has nothing to hide the transfers behind."""

    def __init__(self, num_storages: int, storage_bytes: int, fields: dict[str, Any]) -> None:
        import torchlms

        self._num_storages = num_storages
        self._num_elements = storage_bytes // 4
        self._scope = torchlms.offload(**fields)
        self._input = torch.zeros(1, requires_grad=True)
        for _ in range(4):  # recorded, planned, measured, planned again
            self.step()

    def step(self) -> dict[str, float]:
        """Bytes, and bytes per second from a direction's first transfer to the end of its last."""
        with self._scope:
            x = self._input
            for index in range(self._num_storages):
                x = SaveStorage.apply(x, self._num_elements, float(index)) + 1
        x.backward()
        transfers = json.loads(self._scope.session().timeline_json())["link"]
        result = {}
        for direction in ("out", "in"):
            mine = [transfer for transfer in transfers if transfer[0] == direction]
            began, ended = min(start for _, start, _, _ in mine), max(end for _, _, end, _ in mine)
            moved = sum(size for _, _, _, size in mine)
            result[f"{direction}_bytes"] = moved
            result[f"{direction}_rate"] = moved / (ended - began) * 1e6
        return result


class PlainTransfers:
    """Whole storages written to an unlinked file and read back, `depth` of them at once."""

    def __init__(self, folder: str, num_storages: int, storage_bytes: int, depth: int) -> None:
        self._offsets = [index * storage_bytes for index in range(num_storages)]
        self._size = storage_bytes
        try:
            self._file = os.open(folder, os.O_TMPFILE | os.O_RDWR | os.O_DIRECT, 0o600)
        except OSError as error:
            if error.errno in (errno.EINVAL, errno.EOPNOTSUPP):
                raise OSError(
                    error.errno, "no direct I/O here: choose --disk-path", folder
                ) from None
            raise
        os.posix_fallocate(self._file, 0, num_storages * storage_bytes)
        self._buffers = [mmap.mmap(-1, storage_bytes) for _ in range(depth)]
        for buffer in self._buffers:
            buffer.write(os.urandom(MIB) * (storage_bytes // MIB))
        self._threads = ThreadPoolExecutor(depth)
        self.step()  # the first writes also make the file

    def step(self) -> dict[str, float]:
        total = len(self._offsets) * self._size
        return {
            "out_rate": total / self._seconds(os.pwritev),
            "in_rate": total / self._seconds(os.preadv),
        }

    def _seconds(self, transfer: Any) -> float:
        depth = len(self._buffers)

        def run(lane: int) -> None:
            for offset in self._offsets[lane::depth]:
                moved = transfer(self._file, [self._buffers[lane]], offset)
                if moved != self._size:
                    raise OSError(errno.EIO, f"moved {moved} of {self._size} bytes")

        start = time.perf_counter()
        list(self._threads.map(run, range(depth)))
        return time.perf_counter() - start


def measure(
    disk_path: str, num_storages: int, storage_bytes: int, rounds: int
) -> tuple[dict[str, list[dict[str, float]]], list[dict[str, float]]]:
    """Rates of torchlms and of plain transfers, interleaved; then those of torchlms limited."""
    fields = {"budget": num_storages * storage_bytes // 4, "policy": "swap", "disk_path": disk_path}
    cells = {TORCHLMS: Cell(SwapBoundStep, num_storages, storage_bytes, fields)}
    # A plan may keep some storages: plain moves as many as the link did.
    num_moved = round(cells[TORCHLMS].call("step")["out_bytes"] / storage_bytes)
    for depth in DEPTHS:
        cells[f"plain, {depth} at once"] = Cell(
            PlainTransfers, disk_path, num_moved, storage_bytes, depth
        )
    results = interleave(cells, rounds, label="link")
    for cell in cells.values():
        cell.close()
    fields |= {"link_limit": LIMIT_BYTES_PER_S}
    with Cell(SwapBoundStep, num_storages // 2, storage_bytes, fields) as cell:
        limited = [cell.call("step") for _ in range(NUM_LIMITED_STEPS)]
    return results, limited


def over_fastest_plain(results: dict[str, list[dict[str, float]]], key: str) -> Spread:
    """Of each round: torchlms over the fastest plain method."""
    plain = [steps for name, steps in results.items() if name != TORCHLMS]
    fastest = [max(step[key] for step in steps) for steps in zip(*plain, strict=True)]
    return Spread.of_ratios([step[key] for step in results[TORCHLMS]], fastest)


def main() -> None:
    parser = argument_parser(__doc__)
    parser.add_argument("--disk-path", default=tempfile.gettempdir(), metavar="FOLDER")
    parser.add_argument("--rounds", type=int)
    arguments = parser.parse_args()
    num_storages, storage_mib, rounds = (16, 16, 5) if arguments.quick else (32, 64, 40)
    results, limited = measure(
        arguments.disk_path, num_storages, storage_mib * MIB, arguments.rounds or rounds
    )

    rows = [["method", "out [MB/s]", "in [MB/s]"]]
    methods = {}
    for name, steps in results.items():
        spreads = [Spread.of([step[key] / 1e6 for step in steps]) for key in RATES]
        rows.append([name, *(spread.text(0) for spread in spreads)])
        methods[name] = {
            key.replace("rate", "mb_per_s"): spread._asdict()
            for key, spread in zip(RATES, spreads, strict=True)
        }
    over_plain = {key: over_fastest_plain(results, key) for key in RATES}
    rows.append(["torchlms over the fastest plain", *map(str, over_plain.values())])
    over_limit = {
        key: Spread.of([step[key] / LIMIT_BYTES_PER_S for step in limited]) for key in RATES
    }
    limit_name = f"limited to {LIMIT_BYTES_PER_S / 1e6:.0f} MB/s: rate over limit"
    rows.append([limit_name, *map(str, over_limit.values())])
    num_moved = round(results[TORCHLMS][-1]["out_bytes"] / (storage_mib * MIB))
    print_table(f"{num_moved} of {num_storages} storages of {storage_mib} MiB each way", rows)
    write_json(
        arguments,
        {
            "num_moved": num_moved,
            "storage_bytes": storage_mib * MIB,
            "methods": methods,
            "over_plain": {key: spread._asdict() for key, spread in over_plain.items()},
            "over_limit": {key: spread._asdict() for key, spread in over_limit.items()},
        },
    )


if __name__ == "__main__":
    main()
