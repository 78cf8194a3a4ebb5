# SPDX-License-Identifier: BSD-3-Clause
"""Public fault reports run under torchlms, and under offloaders that have those faults."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import torchlms

FOLDER = Path(__file__).parent
# The source is read, not imported: it sets up its process for measuring memory.
IDS = re.findall(r'^@case\("(C\d+)"', (FOLDER / "cases.py").read_text(), re.MULTILINE)
DOCUMENTED_LIMITS = {
    "C39": ("GAP", "suspended generator leaves hooks on for the caller"),
    "C41": ("GAP", "grads right, but nothing is offloaded in the worker thread"),
}
MUTANTS = "MDedup MOffset MClear MPop MBusy MHalf MInplace MStep ckNoRng LeafTwice".split()
POLICIES = {"torchlms": "swap", "recompute": "recompute"}
"""Names of the peers that are torchlms, with their policies."""
TELLING = ("C03", "C05", "C19", "C29", "C31")


def run_cases(path: Path, ids: list[str], *options: str) -> dict[str, dict[str, list[str]]]:
    """Status and note of each case and peer."""
    command = [sys.executable, "cases.py", "--only", ",".join(ids), "--json", str(path), *options]
    process = subprocess.run(command, cwd=FOLDER, capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stderr
    return json.loads(path.read_text())


@pytest.fixture(scope="module")
def results(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, dict[str, list[str]]]:
    """Of the cases that were selected, each run in a process of its own."""
    selected = [getattr(item, "callspec", None) for item in request.session.items]
    ids = sorted({spec.params["case"] for spec in selected if spec and "case" in spec.params})
    return run_cases(tmp_path_factory.mktemp("cases") / "out.json", ids, "--peer", ",".join(POLICIES))


@pytest.mark.parametrize("peer", POLICIES)
@pytest.mark.parametrize("case", IDS)
def test_torchlms_has_none_of_the_reported_faults(
    case: str, peer: str, results: dict[str, dict[str, list[str]]]
) -> None:
    status, note, _ = results[case][peer]
    if case in DOCUMENTED_LIMITS:
        assert (status, note) == DOCUMENTED_LIMITS[case]
    else:
        assert status == "ok", note


def test_the_cases_catch_offloaders_that_have_the_faults(tmp_path: Path) -> None:
    table = run_cases(tmp_path / "out.json", list(TELLING), "--peer", ",".join(MUTANTS))
    uncaught = [m for m in MUTANTS if all(table[case][m][0] == "ok" for case in TELLING)]
    assert not uncaught


def test_torch_func_is_refused_by_pytorch_and_works_where_torchlms_is_disabled() -> None:
    values = torch.linspace(-1, 1, 5)

    def slopes() -> torch.Tensor:
        return torch.func.vmap(torch.func.grad(torch.sin))(values)

    with torchlms.offload(budget="min", min_offload_bytes=0, policy="swap"):
        with pytest.raises(RuntimeError, match="saved tensor hooks"):
            slopes()
        with torchlms.disabled():
            inside = slopes()
    assert torch.equal(inside, slopes())
