# SPDX-License-Identifier: BSD-3-Clause
"""State that a forward pass changes is changed once: statistics, averages, caches, routers, generators."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from training import ScopeMaker, assert_exact, moved_bytes, seeded, state_of

pytestmark = pytest.mark.parametrize("policy", ["swap", "recompute"])


def trained(make: Any, *shape: int, num_steps: int = 3) -> Any:
    """A program: a few steps of a model on random inputs; its state and where the generator ends."""

    def program(scope: ScopeMaker) -> Any:
        model = make()
        optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
        losses = []
        for step in range(num_steps):
            optimizer.zero_grad()
            with scope():
                loss = model(seeded(*shape, seed=step)).square().mean()
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
        return [losses, state_of(model, optimizer), torch.rand(1)]

    return program


NORMS = {
    "batch norm": lambda: nn.BatchNorm1d(16),
    "batch norm, cumulative average": lambda: nn.BatchNorm1d(16, momentum=None),
    "batch norm without statistics": lambda: nn.BatchNorm1d(16, track_running_stats=False),
    "instance norm": lambda: nn.Sequential(
        nn.Unflatten(1, (4, 4)),
        nn.InstanceNorm1d(4, affine=True, track_running_stats=True),
        nn.Flatten(),
    ),
}


@pytest.mark.parametrize("norm", NORMS)
def test_statistics_are_updated_once(policy: str, norm: str) -> None:
    def make() -> nn.Module:
        return nn.Sequential(nn.Linear(8, 16), NORMS[norm](), nn.GELU(), nn.Linear(16, 8))

    assert moved_bytes(assert_exact(trained(make, 12, 8), policy=policy)) > 0


@pytest.mark.parametrize("kind", ["spectral", "weight", "orthogonal"])
def test_parametrised_weights_keep_their_state(policy: str, kind: str) -> None:
    wrap = {
        "spectral": nn.utils.parametrizations.spectral_norm,
        "weight": nn.utils.parametrizations.weight_norm,
        "orthogonal": nn.utils.parametrizations.orthogonal,
    }[kind]

    def make() -> nn.Module:
        return nn.Sequential(wrap(nn.Linear(8, 16)), nn.Tanh(), wrap(nn.Linear(16, 8)))

    assert moved_bytes(assert_exact(trained(make, 12, 8), policy=policy)) > 0


class Averaging(nn.Module):
    """A layer that keeps a moving average of what it sees, and counts its calls."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)
        self.register_buffer("average", torch.zeros(8))
        self.calls = 0

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = self.linear(inputs).sin()
        self.calls += 1
        with torch.no_grad():
            self.average.mul_(0.9).add_(hidden.mean(0), alpha=0.1)
        return (hidden - self.average).exp()


def test_moving_averages_are_updated_once(policy: str) -> None:
    assert_exact(trained(lambda: nn.Sequential(Averaging(), Averaging()), 6, 8), policy=policy)


class Codebook(nn.Module):
    """The nearest of learnt vectors, passed straight through; the vectors follow their users."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.leave = nn.Linear(8, 8), nn.Linear(8, 8)
        self.register_buffer("vectors", seeded(6, 8))
        self.register_buffer("uses", torch.zeros(6, dtype=torch.int64))

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = self.enter(inputs).tanh()
        nearest = torch.cdist(hidden.detach(), self.vectors).argmin(1)
        chosen = self.vectors[nearest]
        with torch.no_grad():
            self.uses += torch.bincount(nearest, minlength=6)
            self.vectors[nearest] = 0.9 * chosen + 0.1 * hidden
        return self.leave(hidden + (chosen - hidden).detach()) * chosen


def test_a_codebook_that_follows_its_users_is_exact(policy: str) -> None:
    assert_exact(trained(Codebook, 10, 8), policy=policy)


class Router(nn.Module):
    """Sends each row to one of several layers, and counts how many each gets."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(8, 4)
        self.experts = nn.ModuleList(nn.Linear(8, 8) for _ in range(4))
        self.register_buffer("load", torch.zeros(4, dtype=torch.int64))

    def forward(self, inputs: Tensor) -> Tensor:
        weights, chosen = torch.softmax(self.gate(inputs), 1).max(1)
        self.load += torch.bincount(chosen, minlength=4)
        result = torch.zeros_like(inputs)
        for index, expert in enumerate(self.experts):
            rows = (chosen == index).nonzero()[:, 0]
            if len(rows):
                routed = F.gelu(expert(inputs[rows])) * weights[rows, None]
                result = result.index_copy(0, rows, routed)
        return result


