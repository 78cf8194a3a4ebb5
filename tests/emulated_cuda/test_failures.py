# SPDX-License-Identifier: BSD-3-Clause
"""Every failure of the device ends in a right step or a clear error, and the step after it is right."""

from __future__ import annotations

from pathlib import Path

import pytest
from offloading import MIB, cap_below, plain, train

CLEAR = ("out of memory", "CUDA error", "torchlms")
CALLS = {
    "cudaMalloc": (1, 2, 3, 5, 8),
    "cudaHostAlloc": (1, 2, 4),
    "cudaMemcpyAsync": (1, 2, 5, 20, 40),
}


@pytest.mark.parametrize(
    ("call", "nth"), [(call, nth) for call, numbers in CALLS.items() for nth in numbers]
)
def test_a_failing_call_ends_in_a_right_step_or_a_clear_error(
    call: str, nth: int, tmp_path: Path
) -> None:
    reference, out = plain("gpt"), tmp_path / "out.pt"
    cap = cap_below(reference.reserved, 0.7)
    arguments = ("--budget", cap, "--steps", 4, "--keep-going", "--out", out)
    found = train("gpt", *arguments, "--fail", f"{call}:{nth}", BYTES=cap + 2 * MIB)
    assert len(found["errors"]) <= 1, found["errors"]
    assert all(any(word in text for word in CLEAR) for text in found["errors"])
    assert not reference.differs_from(out)
    assert not found["races"], "\n".join(found["races"])
