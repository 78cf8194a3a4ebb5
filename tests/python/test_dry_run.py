# SPDX-License-Identifier: BSD-3-Clause
"""Traces of steps that never ran, compared with those of steps that did."""

from __future__ import annotations

import gc
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode
from torch.utils.checkpoint import checkpoint

import torchlms
from models import GPT, TextLSTM, UNet
from torchlms.cli import main
from torchlms.plan_file import TraceFile
from torchlms.planning import Costs
from training import has_hooks, held_bytes, scopes, seeded, settle

RATES = {"flops_per_s": 1e11, "bytes_per_s": 1e10}


@pytest.fixture(autouse=True)
def _all_sizes_are_managed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHLMS_MIN_OFFLOAD_BYTES", "0")


def recorded(fn: Callable[..., Tensor], *args: Any) -> TraceFile:
    """The trace of a real step, in memory without end."""
    settle()
    lms, scope = scopes("8GiB")
    with scope():
        loss = fn(*args)
    loss.backward()
    return lms.trace()


def peak_of(trace: TraceFile) -> int:
    """Unlimited peak, without what was there at entry."""
    values = trace.plan("900TB").to_dict()
    return values["unlimited_peak_bytes"] - trace.to_dict()["entry_bytes"]


def saved_of(trace: TraceFile) -> int:
    return sum(s["size_bytes"] for s in trace.to_dict()["storages"] if s["num_packs"] > 0)


def resnet() -> tuple[nn.Module, tuple[Tensor, ...]]:
    torchvision = pytest.importorskip("torchvision")
    return torchvision.models.resnet18(), (seeded(4, 3, 96, 96),)


MODELS: dict[str, Callable[[], tuple[nn.Module, tuple[Tensor, ...]]]] = {
    "resnet18": resnet,
    "gpt": lambda: (GPT(3, 64), (torch.randint(0, 64, (8, 32)),)),
    "unet": lambda: (UNet(), (seeded(2, 3, 64, 64),)),
    "lstm": lambda: (TextLSTM(), (seeded(40, 16, 16),)),
}


@pytest.mark.parametrize("name", ["resnet18", "gpt", "lstm"])
def test_peak_and_saved_bytes_are_near_those_of_a_real_step(name: str) -> None:
    model, inputs = MODELS[name]()

    def step(*args: Tensor) -> Tensor:
        return model(*args).sum()

    # oneDNN's LSTM saves a workspace, whose size nothing but oneDNN knows.
    with torch.backends.mkldnn.flags(enabled=name != "lstm"):
        dry = torchlms.dry_run(step, *inputs, **RATES)
        real = recorded(step, *inputs)
    assert saved_of(dry) == pytest.approx(saved_of(real), rel=0.05)
    assert peak_of(dry) == pytest.approx(peak_of(real), rel=0.05)


@pytest.mark.parametrize("name", ["gpt", "unet"])
def test_ops_and_lives_are_those_of_a_real_step(name: str) -> None:
    model, inputs = MODELS[name]()
    dry, real = (
        make(lambda x: model(x).sum(), *inputs).to_dict() for make in (torchlms.dry_run, recorded)
    )

    def ops(trace: dict[str, Any]) -> list[tuple[str, bool, int, int]]:
        # A conversion that has nothing to convert never gets below autograd.
        return [
            (op["name"], op["is_replayable"], len(op["outputs"]), len(op["written"]))
            for op in trace["ops"]
            if not op["name"].startswith("aten::to.")
        ]

    assert ops(dry) == ops(real)
    for kind in ("pack", "dead", "unpack", "free"):
        counts = [sum(event["kind"] == kind for event in t["events"]) for t in (dry, real)]
        assert counts[0] == counts[1]


def test_a_dry_run_reads_and_writes_nothing_and_leaves_nothing() -> None:
    model = UNet()
    inputs = seeded(2, 3, 32, 32)
    model(inputs).sum().backward()
    before = [tensor.clone() for tensor in [*model.state_dict().values(), inputs]]
    gradients = [parameter.grad for parameter in model.parameters()]
    values = [gradient.clone() for gradient in gradients]
    state = torch.get_rng_state()
    torchlms.dry_run(model, inputs, **RATES)
    after = [*model.state_dict().values(), inputs]
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))
    assert all(p.grad is g for p, g in zip(model.parameters(), gradients, strict=True))
    assert all(torch.equal(a, b) for a, b in zip(values, gradients, strict=True))
    assert torch.equal(torch.get_rng_state(), state)
    assert not has_hooks()


