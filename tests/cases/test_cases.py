# SPDX-License-Identifier: BSD-3-Clause
"""Public fault reports run under torchlms, and under offloaders that have those faults."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

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
PEERS = ("torchlms", "recompute", "auto", "half", "roomy")
"""Those that are torchlms: with the smallest budget under the policies swap, recompute and auto, with
a budget half way up to what plain PyTorch holds, and with one that needs no moving."""
TELLING = ("C03", "C05", "C19", "C29", "C31")
Cell = tuple[str, str, float, dict[str, Any]]
"""Status, note, seconds, and what moved."""

NOTHING_MOVES = {
    "C07": "saves its input alone, which the program holds",
    "C11": "a tensor subclass is kept whole",
    "C13": "sparse tensors are kept whole, and what else is saved is the program's",
    "C15": "meta and fake tensors have no bytes",
    "C39": "a documented limit: its status is not ok",
    "C41": "a documented limit: its status is not ok",
    "C45": "trains nothing",
    "C49": "a scope inside a compiled function does nothing",
    "C51": "distributed tensors are kept whole",
}
NOTHING_IS_RECOMPUTED = NOTHING_MOVES | {
    "C01": "the noise of a random op, and inputs that the program holds",
    "C03": "raises as plain PyTorch does before a step has ended",
    "C09": "its one op is the first by which two programs that take turns are told apart",
    "C17": "no backward follows, so no step is planned",
    "C35": "no backward follows, so no step is planned",
}


def run_cases(path: Path, ids: list[str], *options: str) -> dict[str, dict[str, Cell]]:
    """What became of each case and peer."""
    command = [sys.executable, "cases.py", "--only", ",".join(ids), "--json", str(path), *options]
    process = subprocess.run(command, cwd=FOLDER, capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stderr
    return json.loads(path.read_text())


@pytest.fixture(scope="module")
def results(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, dict[str, Cell]]:
    """Of the cases that were selected, each run in a process of its own, two at a time."""
    selected = [getattr(item, "callspec", None) for item in request.session.items]
    ids = sorted({spec.params["case"] for spec in selected if spec and "case" in spec.params})
    folder = tmp_path_factory.mktemp("cases")
    with ThreadPoolExecutor(2) as pool:
        tables = pool.map(
            lambda peers: run_cases(folder / peers, ids or IDS, "--peer", peers),
            ("torchlms,recompute", "auto,half,roomy"),
        )
        first, second = tables
    return {case: first[case] | second[case] for case in first}


@pytest.mark.parametrize("peer", PEERS)
@pytest.mark.parametrize("case", IDS)
def test_torchlms_has_none_of_the_reported_faults(
    case: str, peer: str, results: dict[str, dict[str, Cell]]
) -> None:
    status, note, _, _ = results[case][peer]
    if case in DOCUMENTED_LIMITS:
        assert (status, note) == DOCUMENTED_LIMITS[case]
    else:
        assert status == "ok", note


def moving(results: dict[str, dict[str, Cell]], peer: str, *names: str) -> set[str]:
    return {case for case in results if any(results[case][peer][3].get(name) for name in names)}


@pytest.mark.parametrize("peer", ["torchlms", "recompute", "auto"])
def test_tensors_move_in_all_cases_but_those_that_have_none_to_move(
    peer: str, results: dict[str, dict[str, Cell]]
) -> None:
    moved = moving(results, peer, "disk_written_total_bytes", "recomputed_bytes")
    assert set(results) - moved == set(results) & set(NOTHING_MOVES)


def test_tensors_are_recomputed_in_all_cases_but_those_that_have_none_to_recompute(
    results: dict[str, dict[str, Cell]],
) -> None:
    recomputed = moving(results, "recompute", "recomputed_bytes")
    assert set(results) - recomputed == set(results) & set(NOTHING_IS_RECOMPUTED)


def test_nothing_moves_where_the_budget_is_large(results: dict[str, dict[str, Cell]]) -> None:
    assert not moving(results, "roomy", "swapped_bytes", "recomputed_bytes")


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
