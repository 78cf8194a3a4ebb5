# SPDX-License-Identifier: BSD-3-Clause
"""What this copy of torchlms was built for."""

from __future__ import annotations

from pathlib import Path


def check() -> None:
    """Makes sure that the torch in this process is the one that ``torchlms._C`` was built for.

    Called before ``torchlms._C`` is imported, since the loader's own answer to another torch is an
    undefined symbol. Versions are compared without their local part: ``2.15.0+cpu`` and
    ``2.15.0+cu132`` have the same C++ interface.

    Raises:
        ImportError: torch is missing or another one, or torchlms was never built here.
    """
    try:
        from torchlms._built_for import TORCH_VERSION
    except ModuleNotFoundError:
        raise ImportError(
            f"torchlms in {Path(__file__).parent} is a source folder that was not built: run "
            "`pip install --no-build-isolation -e .` beside its setup.py, or import the installed "
            "torchlms from another folder"
        ) from None
    try:
        import torch
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise ImportError(
            f"torchlms needs torch {_public(TORCH_VERSION)} and no torch is installed: run "
            f"`pip install torch=={_public(TORCH_VERSION)}`"
        ) from None
    found = str(torch.__version__)
    if _public(found) != _public(TORCH_VERSION):
        raise ImportError(
            f"torchlms was built for torch {TORCH_VERSION} and torch {found} is installed. To "
            "build it for this torch: `pip install --no-build-isolation --force-reinstall "
            "--no-deps --no-cache-dir torchlms`, with `.` in place of `torchlms` in a source "
            f"folder; or go back: `pip install torch=={_public(TORCH_VERSION)}`"
        )


def _public(version: str) -> str:
    return version.split("+")[0]
