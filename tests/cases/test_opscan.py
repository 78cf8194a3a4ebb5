# SPDX-License-Identifier: BSD-3-Clause
"""A part of PyTorch's op database; `make opscan` looks at all of it."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parent / "opscan.py"


def scan(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(SCRIPT), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=SCRIPT.parent)


@pytest.mark.parametrize("policy", ["swap", "recompute", "auto"])
def test_ops_of_pytorch_give_the_same_bits(policy: str) -> None:
    process = scan(policy, "--every", "20")
    assert process.returncode == 0, process.stdout + process.stderr
    figures = re.search(r"(\d+) pairs, (\d+) samples, (\d+) with tensors moved", process.stdout)
    assert figures, process.stdout
    pairs, samples, moved = map(int, figures.groups())
    assert pairs > 50
    assert samples > 5 * pairs
    assert moved > samples / 10


def test_the_scan_finds_hooks_that_lose_strides() -> None:
    process = scan("cases:MOffset", "--every", "20")
    assert process.returncode == 1
    assert "differs" in process.stdout
