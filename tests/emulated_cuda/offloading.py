# SPDX-License-Identifier: BSD-3-Clause
"""Runs train.py in a process of its own, with the emulated device's knobs set."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import torch

HERE = Path(__file__).resolve().parent
MIB = 1 << 20
ROOMY = 4096 * MIB
Found = dict[str, Any]


def train(*arguments: object, **knobs: object) -> Found:
    """What train.py printed. knobs: EMULATED_CUDA_<NAME>."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("TORCHLMS_")}
    environment |= {f"EMULATED_CUDA_{name}": str(value) for name, value in knobs.items()}
    # A knob that is set for this process is none for the child, or it would hold for plain too.
    paths = [str(HERE), str(HERE.parent / "python"), environment.get("PYTHONPATH", "")]
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    command = [sys.executable, str(HERE / "train.py"), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=600)
    assert done.returncode == 0, f"{command}\n{done.stdout[-2000:]}\n{done.stderr[-6000:]}"
    found: Found = json.loads(done.stdout.splitlines()[-1])
    return found


@dataclass(frozen=True)
class Plain:
    """What a model needs and gives without torchlms on a device with room."""

    results: Path
    reserved: int

    def differs_from(self, other: Path) -> list[int]:
        """Places of results that are not equal in every bit."""
        mine, others = torch.load(self.results), torch.load(other)
        assert len(mine) == len(others) > 1
        pairs = enumerate(zip(mine, others, strict=True))
        return [place for place, (one, two) in pairs if not torch.equal(one, two)]


@cache
def plain(model: str, *arguments: object) -> Plain:
    out = Path(mkdtemp()) / "plain.pt"
    found = train(model, "--plain", "--out", out, *arguments, BYTES=ROOMY)
    assert not found["races"]
    return Plain(out, found["reserved"])


def cap_below(reserved: int, share: float) -> int:
    """In whole 2 MiB, as the allocator reserves."""
    return int(share * reserved) // (2 * MIB) * 2 * MIB
