# SPDX-License-Identifier: BSD-3-Clause
"""Forks, signals, and plans that go from one process to another."""

from __future__ import annotations

import multiprocessing
import signal
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

import children
import torchlms
from children import MIB, Child, losses_and_gradients
from models import ConvStack
from training import ScopeMaker, bits, has_hooks, held_bytes, scopes, seeded


class Images(Dataset[Tensor]):
    """Allocates, frees and computes, so that a worker uses the allocator it inherited."""

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> Tensor:
        image = seeded(3, 64, 64, seed=index)
        return torch.stack([image, image.sin()]).mean(0).clone()


def train_on_loader(scope: ScopeMaker, num_workers: int) -> list[object]:
    torch.manual_seed(4)
    model, losses = ConvStack(4), []
    for _ in range(4):
        with scope():
            hidden = model(seeded(2, 3, 64, 64))
            # Workers start here, while storages are on their way to the disk.
            for images in DataLoader(Images(), batch_size=4, num_workers=num_workers):
                hidden = hidden + model(images).mean()
        loss = hidden.square().mean()
        loss.backward()
        losses.append(loss.detach())
    return bits([losses, [parameter.grad for parameter in model.parameters()]])


@pytest.mark.parametrize("headroom", [None, 12 * MIB], ids=["min", "12 MiB"])
def test_loader_workers_may_start_in_the_middle_of_swapping_steps(headroom: int | None) -> None:
    expected = train_on_loader(torchlms.disabled, 0)
    lms, scope = scopes("min" if headroom is None else held_bytes() + headroom)
    assert train_on_loader(scope, 2) == expected
    assert lms.report().to_dict()["swapped_bytes"] > 0


def compute_in_fork(lms: torchlms.offload, values: Tensor) -> None:
    torch.set_num_threads(1)  # GNU OpenMP's pool does not survive a fork, with plain PyTorch either
    with lms:  # does nothing here
        result = (values.cos() * values.exp()).sum()
    assert torch.equal(result, (values.cos() * values.exp()).sum())
    assert not has_hooks()


def test_a_fork_in_an_open_scope_has_no_session_and_its_parent_goes_on() -> None:
    lms, scope = scopes()
    values = seeded(1 << 16).requires_grad_()
    with scope():
        loss = (values.exp().sin() * values).sum()
        child = multiprocessing.get_context("fork").Process(
            target=compute_in_fork, args=(lms, values)
        )
        child.start()
        loss = loss + (values.cos() * values.exp()).sum()
        child.join(children.DEADLINE_S)
        child.kill()
        child.join()
        assert child.exitcode == 0
    loss.backward()
    plain = (values.exp().sin() * values).sum() + (values.cos() * values.exp()).sum()
    assert torch.equal(values.grad, torch.autograd.grad(plain, values)[0])


@pytest.mark.parametrize("place", children.PLACES_TO_WAIT)
def test_ctrl_c_ends_a_step_that_waits_for_the_link(place: str) -> None:
    with Child(children.be_interrupted, place) as child:
        assert child.receive() == "slow"
        child.kill(signal.SIGINT)
        assert child.receive() == "interrupted"
        outcome = child.receive()
        assert child.join() == 0
    assert outcome == {"has_hooks": False, "left_bytes": 0, "is_exact": True}


def test_a_saved_plan_is_followed_from_the_first_step_of_another_process(tmp_path: Path) -> None:
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    lms, _ = scopes()
    losses_and_gradients(lms)
    lms.plan().save(tmp_path / "plan.json")
    expected = losses_and_gradients(torchlms.disabled(), 1)
    torch.set_num_threads(num_threads)
    state, result = children.call(children.step_with_plan, str(tmp_path / "plan.json"))
    assert state == "executing"
    assert result == expected


@pytest.mark.parametrize("ending", children.ENDINGS)
def test_a_process_that_trained_ends_well(ending: str) -> None:
    assert children.call(children.train_and_end, ending) == ending
