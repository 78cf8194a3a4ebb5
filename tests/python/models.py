# SPDX-License-Identifier: BSD-3-Clause
"""Small models of the kinds that people train."""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn


class Block(nn.Module):
    """A transformer block."""

    def __init__(self, width: int, num_heads: int, dropout: float) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.dropout = dropout
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, inputs: Tensor) -> Tensor:
        batch, length, width = inputs.shape
        heads = self.qkv(self.norm1(inputs)).view(batch, length, 3, self.num_heads, -1)
        query, key, value = heads.permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        attended = self.proj(attended.transpose(1, 2).reshape(batch, length, width))
        hidden = inputs + F.dropout(attended, self.dropout, self.training)
        return hidden + F.dropout(
            self.down(F.gelu(self.up(self.norm2(hidden)))), self.dropout, self.training
        )


class GPT(nn.Module):
    """Blocks between an embedding and a head of the same weight."""

    def __init__(self, num_blocks: int = 3, width: int = 32, dropout: float = 0.1) -> None:
        super().__init__()
        self.embedding = nn.Embedding(64, width)
        self.positions = nn.Parameter(torch.randn(32, width) * 0.02)
        self.blocks = nn.Sequential(*(Block(width, 4, dropout) for _ in range(num_blocks)))
        self.head = nn.Linear(width, 64, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, tokens: Tensor) -> Tensor:
        hidden = self.blocks(self.embedding(tokens) + self.positions[: tokens.shape[1]])
        return F.cross_entropy(self.head(hidden[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())


class TextLSTM(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(16, 24, num_layers=2, dropout=0.3, bidirectional=True)
        self.head = nn.Linear(48, 4)

    def forward(self, inputs: Tensor) -> Tensor:
        outputs, (hidden, _) = self.lstm(inputs)
        return self.head(outputs).square().mean() + hidden.tanh().mean()


class UNet(nn.Module):
    """Two levels down and up, skip connections, in-place ReLUs."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.enter = self._stage(3, width)
        self.down = self._stage(width, 2 * width)
        self.bottom = self._stage(2 * width, 4 * width)
        self.up1 = nn.ConvTranspose2d(4 * width, 2 * width, 2, stride=2)
        self.merge1 = self._stage(4 * width, 2 * width)
        self.up2 = nn.ConvTranspose2d(2 * width, width, 2, stride=2)
        self.merge2 = self._stage(2 * width, width)
        self.leave = nn.Conv2d(width, 1, 1)

    @staticmethod
    def _stage(inputs: int, outputs: int) -> nn.Sequential:
        layers: list[nn.Module] = []
        for channels in (inputs, outputs):
            layers += [
                nn.Conv2d(channels, outputs, 3, padding=1, bias=False),
                nn.BatchNorm2d(outputs),
                nn.ReLU(inplace=True),
            ]
        return nn.Sequential(*layers)

    def forward(self, images: Tensor) -> Tensor:
        first = self.enter(images)
        second = self.down(F.max_pool2d(first, 2))
        bottom = self.bottom(F.max_pool2d(second, 2))
        upper = self.merge1(torch.cat([self.up1(bottom), second], 1))
        return self.leave(self.merge2(torch.cat([self.up2(upper), first], 1)))


class ConvStack(nn.Sequential):
    """A deep chain: nearly all of what training it holds is saved for backward."""

    def __init__(self, depth: int = 10, width: int = 16) -> None:
        layers: list[nn.Module] = [nn.Conv2d(3, width, 3, padding=1)]
        for _ in range(depth):
            layers += [
                nn.Conv2d(width, width, 3, padding=1, bias=False),
                nn.BatchNorm2d(width),
                nn.ReLU(),
            ]
        super().__init__(*layers)
