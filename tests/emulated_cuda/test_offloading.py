# SPDX-License-Identifier: BSD-3-Clause
"""Training steps of real models on a device that is too small for plain PyTorch."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from emulation import RUN
from offloading import MIB, Found, cap_below, plain, train

SHARES = {"resnet18": 0.8, "gpt": 0.6, "lstm": 0.8}
SEEDS = int(os.environ.get("SEEDS", "5"))
POLICIES = ("swap", "recompute", "hybrid", "auto")


def offloaded(model: str, out: Path, *arguments: object, **knobs: object) -> Found:
    """Trains within a cap that plain PyTorch does not fit, the budget being the cap; checks what always holds."""
    reference = plain(model)
    cap = cap_below(reference.reserved, SHARES[model])
    found = train(model, "--budget", cap, "--out", out, *arguments, BYTES=cap + 2 * MIB, **knobs)
    assert "out_of_memory" not in found, found
    assert found["reserved"] <= cap
    assert not found["races"], "\n".join(found["races"])
    assert not reference.differs_from(out)
    report = found["report"]
    assert report["swapped_bytes"] + report["recomputed_bytes"] > 0
    return found


@pytest.mark.parametrize("model", SHARES)
def test_plain_pytorch_runs_out_of_memory_at_the_cap(model: str) -> None:
    cap = cap_below(plain(model).reserved, SHARES[model])
    assert "out_of_memory" in train(model, "--plain", BYTES=cap)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("model", SHARES)
def test_every_policy_trains_within_the_cap_with_equal_gradients(
    model: str, policy: str, tmp_path: Path
) -> None:
    offloaded(model, tmp_path / "out.pt", "--policy", policy)


@pytest.mark.parametrize("seed", range(SEEDS))
@pytest.mark.parametrize("model", SHARES)
def test_gradients_are_equal_whatever_the_device_delays(
    model: str, seed: int, tmp_path: Path
) -> None:
    offloaded(model, tmp_path / "out.pt", SEED=seed, DELAY_US=300)


def resnet18_fits(cap: str) -> subprocess.CompletedProcess[str]:
    environment = {
        k: v for k, v in os.environ.items() if not k.startswith(("EMULATED_CUDA_", "LD_PRELOAD"))
    }
    command = [RUN, "--cap", cap, sys.executable, RUN.with_name("resnet18_fits.py")]
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=600)


def test_the_script_trains_where_plain_pytorch_runs_out_of_memory_with_the_bits_of_the_cpu() -> (
    None
):
    done = resnet18_fits("128MiB")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "plain PyTorch: CUDA out of memory" in done.stdout


def test_the_script_fails_where_plain_pytorch_fits() -> None:
    done = resnet18_fits("1GiB")
    assert done.returncode == 1, done.stdout + done.stderr
    assert "plain PyTorch: trains" in done.stdout


def test_nothing_grows_over_a_hundred_steps(tmp_path: Path) -> None:
    found = offloaded("lstm", tmp_path / "out.pt", "--steps", 100)
    assert found["grown"] <= 0
    assert found["new_pinned"] == 0


def test_what_the_host_tier_cannot_take_goes_to_the_disk(tmp_path: Path) -> None:
    arguments = ("--host-budget", 8 * MIB, "--disk-path", tmp_path)
    report = offloaded("gpt", tmp_path / "out.pt", *arguments)["report"]
    assert 0 < report["host_bytes"] <= 8 * MIB
    assert report["disk_written_total_bytes"] > 0


def test_without_room_below_the_device_the_error_says_so(tmp_path: Path) -> None:
    cap = cap_below(plain("gpt").reserved, SHARES["gpt"])
    found = train("gpt", "--budget", cap, "--host-budget", 8 * MIB, BYTES=cap)
    assert "host_budget" in found["out_of_memory"]


def test_pageable_memory_serves_where_no_more_can_be_page_locked(tmp_path: Path) -> None:
    offloaded("gpt", tmp_path / "out.pt", PINNED_BYTES=4 * MIB)
