# SPDX-License-Identifier: BSD-3-Clause
"""`torchlms info`: what this installation and this machine offer."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import torch

import torchlms
from torchlms import _C
from torchlms.config import Config
from torchlms.settings import resolve
from torchlms.units import format_bytes, format_rate


def collect(disk_path: str | None = None) -> dict[str, Any]:
    """Versions, the device's memory in bytes, and the disk tier with its measured bandwidths in
    bytes per second. OSError for a folder that cannot be used."""
    config = Config() if disk_path is None else Config(disk_path=disk_path)
    settings, _ = resolve(config)
    return {
        "torchlms": torchlms.__version__,
        "torch": str(torch.__version__),
        "built_for_torch": _C.built_for_torch,
        "devices": {"cpu": dict(_C.device_memory())},
        "tiers": {
            "disk": {
                "path": settings.disk_path,
                "budget_bytes": settings.disk_budget,
                **_C.measure_disk(settings.disk_path),
            },
        },
    }


def _rows(info: dict[str, Any]) -> Iterator[tuple[str, str]]:
    yield "torchlms", info["torchlms"]
    yield "torch", info["torch"]
    yield "built for torch", info["built_for_torch"]
    for name, memory in info["devices"].items():
        yield f"device {name}", format_bytes(memory["total_bytes"])
        yield "  available", format_bytes(memory["available_bytes"])
        yield "  held by tensors", format_bytes(memory["held_bytes"])
        yield "  cached", format_bytes(memory["cached_bytes"])
    for name, tier in info["tiers"].items():
        yield f"tier {name}", tier["path"] + (" (in memory)" if tier["is_memory"] else "")
        yield "  free", format_bytes(tier["free_bytes"])
        yield "  budget", format_bytes(tier["budget_bytes"])
        yield "  direct I/O", "yes" if tier["direct"] else "no"
        yield "  out", format_rate(tier["out_bytes_per_s"])
        yield "  in", format_rate(tier["in_bytes_per_s"])


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; returns the exit status: 0, or 1 with a sentence on stderr."""
    parser = argparse.ArgumentParser(prog="torchlms", description=torchlms.__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    info = commands.add_parser("info", help="versions, device memory, tiers, measured bandwidths")
    info.add_argument("--json", action="store_true", help="print JSON, in bytes")
    info.add_argument("--disk-path", metavar="FOLDER", help="folder of the disk tier")
    options = parser.parse_args(arguments)
    try:
        collected = collect(options.disk_path)
    except (OSError, ValueError) as error:
        print(f"torchlms {options.command}: {error}", file=sys.stderr)
        return 1
    if options.json:
        print(json.dumps(collected, indent=2))
    else:
        rows = list(_rows(collected))
        width = max(len(name) for name, _ in rows)
        print("\n".join(f"{name:<{width}}  {value}" for name, value in rows))
    return 0
