# SPDX-License-Identifier: BSD-3-Clause
"""Training batches cut from the two real photographs that scikit-learn ships: no download."""

from __future__ import annotations

import functools

import torch
from sklearn.datasets import load_sample_images

IMAGENET_MEAN = torch.tensor([0.485, 0.456, 0.406]).view(3, 1, 1)
IMAGENET_STD = torch.tensor([0.229, 0.224, 0.225]).view(3, 1, 1)


@functools.cache
def photos() -> tuple[torch.Tensor, ...]:
    """A temple and a flower, each (3, 427, 640), float32, normalised as ImageNet is."""
    pixels = [torch.tensor(image).permute(2, 0, 1) / 255 for image in load_sample_images().images]
    return tuple((image - IMAGENET_MEAN) / IMAGENET_STD for image in pixels)


def random_crops(batch: int, size: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Square crops of random place and scale, half of them mirrored, and the photograph of each.

    Returns:
        images (batch, 3, size, size), float32, and labels (batch,), int64, 0 or 1. Equal seeds give
        equal batches, in every process.
    """
    generator = torch.Generator().manual_seed(seed)

    def below(bound: int) -> int:
        return int(torch.randint(bound, (), generator=generator))

    images, labels = torch.empty(batch, 3, size, size), torch.empty(batch, dtype=torch.int64)
    for index in range(batch):
        label = below(len(photos()))
        photo = photos()[label]
        height, width = photo.shape[1:]
        side = height - below(height // 2)
        top, left = below(height - side + 1), below(width - side + 1)
        crop = photo[:, top : top + side, left : left + side]
        crop = crop.flip(2) if below(2) else crop
        images[index] = torch.nn.functional.interpolate(
            crop[None], (size, size), mode="bilinear", antialias=True
        )[0]
        labels[index] = label
    return images, labels
