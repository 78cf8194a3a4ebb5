# SPDX-License-Identifier: BSD-3-Clause
"""What the emulated device tells about itself, inside a process that runs on it."""

from __future__ import annotations

import ctypes
import os

NONE = 2**64 - 1


def library() -> ctypes.CDLL:
    loaded = ctypes.CDLL(os.environ["EMULATED_CUDA_LIBRARY"])
    loaded.emulated_cuda_counter.restype = ctypes.c_uint64
    loaded.emulated_cuda_race_text.restype = ctypes.c_char_p
    return loaded


def counter(name: str) -> int:
    value: int = library().emulated_cuda_counter(name.encode())
    if value == NONE:
        raise KeyError(name)
    return value


def set_knob(name: str, value: object) -> None:
    """Changes what EMULATED_CUDA_<name> set: BYTES, PINNED_BYTES, H2D_BYTES_PER_S, D2H_BYTES_PER_S,
    SLOWDOWN, FLOPS_PER_S, MEMORY_BYTES_PER_S, COMPUTE, DELAY_US, SEED, FAIL ("" for none; calls are counted anew)."""
    if not library().emulated_cuda_set(name.encode(), str(value).encode()):
        raise ValueError(f"{name}={value}")


def reset_peaks() -> None:
    library().emulated_cuda_reset_peaks()


def races() -> list[str]:
    texts: list[str] = []
    while (text := library().emulated_cuda_race_text(ctypes.c_uint64(len(texts)))) is not None:
        texts.append(text.decode())
    return texts


def forget_races() -> None:
    library().emulated_cuda_forget_races()
