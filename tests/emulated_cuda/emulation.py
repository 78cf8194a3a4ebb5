# SPDX-License-Identifier: BSD-3-Clause
"""Runs a piece of Python on an emulated device of its own."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

RUN = Path(__file__).with_name("run")


def emulate(code: str, *options: str, **environment: str) -> subprocess.CompletedProcess[str]:
    # The knobs of the device that the tests themselves run on are not the child's.
    kept = {
        k: v for k, v in os.environ.items() if not k.startswith(("EMULATED_CUDA_", "LD_PRELOAD"))
    }
    kept["PYTHONPATH"] = os.pathsep.join([str(RUN.parent), kept.get("PYTHONPATH", "")])
    return subprocess.run(
        [RUN, *options, sys.executable, "-c", textwrap.dedent(code)],
        capture_output=True,
        text=True,
        env=kept | environment,
        timeout=300,
    )


def output_of(code: str, *options: str, **environment: str) -> str:
    done = emulate(code, *options, **environment)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()
