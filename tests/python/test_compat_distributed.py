# SPDX-License-Identifier: BSD-3-Clause
"""Training by two processes: DDP, FSDP2, tensor parallel, distributed tensors."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

import pytest

from children import Child
from distributed import NUM_RANKS, PROGRAMS, rank_main

POLICIES = ["swap", "recompute"]
Found = list[dict[tuple[str, str], tuple[str | None, int]]]


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Found:
    """What each rank found, per program and policy; all of them in one run of two processes."""
    store = str(tmp_path_factory.mktemp("store") / "file")
    with ExitStack() as stack:
        ranks: list[Any] = [
            stack.enter_context(Child(rank_main, rank, store, POLICIES))
            for rank in range(NUM_RANKS)
        ]
        return [rank.receive() for rank in ranks]


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("name", PROGRAMS)
def test_processes_that_train_together_are_exact(name: str, policy: str, found: Found) -> None:
    for results in found:
        difference, moved = results[name, policy]
        assert difference is None
        assert moved > 0 or name == "distributed tensors"  # kept whole
