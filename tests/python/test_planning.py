# SPDX-License-Identifier: BSD-3-Clause
"""`torchlms plan`: what a saved trace would do within a budget, and bad input told in a sentence."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import torchlms
from models import ConvStack
from torchlms import _C
from torchlms.cli import DOES_NOT_FIT, main
from torchlms.plan_file import PlanFile, TraceFile
from torchlms.planning import Costs

COSTS = ["--costs", "out=1GB/s,in=2GB/s"]
RATES = Costs(1e9, 2e9)
POLICIES = ("auto", "swap", "recompute", "hybrid")


@pytest.fixture(scope="module")
def lms() -> torchlms.offload:
    lms = torchlms.offload(budget="1GiB", min_offload_bytes=0, disk_budget="777MB")
    model = ConvStack(depth=6)
    for _ in range(2):
        with lms:
            loss = model(torch.ones(4, 3, 64, 64)).square().mean()
        loss.backward()
    return lms


@pytest.fixture(scope="module")
def trace(lms: torchlms.offload) -> TraceFile:
    return lms.trace()


@pytest.fixture
def path(trace: TraceFile, tmp_path: Path) -> str:
    trace.save(tmp_path / "trace.json")
    return str(tmp_path / "trace.json")


@pytest.fixture
def no_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(folder: str) -> None:
        raise AssertionError(f"the disk in {folder} was measured")

    monkeypatch.setattr(_C, "measure_disk", fail)


def summary(trace: TraceFile) -> dict[str, Any]:
    return trace.plan("min", costs=RATES).to_dict()


def budget_at(trace: TraceFile, share: float) -> int:
    """Between the smallest that works (0) and all that plain PyTorch holds (1)."""
    values = summary(trace)
    floor, most = values["floor_bytes"], values["unlimited_peak_bytes"]
    assert floor < most
    return int(floor + share * (most - floor))


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("share", [0.0, 0.5])
def test_a_plan_keeps_the_budget_and_says_what_it_costs(
    trace: TraceFile, policy: str, share: float
) -> None:
    budget = budget_at(trace, share)
    forecast = trace.plan(budget, policy=policy, costs=RATES)
    values = forecast.to_dict()
    assert forecast.fits
    assert values["policy"] == policy
    assert values["predicted_peak_bytes"] <= values["budget_bytes"] == budget
    moved = values["swapped_bytes"] + values["recomputed_bytes"]
    assert moved > 0
    assert values["kept_bytes"] + moved == values["saved_bytes"]
    assert values["unlimited_step_us"] <= values["lower_bound_us"] <= values["predicted_step_us"]
    ratio = values["predicted_step_us"] / values["lower_bound_us"]
    assert values["gap_percent"] == pytest.approx(100 * (ratio - 1))
    assert (values["predicted_recompute_us"] > 0) == (values["recomputed_bytes"] > 0)
    if policy == "swap":
        assert values["recomputed_bytes"] == 0


def test_a_budget_that_holds_everything_moves_nothing_and_measures_nothing(
    trace: TraceFile, no_disk: None
) -> None:
    values = trace.plan("900TB").to_dict()  # more than this machine has
    assert values["fits"]
    assert values["kept_bytes"] == values["saved_bytes"] > 0
    assert values["predicted_step_us"] == values["unlimited_step_us"]
    assert values["predicted_peak_bytes"] == values["unlimited_peak_bytes"]
    assert values["costs"] is None


def test_below_the_floor_the_op_and_the_smallest_budget_are_told(
    trace: TraceFile, path: str, no_disk: None, capsys: pytest.CaptureFixture[str]
) -> None:
    floor, op = (summary(trace)[name] for name in ("floor_bytes", "floor_op"))
    assert op
    assert main(["plan", path, "--budget", str(floor - 1)]) == DOES_NOT_FIT
    text = capsys.readouterr().out
    assert "does not fit" in text
    assert str(floor) in text
    assert op in text
    assert main(["plan", path, "--budget", str(floor), *COSTS]) == 0


def test_what_does_not_fit_has_no_predictions(trace: TraceFile) -> None:
    values = trace.plan(1000).to_dict()
    assert not values["fits"]
    assert values["budget_bytes"] == 1000
    assert values["predicted_step_us"] is values["swapped_bytes"] is None
    assert values["largest"][0]["action"] is None


def test_the_table_names_the_largest_storages_and_what_made_them(
    trace: TraceFile, path: str, capsys: pytest.CaptureFixture[str]
) -> None:
    budget = budget_at(trace, 0.3)
    assert main(["plan", path, "--budget", str(budget), "--policy", "swap", *COSTS]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "torchlms plan: fits, policy: swap"
    largest = lines[lines.index("largest saved storages:") + 1 :]
    assert any("swap" in line and "aten::" in line for line in largest)
    sizes = [row["size_bytes"] for row in trace.plan(budget, costs=RATES).to_dict()["largest"]]
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[0] == max(
        storage["size_bytes"] for storage in trace.to_dict()["storages"] if storage["is_managed"]
    )


def test_json_is_what_python_gets(
    trace: TraceFile, path: str, capsys: pytest.CaptureFixture[str]
) -> None:
    budget = budget_at(trace, 0.4)
    assert main(["plan", path, "--budget", str(budget), "--json", *COSTS]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed == trace.plan(budget, costs=RATES).to_dict()


def test_a_plan_file_is_read_for_its_trace(
    lms: torchlms.offload, trace: TraceFile, tmp_path: Path
) -> None:
    lms.plan().save(tmp_path / "plan.json")
    loaded = TraceFile.load_any(tmp_path / "plan.json")
    assert loaded.to_dict() == lms.plan().trace
    assert loaded.plan("min", costs=RATES).fits


def test_the_disk_is_measured_where_no_costs_are_given(
    trace: TraceFile, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    folders = []

    def measure(folder: str) -> dict[str, Any]:
        folders.append(folder)
        return {"out_bytes_per_s": 3e8, "in_bytes_per_s": 4e8}

    monkeypatch.setattr(_C, "measure_disk", measure)
    values = trace.plan("min", disk_path=str(tmp_path)).to_dict()
    assert folders == [str(tmp_path)]
    assert values["costs"] == {
        "out_bytes_per_s": 3e8,
        "in_bytes_per_s": 4e8,
        "latency_us": 100.0,
    }
    assert values == trace.plan("min", costs=Costs(3e8, 4e8)).to_dict()


def test_costs_from_a_file_are_taken_where_none_are_given(
    trace: TraceFile, no_disk: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "costs.json").write_text('{"out_bytes_per_s": 2e8, "latency_us": 7, "event_us": 3}')
    monkeypatch.setenv("TORCHLMS_COSTS", str(tmp_path / "costs.json"))
    values = trace.plan("min").to_dict()
    assert values["costs"]["out_bytes_per_s"] == 2e8
    assert values["costs"]["latency_us"] == 7
    num_events = len(trace.to_dict()["events"])
    assert values["unlimited_step_us"] == pytest.approx(3 * num_events, rel=0.1)
    assert trace.plan("min", costs=RATES).to_dict()["costs"]["out_bytes_per_s"] == 1e9
    (tmp_path / "costs.json").write_text("{broken")
    with pytest.raises(ValueError, match=r"costs\.json"):
        trace.plan("min")


def test_a_slower_link_never_makes_the_step_faster(trace: TraceFile) -> None:
    budget = budget_at(trace, 0.2)
    times = [
        trace.plan(budget, policy="swap", costs=Costs(rate, rate)).to_dict()["predicted_step_us"]
        for rate in (1e11, 1e9, 1e7)
    ]
    assert times == sorted(times)
    assert times[0] < times[2]


@pytest.mark.parametrize("policy", ["swap", "recompute"])
def test_the_picture_is_drawn(trace: TraceFile, path: str, policy: str, tmp_path: Path) -> None:
    budget = budget_at(trace, 0.1)
    picture = tmp_path / "plan.png"
    arguments = ["plan", path, "--budget", str(budget), "--policy", policy, *COSTS]
    assert main([*arguments, "--plot", str(picture)]) == 0
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_what_does_not_fit_is_drawn_too(path: str, tmp_path: Path) -> None:
    picture = tmp_path / "plan.svg"
    assert main(["plan", path, "--budget", "1000", "--plot", str(picture)]) == DOES_NOT_FIT
    assert "budget" in picture.read_text()


@pytest.mark.parametrize(
    ("arguments", "quoted"),
    [
        (["--budget", "20 gigs"], "'20 gigs'"),
        (["--budget", "1.5"], "'1.5'"),
        (["--budget", "min", "--policy", "greedy"], "'greedy'"),
        (["--budget", "min", "--policy", "off"], "'off'"),
        (["--budget", "min", "--costs", "fast"], "'fast'"),
        (["--budget", "min", "--costs", "out=1GB/s"], "'out=1GB/s'"),
        (["--budget", "min", "--costs", "out=0GB/s,in=1GB/s"], "'out=0GB/s,in=1GB/s'"),
        (["--budget", "min", "--costs", "out=1GB,in=1GB/s"], "'out=1GB,in=1GB/s'"),
        (["--budget", "min", "--disk-path", "/nowhere"], "/nowhere"),
        (["--budget", "min", *COSTS, "--plot", "/nowhere/plan.png"], "/nowhere/plan.png"),
        (["--budget", "min", *COSTS, "--plot", "plan.word"], "word"),
    ],
)
def test_bad_input_is_one_sentence_on_stderr_that_quotes_it(
    path: str, arguments: list[str], quoted: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", path, *arguments]) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert quoted in captured.err
    assert len(captured.err.splitlines()) == 1


Damage = Callable[[dict[str, Any]], Any]


def edit(path: str, damage: Damage) -> None:
    document = json.loads(Path(path).read_text())
    damage(document)
    Path(path).write_text(json.dumps(document))


@pytest.mark.parametrize(
    ("damage", "what"),
    [
        (lambda d: d.update(version=99), "version is 99"),
        (lambda d: d.update(format="torchlms.other"), "'torchlms.other'"),
        (lambda d: d.pop("values"), "'values' is missing"),
        (lambda d: d.update(forward_end=10**6), "forward_end is 1000000"),
        (lambda d: d["ops"][0].update(inputs=[10**6]), "an op's value is 1000000"),
        (lambda d: d["ops"][0].update(duration_us=-1), "duration_us is -1"),
        (lambda d: d["ops"][0].update(name=7), "name is 7"),
        (lambda d: d["ops"][0].update(signature="xyz"), 'signature is "xyz"'),
        (lambda d: d["values"][0].update(storage=-1), "a value's storage is -1"),
        (lambda d: d["values"][0].update(producer=10**6), "a value's producer is 1000000"),
        (lambda d: d["events"][0].update(subject=10**6), "is 1000000"),
        (lambda d: d["events"][0].update(kind="rest"), 'kind is "rest"'),
        (lambda d: d["events"].pop(), "beyond"),
        (lambda d: d["ops"].pop(), "beyond"),
        (lambda d: d["storages"][0].update(size_bytes=-5), "size_bytes is -5"),
        (lambda d: d["storages"][0].update(size_bytes=1 << 60), f"size_bytes is {1 << 60}"),
        (lambda d: d["storages"][0].update(dead=10**6), "event is 1000000"),
        (lambda d: d["storages"].pop(), "beyond"),
        (lambda d: d["prefix_signatures"].pop(), "signatures"),
    ],
)
def test_a_damaged_trace_is_told_with_what_and_where(
    path: str, damage: Damage, what: str, capsys: pytest.CaptureFixture[str]
) -> None:
    edit(path, damage)
    assert main(["plan", path, "--budget", "min", *COSTS]) == 1
    error = capsys.readouterr().err
    assert what in error
    assert path in error
    assert len(error.splitlines()) == 1


@pytest.mark.parametrize("keep", [0, 100, -1])
def test_a_trace_cut_short_is_told_with_its_path(
    path: str, keep: int, capsys: pytest.CaptureFixture[str]
) -> None:
    Path(path).write_bytes(Path(path).read_bytes()[:keep])
    assert main(["plan", path, "--budget", "min", *COSTS]) == 1
    assert f"{path}: not valid JSON" in capsys.readouterr().err


def test_a_missing_trace_is_told_with_its_path(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "/nowhere/trace.json", "--budget", "min"]) == 1
    assert "/nowhere/trace.json" in capsys.readouterr().err


def test_bad_usage_is_told_by_the_parser(path: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["plan", path])
    assert stop.value.code == 2
    assert "--budget" in capsys.readouterr().err


def _numbers(tree: Any) -> list[tuple[Any, Any]]:
    """Where the numbers of a document lie: containers and keys."""
    items = tree.items() if isinstance(tree, dict) else enumerate(tree)
    places = []
    for key, value in items:
        if isinstance(value, dict | list):
            places += _numbers(value)
        elif isinstance(value, int | float):
            places.append((tree, key))
    return places


@pytest.mark.parametrize("seed", range(8))
def test_whatever_number_is_damaged_the_answer_is_a_forecast_or_an_error(
    trace: TraceFile, seed: int
) -> None:
    rng = random.Random(seed)
    num_planned = 0
    for _ in range(25):
        document = trace.to_dict()
        places = _numbers(document)
        for container, key in rng.sample(places, rng.choice([1, 3, 30])):
            container[key] = rng.choice([-1, 0, 1, 2, 17, 1e300, 1 << 40, True, container[key] + 1])
        try:
            forecast = TraceFile(json.dumps(document), "damaged").plan("40MB", costs=RATES)
        except ValueError as error:
            assert "damaged" in str(error)
        else:
            num_planned += 1
            assert forecast.to_dict()["floor_bytes"] >= 0
    assert num_planned > 0


def test_a_saved_plan_is_followed_by_a_run(
    lms: torchlms.offload, path: str, tmp_path: Path
) -> None:
    trace = TraceFile.load(path)
    budget = budget_at(trace, 0.3)
    saved = tmp_path / "plan.json"
    assert main(["plan", path, "--budget", str(budget), "--save", str(saved), *COSTS]) == 0
    forecast = trace.plan(budget, costs=RATES)
    assert PlanFile.load(saved) == forecast.plan()
    follower = torchlms.offload(plan=str(saved), min_offload_bytes=0)
    model = ConvStack(depth=6)
    for _ in range(2):
        with follower:
            loss = model(torch.ones(4, 3, 64, 64)).square().mean()
        loss.backward()
    report = follower.report().to_dict()
    assert report["budget_bytes"] == budget
    assert report["predicted_step_us"] == forecast.to_dict()["predicted_step_us"]


def test_where_nothing_fits_there_is_no_plan_to_save(path: str, tmp_path: Path) -> None:
    saved = tmp_path / "plan.json"
    assert main(["plan", path, "--budget", "1000", "--save", str(saved)]) == DOES_NOT_FIT
    assert not saved.exists()
    with pytest.raises(ValueError, match="no plan fits"):
        TraceFile.load(path).plan(1000).plan()


def test_the_table_says_where_the_search_began(
    trace: TraceFile, path: str, capsys: pytest.CaptureFixture[str]
) -> None:
    budget = budget_at(trace, 0.3)
    assert main(["plan", path, "--budget", str(budget), "--policy", "swap", *COSTS]) == 0
    assert "swaps by distance" in capsys.readouterr().out
    assert trace.plan("900TB").to_dict()["start"] is None