def test_a_step_that_fits_nowhere_can_be_planned(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with torch.device("meta"):
        model = nn.Sequential(
            *(nn.Sequential(nn.Linear(1 << 15, 1 << 15), nn.Tanh()) for _ in range(12))
        )
        inputs = torch.empty(1 << 16, 1 << 15)
    before = held_bytes()
    trace = torchlms.dry_run(model, inputs, **RATES)
    assert held_bytes() - before < 1 << 20
    assert saved_of(trace) > 12 << 33
    trace.save(tmp_path / "trace.json")
    arguments = ["plan", str(tmp_path / "trace.json"), "--costs", "out=1GB/s,in=1GB/s", "--json"]
    assert main([*arguments, "--budget", "150GiB"]) == 0
    values = json.loads(capsys.readouterr().out)
    assert values["predicted_peak_bytes"] <= 150 << 30 < values["unlimited_peak_bytes"]
    assert values["swapped_bytes"] + values["recomputed_bytes"] > 10 << 30


def test_parameters_and_their_gradients_are_older_and_kept() -> None:
    model = nn.Linear(64, 64)
    (inputs,) = (seeded(32, 64),)
    num_bytes = sum(parameter.nbytes for parameter in model.parameters())
    first = torchlms.dry_run(model, inputs, **RATES).to_dict()
    assert first["entry_bytes"] == num_bytes + inputs.nbytes
    model(inputs).sum().backward()
    second = torchlms.dry_run(model, inputs, **RATES).to_dict()
    assert second["entry_bytes"] == 2 * num_bytes + inputs.nbytes
    weight = next(s for s in second["storages"] if s["size_bytes"] == model.weight.nbytes)
    assert weight["is_root"]
    assert weight["outlives_step"]
    assert not weight["is_managed"]


def test_parameters_in_a_closure_are_older_too() -> None:
    weight = seeded(64, 64, requires_grad=True)
    trace = torchlms.dry_run(lambda x: (x @ weight).relu(), seeded(8, 64), **RATES).to_dict()
    assert trace["entry_bytes"] == weight.nbytes + 8 * 64 * 4
    assert weight.grad is None


def test_times_are_those_of_the_roofline() -> None:
    weight = seeded(256, 256, requires_grad=True)
    trace = torchlms.dry_run(
        lambda x: (x @ weight).relu(), seeded(128, 256), flops_per_s=1e6, bytes_per_s=1e6
    ).to_dict()
    times = {op["name"]: op["duration_us"] for op in trace["ops"]}
    assert times["aten::mm"] == pytest.approx(2 * 128 * 256 * 256)
    assert times["aten::relu"] == pytest.approx(2 * 128 * 256 * 4)
    assert trace["ops"][-1]["name"] == "aten::sum"
    assert trace["events"][-1]["time_us"] > sum(times.values())  # backward takes time too


def test_views_and_empty_tensors_take_no_time() -> None:
    def step(x: Tensor) -> Tensor:
        return F.dropout(x.t().t()[:4].view(-1), 0.5)

    trace = torchlms.dry_run(step, seeded(8, 16, requires_grad=True), **RATES).to_dict()
    times = {op["name"]: op["duration_us"] for op in trace["ops"]}
    free = ("aten::t", "aten::slice.Tensor", "aten::view", "aten::empty_like")
    assert [times[name] for name in free] == [0.0] * 4
    assert times["aten::bernoulli_.float"] > 0


def test_without_rates_this_machine_is_measured() -> None:
    trace = torchlms.dry_run(nn.Linear(64, 64), seeded(32, 64)).to_dict()
    (time_us,) = (op["duration_us"] for op in trace["ops"] if op["name"] == "aten::addmm")
    flops = 2 * 32 * 64 * 64
    assert flops / 1e14 < time_us / 1e6 < flops / 1e6


def test_what_the_program_drops_is_dead_and_what_it_holds_is_not() -> None:
    held = []

    def step(x: Tensor) -> Tensor:
        first = x.sin()  # saved by the second sin
        held.append(first)
        return first.sin().sin()

    trace = torchlms.dry_run(step, seeded(64, 64, requires_grad=True), **RATES).to_dict()
    managed = [s for s in trace["storages"] if s["is_managed"]]
    assert [storage["dead"] >= 0 for storage in managed] == [False, True]
    assert [storage["outlives_step"] for storage in managed] == [True, False]
    assert all(
        s["first_pack"] < s["first_unpack"] <= s["last_unpack"] < s["freed"] for s in managed
    )


def test_passes_within_the_forward_pass_are_no_second_step() -> None:
    layer = nn.Sequential(nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 32))
    inputs = seeded(16, 32, requires_grad=True)

    def step(x: Tensor) -> Tensor:
        return checkpoint(layer, x, use_reentrant=False).sin()

    trace = torchlms.dry_run(step, inputs, **RATES)
    names = [op["name"] for op in trace.to_dict()["ops"]]
    assert names.count("aten::tanh") == 1
    assert trace.plan("min", costs=Costs(1e9, 1e9)).fits


