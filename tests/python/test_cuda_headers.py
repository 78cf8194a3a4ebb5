# SPDX-License-Identifier: BSD-3-Clause
"""The allocator that stands before PyTorch's must hand on every method of the installed version."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).resolve().parents[2]
INCLUDE = Path(torch.__file__).parent / "include/c10"


def class_body(text: str, head: str) -> str:
    """From the class's head to its closing brace at the start of a line."""
    return text[text.index(head) :].split("\n};")[0]


def virtuals(text: str) -> set[str]:
    """Names of the methods that a class declares virtual or overrides."""
    plain = re.sub(r"//[^\n]*", "", text)
    names = re.findall(r"virtual\s[^;{}()]*?(~?\w+)\(", plain)
    names += re.findall(r"(~?\w+)\([^;{}]*\)\s*(?:const\s*)?override", plain)
    return {name for name in names if not name.startswith("~")}


def allocator_methods() -> set[str]:
    header = INCLUDE / "cuda/CUDACachingAllocator.h"
    if not header.exists():
        pytest.skip("this torch has no CUDA headers")
    device = INCLUDE / "core/CachingDeviceAllocator.h"
    plain = INCLUDE / "core/Allocator.h"
    return (
        virtuals(class_body(header.read_text(), "class CUDAAllocator :"))
        | virtuals(class_body(device.read_text(), "struct C10_API DeviceAllocator"))
        | virtuals(class_body(plain.read_text(), "struct C10_API Allocator {"))
    )


def delegated() -> set[str]:
    sources = sorted((ROOT / "csrc/cuda").glob("*allocator*.cpp"))
    texts = [*(s.read_text() for s in sources), (ROOT / "csrc/cuda/native_delegate.h").read_text()]
    return set(re.findall(r"\bnative_?\.(\w+)\(", "\n".join(texts)))


def test_every_virtual_method_of_the_installed_allocator_is_delegated() -> None:
    methods = allocator_methods()
    assert len(methods) > 40
    assert not methods - delegated()


def test_a_method_that_is_not_delegated_is_found() -> None:
    added = "class CUDAAllocator : public X {\n  virtual int soonToCome(int a) = 0;\n};"
    assert virtuals(class_body(added, "class CUDAAllocator :")) - delegated() == {"soonToCome"}
