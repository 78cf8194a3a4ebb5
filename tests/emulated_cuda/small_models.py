# SPDX-License-Identifier: BSD-3-Clause
"""Small real models, and a training step of each that can run on either device."""

from __future__ import annotations

import copy
from dataclasses import dataclass

import torch
import torchvision
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: Tensor) -> Tensor:
        rows, tokens, _ = x.shape
        parts = self.qkv(self.norms[0](x)).chunk(3, -1)
        q, k, v = (p.view(rows, tokens, self.heads, -1).transpose(1, 2) for p in parts)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(x.shape))
        return x + self.mlp(self.norms[1](x))


class Gpt(nn.Module):
    def __init__(self, layers: int = 3, width: int = 64) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(100, width), nn.Parameter(torch.randn(32, width))
        self.blocks = nn.Sequential(*(Block(width, 4) for _ in range(layers)))
        self.head = nn.Linear(width, 100)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.blocks(self.tokens(tokens) + self.places)).flatten(0, 1)


class Tagger(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.head = nn.LSTM(16, 32, 2, batch_first=True), nn.Linear(32, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.lstm(x)[0][:, -1])


@dataclass
class Case:
    model: nn.Module
    inputs: Tensor
    labels: Tensor

    def gradients(self, device: str, steps: int = 1) -> list[Tensor]:
        """Of the last of some steps of SGD, on the CPU."""
        model = copy.deepcopy(self.model).to(device)
        inputs, labels = self.inputs.to(device), self.labels.to(device)
        sgd = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)
        for _ in range(steps):
            sgd.zero_grad()
            with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
                F.cross_entropy(model(inputs), labels).backward()
            sgd.step()
        return [p.grad.cpu() for p in model.parameters()]


def case(name: str) -> Case:
    torch.manual_seed(0)
    if name == "resnet18":
        model = torchvision.models.resnet18(weights=None)
        return Case(model, torch.randn(4, 3, 64, 64), torch.randint(0, 1000, (4,)))
    if name == "gpt":
        return Case(Gpt(), torch.randint(0, 100, (4, 32)), torch.randint(0, 100, (128,)))
    assert name == "lstm"
    return Case(Tagger(), torch.randn(4, 12, 16), torch.randint(0, 10, (4,)))
