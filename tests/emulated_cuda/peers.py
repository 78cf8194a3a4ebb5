# SPDX-License-Identifier: BSD-3-Clause
"""Other projects' offloaders of saved tensors. They are loaded from their files, without the packages
around them, whose own requirements have nothing to do with offloading."""

from __future__ import annotations

import contextlib
import importlib.util
import sys
import types
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, ClassVar

import torch


class Nothing:
    """Takes any arguments, is false, and is no base class of any object."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        pass

    def __bool__(self) -> bool:
        return False

    def __getattr__(self, name: str) -> Any:
        return Nothing


class Anything(types.ModuleType):
    __path__: ClassVar[list[str]] = []

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (Nothing,), {})


def memory() -> types.ModuleType:
    module = types.ModuleType("psutil")
    module.virtual_memory = lambda: types.SimpleNamespace(percent=0.0)  # type: ignore[attr-defined]
    return module


@contextlib.contextmanager
def stand_ins(*names: str) -> Any:
    before = {name: sys.modules.get(name) for name in (*names, "psutil")}
    sys.modules.update({name: Anything(name) for name in names} | {"psutil": memory()})
    try:
        yield
    finally:
        for name, module in before.items():
            sys.modules.pop(name)
            if module is not None:
                sys.modules[name] = module


def load(package: str, file: str, *unneeded: str) -> types.ModuleType | None:
    found = importlib.util.find_spec(package)
    if found is None or not found.submodule_search_locations:
        return None
    path = f"{found.submodule_search_locations[0]}/{file}"
    spec = importlib.util.spec_from_file_location(f"{package}_offloading", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    with stand_ins(*unneeded):
        spec.loader.exec_module(module)
    return module


def torchtune(streams: bool) -> AbstractContextManager[Any] | None:
    module = load(
        "torchtune",
        "training/_activation_offloading.py",
        "torchao",
        "torchao.dtypes",
        "torchao.dtypes.nf4tensor",
        "torchtune.modules",
        "torchtune.utils",
    )
    return module and module.OffloadActivations(use_pin_memory=True, use_streams=streams)


def trl(streams: bool) -> AbstractContextManager[Any] | None:
    module = load(
        "trl",
        "models/activation_offloading.py",
        "accelerate",
        "accelerate.logging",
        "accelerate.utils",
        "accelerate.utils.versions",
        "transformers",
    )
    return module and module.OffloadActivations(use_pin_memory=True, use_streams=streams)


def save_on_cpu(streams: bool) -> AbstractContextManager[Any] | None:
    assert not streams, "it has no such mode"
    return torch.autograd.graph.save_on_cpu(pin_memory=True)


PEERS: dict[str, Callable[[bool], AbstractContextManager[Any] | None]] = {
    "save_on_cpu": save_on_cpu,
    "torchtune": torchtune,
    "trl": trl,
}
