# SPDX-License-Identifier: BSD-3-Clause
"""What the lines of a fuzzed program work on beside their operands: layers, buffers, generators."""

from __future__ import annotations

import contextlib
import dataclasses
from typing import Any, Protocol

import torch
from torch import Tensor, nn

COLUMNS = 32


class Layers(nn.Module):
    """Parameters, layers with state, and a generator of their own."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(COLUMNS, COLUMNS)
        self.norm = nn.LayerNorm(COLUMNS)
        self.batch_norm = nn.BatchNorm1d(COLUMNS)
        self.batch_norm_2d = nn.BatchNorm2d(4)
        self.group_norm = nn.GroupNorm(4, COLUMNS)
        self.conv = nn.Conv1d(1, 1, 3, padding=1)
        self.conv_2d = nn.Conv2d(4, 4, 3, padding=1)
        self.lstm = nn.LSTM(8, 8, batch_first=True)
        self.gru = nn.GRU(8, 8, batch_first=True)
        self.attention = nn.MultiheadAttention(COLUMNS, 2, dropout=0.2, batch_first=True)
        self.spectral = nn.utils.parametrizations.spectral_norm(nn.Linear(COLUMNS, COLUMNS))
        self.scale = nn.Parameter(torch.ones(COLUMNS))
        self.frozen = nn.Parameter(torch.full((COLUMNS, COLUMNS), 0.05), requires_grad=False)
        self.register_buffer("cache", torch.zeros(COLUMNS, COLUMNS))
        self.register_buffer("average", torch.zeros(COLUMNS))
        self.generator = torch.Generator().manual_seed(3)


class Harness(Protocol):
    """How a forward pass is run: plain, or under torchlms one way or another."""

    def nested(self) -> contextlib.AbstractContextManager[Any]: ...
    def disabled(self) -> contextlib.AbstractContextManager[Any]: ...
    def keep(self, tensor: Tensor) -> Tensor: ...


@dataclasses.dataclass
class Context:
    """Of one forward pass."""

    layers: Layers
    harness: Harness
    rows: int
    step: int

    def matrix(self, tensor: Tensor) -> Tensor:
        """The tensor as rows x COLUMNS of float32, whatever it was, differentiably."""
        if tensor.is_sparse:
            tensor = tensor.to_dense()
        if tensor.is_complex():
            tensor = torch.view_as_real(tensor.resolve_conj()).sum(-1)
        tensor = tensor.float()
        shape = (self.rows, COLUMNS)
        if tensor.shape == shape:
            return tensor
        if tensor.numel() == 0:
            return tensor.sum().expand(shape)
        if tensor.dim() <= 2 and all(
            size in (1, full)
            for size, full in zip(reversed(tensor.shape), reversed(shape), strict=False)
        ):
            return tensor.expand(shape)
        flat = tensor.reshape(-1)
        count = self.rows * COLUMNS
        if flat.numel() < count:
            flat = flat[torch.arange(count) % flat.numel()]
        return flat[:count].view(shape)

    def images(self, tensor: Tensor) -> Tensor:
        """... as a batch of images with 4 channels."""
        return self.matrix(tensor).reshape(self.rows // 2, 4, 4, 4)

    def sequences(self, tensor: Tensor) -> Tensor:
        """... as a batch of sequences of 4 x 8."""
        return self.matrix(tensor).reshape(self.rows, 4, 8)

    def heads(self, tensor: Tensor) -> Tensor:
        return self.matrix(tensor).reshape(2, 2, self.rows // 2, COLUMNS // 2)

    def indices(self, tensor: Tensor) -> Tensor:
        """Row numbers that depend on the data."""
        return (self.matrix(tensor.detach()).sum(1) * 7).nan_to_num().clamp(
            -1e6, 1e6
        ).long() % self.rows
