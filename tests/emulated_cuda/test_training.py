# SPDX-License-Identifier: BSD-3-Clause
"""Training on the emulated device. SEEDS: over how many seeds of random delays (default 5)."""

from __future__ import annotations

import os
from collections.abc import Callable

import bed
import pytest
import torch
from small_models import case

SEEDS = int(os.environ.get("SEEDS", "5"))


@pytest.mark.parametrize("name", ["resnet18", "gpt"])
def test_gradients_are_the_cpu_s_bit_for_bit(name: str) -> None:
    wanted, got = case(name).gradients("cpu", steps=3), case(name).gradients("cuda", steps=3)
    assert all(map(torch.equal, wanted, got))


@pytest.mark.parametrize("name", ["resnet18", "gpt", "lstm"])
def test_a_training_step_never_waits_for_the_device(name: str) -> None:
    before = bed.counter("waiting_ops"), bed.counter("ops")
    case(name).gradients("cuda")
    assert bed.counter("waiting_ops") == before[0]
    assert bed.counter("ops") > before[1]


def test_gradients_of_an_lstm_are_close_to_the_cpu_s_which_has_no_fused_cell() -> None:
    wanted, got = case("lstm").gradients("cpu", steps=3), case("lstm").gradients("cuda", steps=3)
    torch.testing.assert_close(wanted, got)


@pytest.mark.parametrize("name", ["resnet18", "gpt", "lstm"])
def test_gradients_do_not_depend_on_random_delays(
    name: str, knob: Callable[[str, object], None]
) -> None:
    wanted = case(name).gradients("cuda")
    knob("DELAY_US", 200)
    for seed in range(SEEDS):
        knob("SEED", seed)
        assert all(map(torch.equal, wanted, case(name).gradients("cuda")))


def test_memory_does_not_grow_over_steps() -> None:
    small = case("gpt")
    small.gradients("cuda", steps=2)
    before = torch.cuda.memory_allocated(), bed.counter("device_bytes"), bed.counter("pinned_bytes")
    small.gradients("cuda", steps=20)
    torch.cuda.synchronize()
    after = torch.cuda.memory_allocated(), bed.counter("device_bytes"), bed.counter("pinned_bytes")
    assert before == after
