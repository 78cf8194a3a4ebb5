# SPDX-License-Identifier: BSD-3-Clause
"""wrap and unwrap: the module stays itself, and so do its copies, pickles and exports."""

from __future__ import annotations

import copy
import gc
import io
import pickle
import threading
import weakref
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import torchlms
from torchlms.wrap import scope_of

SMALLEST = {"budget": "min", "min_offload_bytes": 0, "policy": "swap"}


class Net(nn.Module):
    """Two layers; forward raises what `failure` holds."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Linear(32, 64)
        self.norm = nn.BatchNorm1d(64)
        self.last = nn.Linear(64, 8)

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = torch.relu(self.norm(self.first(inputs)))
        return self.last(hidden)


class FailingNet(Net):
    failure: BaseException | None = None

    def forward(self, inputs: Tensor) -> Tensor:
        result = super().forward(inputs)
        if self.failure is not None:
            raise self.failure
        return result


def batch() -> Tensor:
    return torch.randn(16, 32, generator=torch.Generator().manual_seed(7))


def gradients(model: nn.Module, steps: int = 3) -> list[Tensor]:
    model.zero_grad()
    for _ in range(steps):
        model(batch()).square().mean().backward()
    return [parameter.grad.clone() for parameter in model.parameters()]


def assert_equal(left: list[Tensor], right: list[Tensor]) -> None:
    assert len(left) == len(right)
    assert all(torch.equal(a, b) for a, b in zip(left, right, strict=True))


def num_hooks(model: nn.Module) -> int:
    tables = ("_forward_pre_hooks", "_forward_hooks", "_forward_hooks_always_called")
    return sum(len(getattr(model, table)) for table in tables)


def by_torch_save(model: nn.Module) -> nn.Module:
    buffer = io.BytesIO()
    torch.save(model, buffer)
    buffer.seek(0)
    return torch.load(buffer, weights_only=False)


def by_pickle(model: nn.Module) -> nn.Module:
    return pickle.loads(pickle.dumps(model))


def test_a_wrapped_model_is_the_same_object_with_the_same_names() -> None:
    plain, model = Net(), Net()
    assert torchlms.wrap(model, **SMALLEST) is model
    assert type(model) is Net
    for names in ("named_parameters", "named_buffers", "named_modules"):
        assert [n for n, _ in getattr(model, names)()] == [n for n, _ in getattr(plain, names)()]
    assert list(model.state_dict()) == list(plain.state_dict())
    model.load_state_dict(plain.state_dict())


def test_gradients_of_a_wrapped_model_are_bit_identical_and_its_tensors_are_swapped() -> None:
    model = torchlms.wrap(Net(), **SMALLEST)
    assert_equal(gradients(model), gradients(Net()))
    assert torchlms.report(model).to_dict()["swapped_bytes"] > 0


def test_wrapping_again_replaces_the_settings() -> None:
    model = torchlms.wrap(Net(), budget="1GB")
    hooks = num_hooks(model)
    torchlms.wrap(model, budget="2GB")
    assert num_hooks(model) == hooks
    gradients(model)
    assert torchlms.report(model).to_dict()["budget_bytes"] == 2 * 10**9


def test_a_refused_wrap_leaves_the_model_as_it_was() -> None:
    model = torchlms.wrap(Net(), budget="1GB")
    with pytest.raises(ValueError, match="20 gigs"):
        torchlms.wrap(model, budget="20 gigs")
    assert scope_of(model).config == torchlms.Config(budget="1GB")


def test_unwrap_takes_the_hooks_away_and_ignores_other_models() -> None:
    model = Net()
    attributes = set(vars(model))
    assert torchlms.unwrap(torchlms.wrap(model, **SMALLEST)) is model
    assert num_hooks(model) == 0
    assert set(vars(model)) == attributes
    assert torchlms.unwrap(model) is model
    with pytest.raises(ValueError, match="not wrapped"):
        torchlms.report(model)


def test_unwrap_leaves_the_hooks_of_others() -> None:
    model, seen = Net(), []
    model.register_forward_hook(lambda module, args, result: seen.append("before"))
    torchlms.wrap(model, **SMALLEST)
    model.register_forward_hook(lambda module, args, result: seen.append("after"))
    torchlms.unwrap(model)
    model(batch())
    assert seen == ["before", "after"]


def test_only_modules_can_be_wrapped() -> None:
    with pytest.raises(TypeError, match="function"):
        torchlms.wrap(lambda inputs: inputs, **SMALLEST)


def test_the_scope_is_open_for_hooks_that_were_there_before() -> None:
    model, busy = Net(), []
    session = torchlms.offload(**SMALLEST).session()
    model.register_forward_pre_hook(lambda module, args: busy.append(session.is_busy()))
    model.register_forward_hook(lambda module, args, result: busy.append(session.is_busy()))
    torchlms.wrap(model, **SMALLEST)(batch())
    assert busy == [True, True]


@pytest.mark.parametrize("twin_of", [copy.deepcopy, by_pickle, by_torch_save])
def test_a_copy_is_wrapped_with_the_same_config_and_has_recorded_nothing(
    twin_of: Callable[[nn.Module], nn.Module],
) -> None:
    model = torchlms.wrap(Net(), **SMALLEST)
    expected = gradients(model)
    twin = twin_of(model)
    assert scope_of(twin).config == scope_of(model).config
    assert scope_of(twin) is not scope_of(model)
    assert torchlms.report(twin).to_dict()["step"] == 0
    assert_equal(gradients(twin), expected)
    assert torchlms.report(twin).to_dict()["step"] > 0
    assert num_hooks(torchlms.unwrap(twin)) == 0
    assert scope_of(model) is not None


def test_an_unpickled_model_keeps_its_hooks_when_others_are_added() -> None:
    data = pickle.dumps(torchlms.wrap(Net(), **SMALLEST))
    torch.utils.hooks.RemovableHandle.next_id = 0  # as in a process that has just begun
    model = pickle.loads(data)
    for _ in range(5):
        model.register_forward_hook(lambda module, args, result: None)
        model.register_forward_pre_hook(lambda module, args: None)
    assert scope_of(model) is not None
    assert num_hooks(torchlms.unwrap(model)) == 10


def test_a_wrapped_model_is_freed_without_the_garbage_collector() -> None:
    model = torchlms.wrap(Net(), **SMALLEST)
    gradients(model)
    alive = weakref.ref(model)
    gc.disable()
    try:
        del model
        assert alive() is None
    finally:
        gc.enable()


def test_worker_threads_are_covered() -> None:
    models = [torchlms.wrap(Net(), **SMALLEST) for _ in range(2)]
    results: dict[int, list[Tensor]] = {}
    threads = [
        threading.Thread(target=lambda i=i: results.update({i: gradients(models[i])}))
        for i in range(2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    expected = gradients(Net())
    assert_equal(results[0], expected)
    assert_equal(results[1], expected)
    assert torchlms.report(models[0]).to_dict()["saved_bytes"] > 0


def test_a_replica_of_data_parallel_runs_under_the_scope_of_its_model() -> None:
    model = torchlms.wrap(Net(), **SMALLEST)
    replica = model._replicate_for_data_parallel()
    assert scope_of(replica) is scope_of(model)
    assert_equal(gradients(nn.DataParallel(model)), gradients(Net()))


@pytest.mark.parametrize("failure", [RuntimeError("stop"), KeyboardInterrupt()])
def test_a_forward_that_raises_closes_its_scope_once(failure: BaseException) -> None:
    model = torchlms.wrap(FailingNet(), **SMALLEST)
    model.failure = failure
    with torchlms.offload(**SMALLEST):
        with pytest.raises(type(failure)):
            model(batch())
        assert torchlms.offload(**SMALLEST).session().is_busy()
    model.failure = None
    failure.__traceback__ = None  # it holds the tensors of the forward that failed
    gc.collect()
    model.load_state_dict(Net().state_dict())
    assert_equal(gradients(model), gradients(Net()))
    assert not scope_of(model).session().is_busy()


def test_entering_that_raises_is_not_followed_by_an_exit() -> None:
    model = torchlms.wrap(Net(), budget="1GB")
    with torchlms.offload(**SMALLEST) as lms:
        with pytest.raises(ValueError, match="1000000000"):
            model(batch())
        assert lms.session().is_busy()
    assert not lms.session().is_busy()


def test_wrapped_modules_inside_a_wrapped_module_join_its_scope() -> None:
    model = Net()
    torchlms.wrap(model.first, **SMALLEST)
    torchlms.wrap(model, **SMALLEST)
    assert_equal(gradients(model), gradients(Net()))


def test_compile_export_trace_and_script_see_the_plain_forward() -> None:
    model, expected = torchlms.wrap(Net().eval(), **SMALLEST), Net().eval()(batch())
    torch._dynamo.reset()
    assert torch.equal(torch.compile(model, backend="aot_eager")(batch()), expected)
    for strict in (False, True):
        program = torch.export.export(model, (batch(),), strict=strict)
        assert torch.equal(program.module()(batch()), expected)
    assert torch.equal(torch.jit.trace(model, (batch(),))(batch()), expected)
    assert torch.equal(torch.jit.script(copy.deepcopy(model))(batch()), expected)
    assert scope_of(model) is not None
    assert not scope_of(model).session().is_busy()


def test_a_wrapped_child_stays_wrapped_when_its_parent_is_scripted() -> None:
    model = Net().eval()
    torchlms.wrap(model.first, **SMALLEST)
    torchlms.wrap(model, **SMALLEST)
    torch.jit.script(model)
    assert scope_of(model) is not None
    assert scope_of(model.first) is not None
