# SPDX-License-Identifier: BSD-3-Clause
"""These tests run on the emulated device only: `make test-cuda-emulated`, or `run pytest FILE`."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

import pytest

collect_ignore_glob = [] if "EMULATED_CUDA_LIBRARY" in os.environ else ["test_*.py"]

USUAL = {
    "BYTES": 4 << 30,
    "PINNED_BYTES": 2**64 - 1,
    "H2D_BYTES_PER_S": 0,
    "D2H_BYTES_PER_S": 0,
    "SLOWDOWN": 1,
    "FLOPS_PER_S": 0,
    "MEMORY_BYTES_PER_S": 0,
    "COMPUTE": 1,
    "DELAY_US": 0,
    "FAIL": "",
}


@pytest.fixture(autouse=True)
def no_races() -> Iterator[None]:
    """Every test must leave the race detector silent; those about races take the reports themselves."""
    import bed
    import torch

    yield
    torch.cuda.synchronize()
    found = bed.races()
    bed.forget_races()
    assert not found, "\n".join(found)


@pytest.fixture
def knob(no_races: None) -> Iterator[Callable[[str, object], None]]:
    """Sets knobs for one test."""
    import bed

    yield bed.set_knob
    for name, value in USUAL.items():
        bed.set_knob(name, value)
