# SPDX-License-Identifier: BSD-3-Clause
"""Plans and traces as files: round trips, and damage told with what and where."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import torchlms
from torchlms import plan_file
from torchlms.plan_file import PlanFile, TraceFile

SMALLEST = {"budget": "min", "min_offload_bytes": 0, "policy": "swap"}


def train(lms: torchlms.offload, steps: int = 2) -> list[torch.Tensor]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(32, 128), nn.ReLU(), nn.Linear(128, 8))
    for _ in range(steps):
        with lms:
            loss = model(torch.ones(64, 32)).square().mean()
        loss.backward()
    return [parameter.grad for parameter in model.parameters()]


@pytest.fixture(scope="module")
def plan() -> PlanFile:
    lms = torchlms.offload(**SMALLEST)
    train(lms)
    return lms.plan()


@pytest.fixture
def path(plan: PlanFile, tmp_path: Path) -> Path:
    plan.save(tmp_path / "plan.json")
    return tmp_path / "plan.json"


def test_a_plan_comes_back_as_it_was_saved(plan: PlanFile, path: Path) -> None:
    loaded = PlanFile.load(path)
    assert loaded == plan
    assert hash(loaded) == hash(plan)
    assert loaded.to_dict() == plan.to_dict()
    assert loaded.plan["actions"]


def test_a_trace_comes_back_as_it_was_saved(tmp_path: Path) -> None:
    lms = torchlms.offload(**SMALLEST)
    train(lms)
    lms.trace().save(tmp_path / "trace.json")
    assert TraceFile.load(tmp_path / "trace.json") == lms.trace()


def test_saving_leaves_nothing_but_the_file_and_replaces_an_older_one(
    plan: PlanFile, path: Path
) -> None:
    path.write_text("old")
    plan.save(path)
    assert os.listdir(path.parent) == ["plan.json"]
    assert PlanFile.load(path) == plan


def test_a_failed_save_leaves_the_older_file(
    plan: PlanFile, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = path.read_bytes()

    def fail(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(plan_file.os, "fsync", fail)
    with pytest.raises(OSError, match="No space left"):
        plan.save(path)
    assert path.read_bytes() == before
    assert os.listdir(path.parent) == ["plan.json"]


def test_a_loaded_plan_is_followed_from_the_first_step(path: Path) -> None:
    expected = train(torchlms.offload(policy="off"))
    lms = torchlms.offload(plan=path, **SMALLEST, link_limit="46GB/s")
    got = train(lms, steps=2)
    assert all(torch.equal(a, b) for a, b in zip(expected, got, strict=True))
    assert lms.report().to_dict()["state"] == "executing"
    assert lms.report().to_dict()["swapped_bytes"] > 0


def test_the_budget_of_a_plan_is_used_where_none_is_given(path: Path) -> None:
    edited = json.loads(path.read_text())
    edited["plan"]["budget_bytes"] = 12345678
    path.write_text(json.dumps(edited))
    resolved = torchlms.settings.resolve(torchlms.Config(plan=path))[0]
    assert resolved.budget_bytes == 12345678
    resolved = torchlms.settings.resolve(torchlms.Config(plan=path, budget="1GB"))[0]
    assert resolved.budget_bytes == 10**9


def test_a_changed_file_is_read_again(path: Path) -> None:
    first = torchlms.settings.load_plan(str(path))
    assert torchlms.settings.load_plan(str(path)) is first
    edited = json.loads(path.read_text())
    edited["plan"]["budget_bytes"] = 123456789012
    path.write_text(json.dumps(edited))
    assert torchlms.settings.load_plan(str(path)).budget_bytes == 123456789012


Damage = Callable[[dict[str, Any]], Any]


@pytest.mark.parametrize(
    ("damage", "what"),
    [
        (lambda d: d.update(format="torchlms.trace"), "format is 'torchlms.trace'"),
        (lambda d: d.update(version=99), "version is 99"),
        (lambda d: d.pop("version"), "'version' is missing"),
        (lambda d: d.pop("plan"), "'plan' is missing"),
        (lambda d: d.update(trace=[]), "'trace' should be a dict, found a list"),
        (lambda d: d["trace"].update(version=2), "trace: version is 2"),
        (lambda d: d["trace"].pop("events"), "trace: 'events' is missing"),
        (lambda d: d["plan"].update(actions=7), "plan: 'actions' should be a list, found a int"),
        (lambda d: d["plan"]["actions"].pop(), "plan: .* actions for the .* storages"),
        (lambda d: d["plan"].update(swap_in_order=[-1]), r"plan: swap_in_order\[0\] is -1"),
        (lambda d: d["plan"].update(swap_in_order=["x"]), r"plan: swap_in_order\[0\] is 'x'"),
        (lambda d: d["plan"].update(budget_bytes=-5), "plan: budget_bytes is -5"),
    ],
)
def test_damage_is_told_with_what_and_where(path: Path, damage: Damage, what: str) -> None:
    document = json.loads(path.read_text())
    damage(document)
    path.write_text(json.dumps(document))
    with pytest.raises(ValueError, match=f"plan.json: {what}"):
        PlanFile.load(path)
    with pytest.raises(ValueError, match=f"plan.json: {what}"):
        torchlms.offload(plan=path)


@pytest.mark.parametrize("keep", [0, 1, 100, -1])
def test_a_file_cut_short_is_told_with_the_position(path: Path, keep: int) -> None:
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(ValueError, match=r"plan.json: not valid JSON: .*char \d+"):
        PlanFile.load(path)


@pytest.mark.parametrize(
    ("content", "what"),
    [
        (b"\xff\xfe{}", "not UTF-8"),
        (b"[]", "expected a JSON object, found a list"),
        (b'{"format": NaN}', "NaN"),
        (b"[" * 100_000, "not valid JSON"),
    ],
)
def test_a_file_that_is_no_plan_is_told_as_such(path: Path, content: bytes, what: str) -> None:
    path.write_bytes(content)
    with pytest.raises(ValueError, match=f"plan.json: .*{what}"):
        PlanFile.load(path)


def test_a_file_too_large_is_not_read(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan_file, "MAX_FILE_BYTES", 10)
    with pytest.raises(ValueError, match="at most 10 are read"):
        PlanFile.load(path)


def test_a_missing_file_is_an_os_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="nowhere"):
        torchlms.offload(plan=tmp_path / "nowhere.json")
