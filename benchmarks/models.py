# SPDX-License-Identifier: BSD-3-Clause
"""The models of the table: what is trained, on which data, and which blocks a user of
torch.utils.checkpoint would wrap."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from common import ROOT

VOCABULARY = 256  # bytes
NOISE = 0.3


class Workload(NamedTuple):
    """A model and all that a training step of it needs, equal in every process."""

    model: nn.Module
    blocks: list[nn.Module]
    """What is checkpointed one by one."""
    batch: Callable[[int], tuple[Tensor, Tensor]]
    """Inputs and targets of a step."""
    loss: Callable[[Any, Tensor], Tensor]
    """Of the model's outputs and the targets."""


@dataclass(frozen=True)
class Entry:
    """A model of the table in its two sizes."""

    build: Callable[..., Workload]
    full: dict[str, int]
    quick: dict[str, int]
    budgets: tuple[float, ...] = (0.6, 0.4)
    """Fractions of plain's peak that the full table has."""
    is_default: bool = True
    """False: only where it is asked for by name."""

    def sizes(self, quick: bool) -> dict[str, int]:
        return self.quick if quick else self.full


def resnet50(batch: int, size: int) -> Workload:
    import torchvision

    model = torchvision.models.resnet50(weights=None)
    blocks = [block for index in (1, 2, 3, 4) for block in getattr(model, f"layer{index}")]
    return Workload(model, blocks, _photographs(batch, size), F.cross_entropy)


def densenet121(batch: int, size: int) -> Workload:
    import torchvision
    from torchvision.models.densenet import _DenseLayer, _Transition

    model = torchvision.models.densenet121(weights=None, drop_rate=0.1)
    blocks = [part for part in model.modules() if isinstance(part, _DenseLayer | _Transition)]
    return Workload(model, blocks, _photographs(batch, size), F.cross_entropy)


def deeplabv3(batch: int, size: int) -> Workload:
    """Which pixels are brighter than the mean, out of a photograph. The head has a dropout."""
    import torchvision
    from torchvision.models.resnet import Bottleneck

    model = torchvision.models.segmentation.deeplabv3_resnet50(
        weights=None, weights_backbone=None, num_classes=2
    )
    blocks = [part for part in model.backbone.modules() if isinstance(part, Bottleneck)]
    photographs = _photographs(batch, size)

    def with_masks(step: int) -> tuple[Tensor, Tensor]:
        images, _ = photographs(step)
        brightness = images.mean(1)
        return images, (brightness > brightness.mean()).long()

    def loss(outputs: dict[str, Tensor], masks: Tensor) -> Tensor:
        return F.cross_entropy(outputs["out"], masks)

    return Workload(model, [*blocks, model.classifier[0]], with_masks, loss)


def unet3d(size: int) -> Workload:
    """MONAI's, that removes noise from a real MRI volume."""
    from monai.networks.blocks import Convolution, ResidualUnit

    from train_unet3d import build_model, mri_volume

    model, volume = build_model(), mri_volume(size)
    units = [part for part in model.modules() if isinstance(part, ResidualUnit)]
    inside = {part for unit in units for part in unit.modules()}
    others = [part for part in model.modules() if isinstance(part, Convolution)]
    blocks = units + [part for part in others if part not in inside]

    def noisy(step: int) -> tuple[Tensor, Tensor]:
        noise = torch.randn(volume.shape, generator=torch.Generator().manual_seed(step))
        return volume + NOISE * noise, volume

    return Workload(model, blocks, noisy, F.mse_loss)


class GPTBlock(nn.Module):
    def __init__(self, width: int, num_heads: int, dropout: float) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.dropout = dropout
        self.attention_norm, self.mlp_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.projection = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, inputs: Tensor) -> Tensor:
        batch, length, width = inputs.shape
        heads = self.qkv(self.attention_norm(inputs)).view(batch, length, 3, self.num_heads, -1)
        query, key, value = heads.permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        attended = self.projection(attended.transpose(1, 2).reshape(batch, length, width))
        hidden = inputs + F.dropout(attended, self.dropout, self.training)
        expanded = self.down(F.gelu(self.up(self.mlp_norm(hidden))))
        return hidden + F.dropout(expanded, self.dropout, self.training)


