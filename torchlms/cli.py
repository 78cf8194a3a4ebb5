# SPDX-License-Identifier: BSD-3-Clause
"""The command line: `torchlms info` (what this installation and this machine offer) and
`torchlms plan` (what a recorded step would do within a budget, without running it)."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import torch

import torchlms
from torchlms import _C, devices
from torchlms.config import Config
from torchlms.plan_file import TraceFile
from torchlms.planning import COSTS_FORMS, Costs
from torchlms.settings import resolve
from torchlms.units import format_bytes, format_rate

DOES_NOT_FIT = 3
"""The exit status of `torchlms plan` where no plan fits."""


def collect(disk_path: str | None = None) -> dict[str, Any]:
    """Versions, the device's memory in bytes, and the disk tier with its measured bandwidths in
    bytes per second. OSError for a folder that cannot be used."""
    config = Config() if disk_path is None else Config(disk_path=disk_path)
    settings, _ = resolve(config)
    return {
        "torchlms": torchlms.__version__,
        "torch": str(torch.__version__),
        "built_for_torch": _C.built_for_torch,
        "backends": {"cpu": "built", "cuda": devices.cuda_missing() or "built"},
        "devices": {name: dict(_C.device_memory(name)) for name in devices.all_of_this_machine()},
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
    for name, state in info["backends"].items():
        yield f"backend {name}", state
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


def _info(options: argparse.Namespace) -> int:
    collected = collect(options.disk_path)
    if options.json:
        print(json.dumps(collected, indent=2))
    else:
        rows = list(_rows(collected))
        width = max(len(name) for name, _ in rows)
        print("\n".join(f"{name:<{width}}  {value}" for name, value in rows))
    return 0


def _plan(options: argparse.Namespace) -> int:
    costs = Costs.read("--costs", options.costs)
    trace = TraceFile.load_any(options.file)
    forecast = trace.plan(
        options.budget, policy=options.policy, costs=costs, disk_path=options.disk_path
    )
    if options.save is not None and forecast.fits:
        forecast.plan().save(options.save)
    if options.plot is not None:
        forecast.plot(options.plot)
    print(json.dumps(forecast.to_dict(), indent=2) if options.json else forecast)
    return 0 if forecast.fits else DOES_NOT_FIT


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="torchlms", description=torchlms.__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    info = commands.add_parser("info", help="versions, device memory, tiers, measured bandwidths")
    info.set_defaults(run=_info)
    plan = commands.add_parser(
        "plan",
        help="what a recorded step would do within a budget, without running it",
        epilog="exit status: 0 when the step fits, 1 for bad input, 2 for bad usage, "
        f"{DOES_NOT_FIT} when it does not fit",
    )
    plan.set_defaults(run=_plan)
    plan.add_argument("file", help="a saved trace or plan")
    plan.add_argument(
        "--budget", required=True, help='"8GiB", bytes, a fraction of this device, "auto", "min"'
    )
    plan.add_argument("--policy", default="auto", help="auto (default), swap, recompute or hybrid")
    plan.add_argument("--costs", default="measured", help=f"of the link: {COSTS_FORMS}")
    plan.add_argument("--save", metavar="FILE", help="write the plan, where the step fits")
    plan.add_argument("--plot", metavar="FILE", help="draw memory, link and replays over time")
    for command in (info, plan):
        command.add_argument("--json", action="store_true", help="print JSON, in bytes")
        command.add_argument("--disk-path", metavar="FOLDER", help="folder of the disk tier")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; returns the exit status: 0, 1 with a sentence on stderr, or DOES_NOT_FIT.
    Bad usage ends in argparse's SystemExit(2)."""
    options = _parser().parse_args(arguments)
    try:
        status: int = options.run(options)
        sys.stdout.flush()
    except BrokenPipeError:  # `torchlms plan ... | head`: the reader has what it wanted
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except (OSError, ValueError, ImportError) as error:
        text = str(error).removeprefix("torchlms: ")
        print(f"torchlms {options.command}: {text}", file=sys.stderr)
        return 1
    return status