def test_what_is_written_without_gradients_is_not_rebuilt_from() -> None:
    buffer = torch.zeros(8, 8)

    def step(x: Tensor) -> Tensor:
        with torch.no_grad():
            buffer.add_(1)
        return (x * buffer).sin()

    trace = torchlms.dry_run(step, seeded(8, 8, requires_grad=True), **RATES).to_dict()
    opaque = [s for s in trace["storages"] if s["is_opaque"]]
    assert len(opaque) == 1
    assert opaque[0]["is_root"]
    assert torch.equal(buffer, torch.zeros(8, 8))


def test_a_marked_tensor_is_kept() -> None:
    def step(x: Tensor, *, marks: bool) -> Tensor:
        hidden = x.sin()
        hidden._do_not_offload = marks
        return hidden.sin()

    for marks in (False, True):
        inputs = seeded(8, 8, requires_grad=True)
        trace = torchlms.dry_run(step, inputs, marks=marks, **RATES).to_dict()
        assert any(s["is_managed"] for s in trace["storages"]) != marks


def test_small_storages_are_not_managed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHLMS_MIN_OFFLOAD_BYTES", "1024")

    def step(x: Tensor) -> Tensor:
        return torch.cat([x.sin().sin(), x[:1].sin().sin()]).sum()

    trace = torchlms.dry_run(step, seeded(16, 16, requires_grad=True), **RATES).to_dict()
    sizes = {s["size_bytes"] for s in trace["storages"] if s["is_managed"]}
    assert sizes == {1024}


def test_changes_in_place_are_seen() -> None:
    trace = torchlms.dry_run(lambda x: F.relu_(x * 2), seeded(8, 8, requires_grad=True), **RATES)
    values = [v for v in trace.to_dict()["values"] if v["version"] == 0 and not v["is_final"]]
    assert len(values) == 1
    (relu,) = (op for op in trace.to_dict()["ops"] if op["name"] == "aten::relu_")
    assert trace.to_dict()["values"][relu["written"][0]]["version"] == 1


def test_random_ops_are_not_replayable_and_others_are() -> None:
    def step(x: Tensor) -> Tensor:
        return F.dropout(x.sin(), 0.5).cos()

    trace = torchlms.dry_run(step, seeded(8, 8, requires_grad=True), **RATES).to_dict()
    replayable = {op["name"]: op["is_replayable"] for op in trace["ops"]}
    assert replayable["aten::sin"]
    assert replayable["aten::cos"]
    assert not replayable["aten::bernoulli_.float"]


def test_a_tensor_that_is_no_loss_is_summed() -> None:
    trace = torchlms.dry_run(nn.Linear(8, 8), seeded(4, 8), **RATES).to_dict()
    assert trace["ops"][-1]["name"] == "aten::sum"


def test_keyword_arguments_are_handed_on() -> None:
    def step(x: Tensor, *, power: int) -> Tensor:
        return x.pow(power)

    trace = torchlms.dry_run(step, seeded(4, 8, requires_grad=True), power=3, **RATES).to_dict()
    assert any(op["name"].startswith("aten::pow") for op in trace["ops"])


def test_a_step_of_fake_tensors_stays_in_their_mode() -> None:
    with FakeTensorMode():
        model = nn.Linear(512, 512)
        inputs = torch.empty(64, 512)
    trace = torchlms.dry_run(model, inputs, **RATES).to_dict()
    assert trace["entry_bytes"] == (512 * 512 + 512 + 64 * 512) * 4


def test_control_flow_that_depends_on_data_raises_what_pytorch_raises() -> None:
    def step(x: Tensor) -> Tensor:
        return x * 2 if x.sum() > 0 else x

    with pytest.raises(DataDependentOutputException):
        torchlms.dry_run(step, seeded(4, requires_grad=True), **RATES)
    assert not has_hooks()
    assert torch.ones(2).sum().item() == 2  # no mode is left either


def test_a_step_without_gradients_raises_what_pytorch_raises() -> None:
    with pytest.raises(RuntimeError, match="does not require grad"):
        torchlms.dry_run(lambda x: x * 2, seeded(4), **RATES)


def test_a_result_that_is_no_tensor_is_told_by_its_type() -> None:
    with pytest.raises(TypeError, match="got dict"):
        torchlms.dry_run(lambda x: {"loss": x}, seeded(4, requires_grad=True), **RATES)


@pytest.mark.parametrize("name", RATES)
@pytest.mark.parametrize("value", [0, -1.0, float("nan")])
def test_a_rate_that_is_none_is_quoted(name: str, value: float) -> None:
    with pytest.raises(ValueError, match=f"{name}={value!r}"):
        torchlms.dry_run(lambda x: x * 2, seeded(4), **(RATES | {name: value}))


def test_fake_tensors_are_freed_with_the_run() -> None:
    torchlms.dry_run(nn.Linear(8, 8), seeded(4, 8), **RATES)
    gc.collect()
    assert not [o for o in gc.get_objects() if type(o).__name__ == "FakeStep"]
