# SPDX-License-Identifier: BSD-3-Clause
"""Trains MONAI's 3D U-Net to remove noise from a real MRI volume, inside a memory budget.

The volume is the MRI scan in nibabel's test data, resampled to a cube. The larger its side,
the more memory a step needs: --budget says how much it gets. With --plain, torchlms is left out,
for comparison: the losses are the same.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from tqdm import tqdm

from resident_memory import ResidentMemory

try:
    import nibabel
    from monai.networks.nets import UNet
    from nibabel.testing import data_path
except ImportError as error:
    sys.exit(f"This example needs MONAI and nibabel ({error}): run `pip install monai nibabel`")

if TYPE_CHECKING:
    import torchlms

NOISE = 0.3
MIB = 2**20


def mri_volume(size: int) -> torch.Tensor:
    """The first volume of the scan, (1, 1, size, size, size), mean 0, standard deviation 1."""
    scan = nibabel.load(Path(data_path) / "example4d.nii.gz")
    volume = torch.from_numpy(scan.get_fdata(dtype="float32")[..., 0].copy())[None, None]
    volume = torch.nn.functional.interpolate(volume, (size, size, size), mode="trilinear")
    return (volume - volume.mean()) / volume.std()


def build_model() -> torch.nn.Module:
    return UNet(
        spatial_dims=3,
        in_channels=1,
        out_channels=1,
        channels=(16, 32, 64, 128, 256),
        strides=(2, 2, 2, 2),
        num_res_units=2,
    )


def train(
    volume: torch.Tensor,
    num_steps: int,
    scope: contextlib.AbstractContextManager[object],
    memory_line: Callable[[], str],
) -> None:
    torch.manual_seed(0)
    model = build_model()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    seconds = []
    for step in tqdm(range(num_steps), unit="step", disable=None):
        noisy = volume + NOISE * torch.randn_like(volume)
        optimizer.zero_grad()
        start = time.perf_counter()
        with scope:
            loss = torch.nn.functional.mse_loss(model(noisy), volume)
        loss.backward()
        optimizer.step()
        seconds.append(time.perf_counter() - start)
        tqdm.write(f"step {step}: loss {loss.item():.6f}, {seconds[-1]:.2f} s{memory_line()}")
    print(f"median step: {statistics.median(seconds):.2f} s")


def offloaded_memory_line(scope: torchlms.offload) -> str:
    report = scope.report().to_dict()
    peak, budget = report["peak_bytes"], report["budget_bytes"]
    line = f", peak {peak / MIB:.1f} MiB"
    return f"{line}, {peak / budget:.1%} of the budget" if budget else line


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", type=int, default=128, help="voxels a side, a multiple of 16")
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--budget", default="1GiB", help='as torchlms takes it: "1GiB", 0.5, "min"')
    parser.add_argument("--plain", action="store_true", help="plain PyTorch, without torchlms")
    arguments = parser.parse_args()
    if arguments.size % 16 or arguments.size <= 0 or arguments.steps <= 0:
        parser.error("--size must be a multiple of 16, and --steps above zero")

    volume = mri_volume(arguments.size)
    memory = ResidentMemory()
    if arguments.plain:
        train(volume, arguments.steps, contextlib.nullcontext(), lambda: "")
    else:
        import torchlms  # here, so that --plain runs without its allocator

        scope = torchlms.offload(budget=arguments.budget)
        try:
            train(volume, arguments.steps, scope, lambda: offloaded_memory_line(scope))
        except torch.OutOfMemoryError as error:
            sys.exit(f"This budget is too small.\n{error}")
        print(scope.report())
    print(f"resident peak above start: {memory.peak_above_start_bytes() / MIB:.1f} MiB")


if __name__ == "__main__":
    main()