def test_a_router_whose_choice_depends_on_the_data_is_exact(policy: str) -> None:
    assert_exact(trained(lambda: nn.Sequential(Router(), Router()), 12, 8), policy=policy)


class CachedAttention(nn.Module):
    """Reads its inputs one by one and looks back at all before, kept in one block that is filled."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, inputs: Tensor) -> Tensor:
        block, appended, outputs = torch.zeros(6, 8), [], []
        for step, row in enumerate(inputs):
            key = self.key(row).tanh()
            with torch.no_grad():
                block[step] = key
            appended.append(key)
            seen = torch.stack(appended)
            weights = torch.softmax(seen @ self.query(row), 0)
            outputs.append(weights @ seen + weights @ block[: step + 1].clone())
        return torch.stack(outputs)


def test_caches_of_keys_grow_once(policy: str) -> None:
    assert_exact(trained(CachedAttention, 6, 8), policy=policy)


RANDOM: dict[str, Any] = {
    "dropout": lambda values: F.dropout(values, 0.3),
    "in place": lambda values: F.dropout(values * 1, 0.3, inplace=True),
    "alpha": lambda values: F.alpha_dropout(values, 0.3, True),
    "feature": lambda values: F.dropout1d(values[None], 0.3)[0],
    "leaky": lambda values: F.rrelu(values, training=True),
    "gumbel": lambda values: F.gumbel_softmax(values, hard=True),
    "noise": lambda values: values * torch.randn_like(values),
    "uniform": lambda values: values + torch.empty_like(values).uniform_(),
    "bernoulli": lambda values: values * torch.bernoulli(torch.full_like(values, 0.5)),
    "chosen": lambda values: values[torch.multinomial(torch.ones(len(values)), 5)],
    "order": lambda values: values[torch.randperm(len(values))] * values,
    "sampled": lambda values: torch.distributions.Normal(values, values.exp()).rsample(),
    "attention": lambda values: F.scaled_dot_product_attention(
        values[None], values[None], values[None], dropout_p=0.3
    ),
}


@pytest.mark.parametrize("kind", RANDOM)
def test_random_numbers_are_drawn_once_and_the_generator_ends_where_it_should(
    policy: str, kind: str
) -> None:
    def program(scope: ScopeMaker) -> Any:
        weight, results = seeded(8, 8).requires_grad_(), []
        for _ in range(3):
            weight.grad = None
            with scope():
                loss = RANDOM[kind](weight.sin().exp()).tanh().square().sum()
            loss.backward()
            results += [loss.detach(), weight.grad, torch.rand(2)]
        return results

    assert moved_bytes(assert_exact(program, policy=policy)) > 0


def test_generators_of_the_user_end_where_they_should(policy: str) -> None:
    def program(scope: ScopeMaker) -> Any:
        generator, weight, results = torch.Generator(), seeded(8, 8).requires_grad_(), []
        generator.manual_seed(5)
        random.seed(5)
        for _ in range(3):
            weight.grad = None
            with scope():
                hidden = weight.sin()
                mask = torch.rand(8, 8, generator=generator) < 0.5
                shift = torch.empty(8).normal_(generator=generator)
                loss = ((hidden.exp() * mask + shift) * random.random()).tanh().sum()
            loss.backward()
            results += [loss.detach(), weight.grad, generator.get_state(), random.random()]
        return results

    assert moved_bytes(assert_exact(program, policy=policy)) > 0
