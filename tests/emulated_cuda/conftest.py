# SPDX-License-Identifier: BSD-3-Clause
"""These tests run on the emulated device only: `make test-cuda-emulated`, or `run pytest FILE`."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

collect_ignore_glob = [] if "EMULATED_CUDA_LIBRARY" in os.environ else ["test_*.py"]


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
