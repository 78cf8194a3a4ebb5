# SPDX-License-Identifier: BSD-3-Clause
"""offload, disabled, keep, step_boundary, trace and report as users call them."""

from __future__ import annotations

import errno
import gc
import os
import pickle
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import torchlms
from torchlms import sessions

# An own link limit gives a test an own session: it is far above what any disk reaches.
SMALLEST = {"budget": "min", "min_offload_bytes": 0, "policy": "swap"}


_generator = threading.Lock()  # the default generator is one for all threads


def make_model() -> nn.Module:
    with _generator:
        torch.manual_seed(0)
        layers = [nn.Linear(32, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 64), nn.GELU()]
        return nn.Sequential(*layers, nn.Linear(64, 8))


def gradients(run: Callable[[nn.Module, Tensor], Tensor], steps: int = 3) -> list[Tensor]:
    """Gradients and buffers after `steps` accumulated passes of `run`, which returns a loss."""
    model = make_model()
    for step in range(steps):
        inputs = torch.randn(16, 32, generator=torch.Generator().manual_seed(step))
        run(model, inputs).backward()
    return [parameter.grad for parameter in model.parameters()] + list(model.buffers())


def plain(model: nn.Module, inputs: Tensor) -> Tensor:
    return model(inputs).square().mean()


def assert_equal(left: list[Tensor], right: list[Tensor]) -> None:
    assert len(left) == len(right)
    assert all(torch.equal(a, b) for a, b in zip(left, right, strict=True))


def test_gradients_are_bit_identical_round_the_forward_pass() -> None:
    lms = torchlms.offload(**SMALLEST)

    def run(model: nn.Module, inputs: Tensor) -> Tensor:
        with lms:
            return plain(model, inputs)

    assert_equal(gradients(run), gradients(plain))
    assert lms.report().to_dict()["swapped_bytes"] > 0


def test_backward_may_run_inside_the_context() -> None:
    lms = torchlms.offload(**SMALLEST)
    model, twin = make_model(), make_model()
    inputs = torch.randn(16, 32)
    for _ in range(2):
        with lms:
            plain(model, inputs).backward()
        plain(twin, inputs).backward()
    assert_equal([p.grad for p in model.parameters()], [p.grad for p in twin.parameters()])


def test_a_decorated_function_runs_under_offload() -> None:
    lms = torchlms.offload(**SMALLEST)
    decorated = lms(plain)
    assert decorated.__name__ == "plain"
    assert_equal(gradients(decorated), gradients(plain))
    assert lms.report().to_dict()["swapped_bytes"] > 0


def test_a_generator_function_cannot_be_decorated() -> None:
    with pytest.raises(TypeError, match="batches"):

        @torchlms.offload(**SMALLEST)
        def batches() -> Iterator[int]:
            yield 1


def test_an_offload_made_in_every_iteration_continues_with_the_same_plan() -> None:
    def run(model: nn.Module, inputs: Tensor) -> Tensor:
        with torchlms.offload(**SMALLEST, link_limit="43GB/s"):
            return plain(model, inputs)

    assert_equal(gradients(run, steps=4), gradients(plain, steps=4))
    report = torchlms.offload(**SMALLEST, link_limit="43GB/s").report().to_dict()
    assert report["step"] >= 3
    assert report["state"] == "executing"


def test_one_object_may_be_entered_while_it_is_open() -> None:
    lms = torchlms.offload(**SMALLEST)

    def run(model: nn.Module, inputs: Tensor) -> Tensor:
        with lms:
            with lms:
                hidden = model[:3](inputs)
            return model[3:](hidden).square().mean()

    assert_equal(gradients(run), gradients(plain))


def test_equal_settings_join_the_open_scope_and_others_are_refused_quoting_both() -> None:
    inner = torchlms.offload(budget="1GB", policy="swap")
    outer = torchlms.offload(**SMALLEST)
    with (
        outer,
        torchlms.offload(**SMALLEST),
        pytest.raises(ValueError, match="budget=min") as error,
    ):
        inner.__enter__()
    assert "budget=1000000000 bytes" in str(error.value)
    assert not outer.session().is_busy()


