# SPDX-License-Identifier: BSD-3-Clause
"""What holds for every Python test: a known generator state before, no hooks left behind after."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))  # training.py and children.py, here and when spawned

from training import settle


@pytest.fixture(scope="session", autouse=True)
def _fast_collections() -> None:
    gc.freeze()  # what imports made: the many collections of these tests need not walk it


@pytest.fixture(autouse=True)
def _clean_thread() -> Iterator[None]:
    torch.manual_seed(0)
    num_threads = torch.get_num_threads()
    yield
    torch.set_num_threads(num_threads)
    settle()  # a graph that is left would keep its session's device
    hooks = torch._C._autograd._top_saved_tensors_default_hooks(True)
    assert hooks is None, "saved-tensor hooks are left installed"
