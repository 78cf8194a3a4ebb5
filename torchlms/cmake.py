# SPDX-License-Identifier: BSD-3-Clause
"""Where C++ programs find this installation's library."""

from __future__ import annotations

from pathlib import Path


def cmake_prefix_path() -> str:
    """The folder to put into CMAKE_PREFIX_PATH, so that `find_package(TorchLMS)` finds the library
    and header inside this package, and the torch that it was built for."""
    return str(Path(__file__).resolve().parent / "share/cmake")