def test_an_exception_in_the_forward_pass_leaves_nothing_behind() -> None:
    lms = torchlms.offload(**SMALLEST)
    model = make_model()
    with pytest.raises(KeyError), lms:
        hidden = model(torch.randn(16, 32))
        raise KeyError
    del hidden
    gc.collect()
    assert not lms.session().is_busy()
    assert_equal(gradients(lms(plain)), gradients(plain))


def test_an_object_serves_several_threads_at_once() -> None:
    lms, results = torchlms.offload(**SMALLEST), {}
    threads = [
        threading.Thread(target=lambda i=i: results.update({i: gradients(lms(plain))}))
        for i in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for i in range(3):
        assert_equal(results[i], gradients(plain))


def test_leaving_without_having_entered_is_ignored() -> None:
    lms = torchlms.offload(**SMALLEST)
    lms.__exit__(None, None, None)
    with lms:
        assert lms.session().is_busy()
    assert not lms.session().is_busy()


def test_the_kill_switch_leaves_only_counting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHLMS_POLICY", "off")
    lms = torchlms.offload(budget="min", min_offload_bytes=0)
    assert_equal(gradients(lms(plain)), gradients(plain))
    report = lms.report().to_dict()
    assert report["state"] == "off"
    assert report["swapped_bytes"] == 0
    assert report["peak_bytes"] > 0


def test_without_gradients_entering_does_nothing() -> None:
    lms = torchlms.offload(**SMALLEST)
    gradients(lms(plain))
    before = lms.report().to_dict()
    model = make_model()
    for mode in (torch.no_grad, torch.inference_mode):
        with mode(), lms:
            model(torch.randn(16, 32))
            assert not lms.session().is_busy()
    assert lms.report().to_dict()["step"] == before["step"]
    assert lms.report().to_dict()["state"] == before["state"]


def test_fake_tensors_pass_through() -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    lms = torchlms.offload(**SMALLEST)
    with FakeTensorMode():
        model = make_model()
        with lms:
            loss = plain(model, torch.randn(16, 32))
            assert not lms.session().is_busy()
        loss.backward()
    assert model[0].weight.grad.shape == (64, 32)


@pytest.mark.parametrize("breaks", [False, True])
def test_a_compiled_function_that_enters_the_context_is_exact(breaks: bool) -> None:
    lms = torchlms.offload(**SMALLEST)

    def run(model: nn.Module, inputs: Tensor) -> Tensor:
        with lms, torchlms.disabled():
            hidden = model(inputs)
            if breaks:
                torch._dynamo.graph_break()
            return torchlms.keep(hidden).square().mean()

    torch._dynamo.reset()
    assert_equal(gradients(torch.compile(run, backend="aot_eager")), gradients(plain))
    assert not lms.session().is_busy()


def test_a_compiled_model_called_inside_the_context_is_exact() -> None:
    torch._dynamo.reset()
    compiled = torch.compile(plain, backend="aot_eager")
    assert_equal(gradients(torchlms.offload(**SMALLEST)(compiled)), gradients(plain))


def test_a_disabled_region_moves_nothing() -> None:
    lms = torchlms.offload(**SMALLEST, link_limit="41GB/s")
    decorated = lms(torchlms.disabled()(plain))
    assert_equal(gradients(decorated, steps=2), gradients(plain, steps=2))
    assert lms.report().to_dict()["link"]["out"]["bytes"] == 0


def test_keep_returns_the_tensor_and_its_storage_stays() -> None:
    lms = torchlms.offload(**SMALLEST)
    weight = torch.randn(512, 512, requires_grad=True)

    def swapped(keeps: bool) -> int:
        for _ in range(2):
            with lms:
                hidden = weight.exp()  # saves its result
                if keeps:
                    assert torchlms.keep(hidden) is hidden
                    assert hidden._do_not_offload is True
                total = hidden.sum()
                del hidden
                loss = total.exp() * total
            loss.backward()
        return lms.report().to_dict()["swapped_bytes"]

    assert swapped(keeps=False) >= weight.nbytes
    assert swapped(keeps=True) < weight.nbytes


def test_keep_takes_tensors_only() -> None:
    with pytest.raises(TypeError, match="list"):
        torchlms.keep([torch.ones(1)])


def test_trace_and_plan_exist_once_a_step_has_run() -> None:
    lms = torchlms.offload(**SMALLEST, link_limit="42GB/s")
    with pytest.raises(RuntimeError, match="no step"):
        lms.trace()
    with pytest.raises(RuntimeError, match="no plan"):
        lms.plan()
    gradients(lms(plain), steps=2)
    assert lms.trace().to_dict()["ops"]
    assert torchlms.trace() == lms.trace()
    plan = lms.plan()
    assert len(plan.plan["actions"]) == len(plan.trace["storages"])


def test_the_report_without_a_model_is_that_of_the_session_used_last() -> None:
    first = torchlms.offload(**SMALLEST)
    second = torchlms.offload(budget="1GB")
    gradients(first(plain))
    gradients(second(plain))
    assert torchlms.report().to_dict()["budget_bytes"] == 10**9
    gradients(first(plain))
    assert torchlms.report().to_dict()["budget_bytes"] != 10**9


def test_step_boundary_joins_the_passes_before_it() -> None:
    lms = torchlms.offload(**SMALLEST, link_limit="45GB/s")
    gradients(lms(plain), steps=1)
    torchlms.step_boundary()
    before = lms.report().to_dict()["step"]
    gradients(lms(plain), steps=3)
    torchlms.step_boundary()
    assert lms.report().to_dict()["step"] == before + 1


def test_a_missing_folder_is_an_os_error_at_construction_that_names_it(tmp_path: Path) -> None:
    missing = tmp_path / "missing"
    with pytest.raises(torchlms.DiskError, match="missing") as error:
        torchlms.offload(disk_path=missing)
    assert error.value.errno == errno.ENOENT
    assert isinstance(error.value, OSError)


def test_a_disk_error_takes_its_errno_from_a_text() -> None:
    error = torchlms.DiskError("[Errno 28] No space left on /scratch: 5 bytes needed")
    assert error.errno == errno.ENOSPC
    assert error.strerror == "No space left on /scratch: 5 bytes needed"
    assert str(error) == "[Errno 28] No space left on /scratch: 5 bytes needed"
    assert pickle.loads(pickle.dumps(error)).errno == errno.ENOSPC
    assert torchlms.DiskError("no number").errno is None


def test_a_budget_error_is_an_out_of_memory_error() -> None:
    assert issubclass(torchlms.BudgetError, torch.OutOfMemoryError)


def test_a_copy_or_pickle_of_an_offload_has_the_same_settings() -> None:
    lms = torchlms.offload(**SMALLEST)
    assert pickle.loads(pickle.dumps(lms)).config == lms.config


def test_sessions_that_are_busy_are_never_forgotten() -> None:
    lms = torchlms.offload(**SMALLEST)
    with lms:
        loss = plain(make_model(), torch.randn(16, 32))

    def other(i: int) -> torchlms.offload:
        return torchlms.offload(budget="1GB", disk_budget=(1 << 20) + i)

    others = [other(i) for i in range(sessions.MAX_SESSIONS + 2)]
    assert torchlms.offload(**SMALLEST).session() is lms.session()
    assert other(sessions.MAX_SESSIONS).session() is others[sessions.MAX_SESSIONS].session()
    assert other(0).session() is not others[0].session()
    loss.backward()


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_passes_through() -> None:
    lms = torchlms.offload(**SMALLEST)
    child = os.fork()
    if child == 0:
        try:
            with lms:
                torch.ones(4, requires_grad=True).exp()
            passes = sessions.is_forked_child() and not lms.session().is_busy()
        finally:
            os._exit(0 if passes else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert not sessions.is_forked_child()