class GPT(nn.Module):
    def __init__(self, num_blocks: int, width: int, length: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, width)
        self.positions = nn.Parameter(torch.randn(length, width) * 0.02)
        self.blocks = nn.ModuleList(GPTBlock(width, width // 32, 0.1) for _ in range(num_blocks))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, VOCABULARY)

    def forward(self, tokens: Tensor) -> Tensor:
        hidden = self.embedding(tokens) + self.positions
        for block in self.blocks:
            hidden = block(hidden)
        return self.head(self.norm(hidden))


def gpt(batch: int, length: int, num_blocks: int, width: int) -> Workload:
    model = GPT(num_blocks, width, length)
    return Workload(model, list(model.blocks), _text(batch, length), _next_byte_loss)


class LSTMLayer(nn.Module):
    def __init__(self, width: int, dropout: float) -> None:
        super().__init__()
        self.lstm = nn.LSTM(width, width, batch_first=True)
        self.mix = nn.Linear(width, width)
        self.dropout = dropout

    def forward(self, inputs: Tensor) -> Tensor:
        outputs, _ = self.lstm(inputs)
        return inputs + F.dropout(self.mix(outputs), self.dropout, self.training)


class LanguageLSTM(nn.Module):
    def __init__(self, num_layers: int, width: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, width)
        self.layers = nn.ModuleList(LSTMLayer(width, 0.1) for _ in range(num_layers))
        self.head = nn.Linear(width, VOCABULARY)

    def forward(self, tokens: Tensor) -> Tensor:
        hidden = self.embedding(tokens)
        for layer in self.layers:
            hidden = layer(hidden)
        return self.head(hidden)


def lstm(batch: int, length: int, num_layers: int, width: int) -> Workload:
    model = LanguageLSTM(num_layers, width)
    return Workload(model, list(model.layers), _text(batch, length), _next_byte_loss)


def _next_byte_loss(outputs: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(outputs.flatten(0, 1), targets.flatten())


def _photographs(batch: int, size: int) -> Callable[[int], tuple[Tensor, Tensor]]:
    from photos import random_crops

    return lambda step: random_crops(batch, size, seed=step)


def _text(batch: int, length: int) -> Callable[[int], tuple[Tensor, Tensor]]:
    """Pieces of the project's own prose, byte by byte, and the byte after each."""
    prose = b"".join(path.read_bytes() for path in sorted(ROOT.glob("docs/*.md")))
    text = torch.frombuffer(bytearray(prose), dtype=torch.uint8).long()
    text = text.repeat(-(-2 * length // len(text)))

    def pieces(step: int) -> tuple[Tensor, Tensor]:
        generator = torch.Generator().manual_seed(step)
        starts = torch.randint(len(text) - length, (batch, 1), generator=generator)
        positions = starts + torch.arange(length)
        return text[positions], text[positions + 1]

    return pieces


# The budgets are such that the whole table takes less than an hour on 2 cores: both for a few.
MODELS = {
    "resnet50-224": Entry(resnet50, {"batch": 4, "size": 224}, {"batch": 8, "size": 160}, (0.6,)),
    "resnet50-640": Entry(resnet50, {"batch": 1, "size": 640}, {"batch": 1, "size": 448}, (0.4,)),
    "resnet50-896x2": Entry(
        resnet50, {"batch": 2, "size": 896}, {"batch": 2, "size": 448}, (0.4,), is_default=False
    ),
    "densenet121": Entry(densenet121, {"batch": 6, "size": 160}, {"batch": 4, "size": 128}, (0.4,)),
    "deeplabv3": Entry(deeplabv3, {"batch": 4, "size": 160}, {"batch": 8, "size": 128}, (0.6,)),
    "unet3d": Entry(unet3d, {"size": 96}, {"size": 96}, (0.6,)),
    "gpt-512": Entry(
        gpt,
        {"batch": 4, "length": 512, "num_blocks": 6, "width": 256},
        {"batch": 4, "length": 256, "num_blocks": 4, "width": 128},
    ),
    "gpt-2048": Entry(
        gpt,
        {"batch": 1, "length": 2048, "num_blocks": 6, "width": 256},
        {"batch": 1, "length": 1024, "num_blocks": 4, "width": 128},
        (0.4,),
    ),
    "lstm": Entry(
        lstm,
        {"batch": 24, "length": 256, "num_layers": 4, "width": 256},
        {"batch": 8, "length": 128, "num_layers": 3, "width": 128},
        (0.6,),
    ),
}
