# SPDX-License-Identifier: BSD-3-Clause
"""A module whose forward runs under offload: the same object, with two forward hooks."""

from __future__ import annotations

import copy
import dataclasses
import sys
import threading
import weakref
from collections.abc import Sequence
from types import FrameType
from typing import Any, TypeVar, Unpack

import torch
from torch.utils.hooks import RemovableHandle

from torchlms import devices, sessions
from torchlms.config import Config, Fields, combine
from torchlms.scope import SessionScope
from torchlms.settings import resolve

M = TypeVar("M", bound=torch.nn.Module)

_HOOK_TABLES = (
    "_forward_pre_hooks",
    "_forward_pre_hooks_with_kwargs",
    "_forward_hooks",
    "_forward_hooks_with_kwargs",
    "_forward_hooks_always_called",
)
_PREPARE = "__prepare_scriptable__"  # where torch.jit.script asks for a stand-in


@dataclasses.dataclass
class _Call:
    """One call of the module that is under way on a thread."""

    frame_id: int
    has_entered: bool = False


class ModuleScope(SessionScope):
    """The scope of a wrapped module; its methods `enter` and `exit` are the module's hooks.

    Owned by its module, so that copies and pickles of the module bring their own. Thread-safe:
    calls are counted per thread.
    """

    def __init__(self, config: Config, hook_ids: Sequence[int] = ()) -> None:
        super().__init__(config)
        self._calls = threading.local()
        self._module: weakref.ref[torch.nn.Module] | None = None
        self.hook_ids = tuple(hook_ids)
        # An unpickled module brings its hooks' ids: the next hook must not get one of them.
        RemovableHandle.next_id = max(RemovableHandle.next_id, *(i + 1 for i in self.hook_ids), 0)

    def attach(self, module: torch.nn.Module) -> None:
        self._module = weakref.ref(module)
        # Ours enters before and leaves after the hooks that are there already.
        enter_handle = module.register_forward_pre_hook(self.enter, prepend=True)
        exit_handle = module.register_forward_hook(self.exit, always_call=True)
        self.hook_ids = (enter_handle.id, exit_handle.id)
        vars(module)[_PREPARE] = self.scriptable

    def detach(self, module: torch.nn.Module) -> None:
        for table in _HOOK_TABLES:
            for hook_id in self.hook_ids:
                getattr(module, table).pop(hook_id, None)
        vars(module).pop(_PREPARE, None)

    def scriptable(self) -> torch.nn.Module:
        """What torch.jit.script compiles in the module's place, since it cannot compile our hooks:
        the same module without them, sharing parameters, buffers and children."""
        module = self._module() if self._module is not None else None
        assert module is not None, "torch.jit.script found this method on the living module"
        plain = copy.copy(module)
        for table in (*_HOOK_TABLES, "_modules"):  # torch.jit.script writes to _modules
            vars(plain)[table] = copy.copy(vars(module)[table])
        self.detach(plain)
        prepare = getattr(plain, _PREPARE, None)
        return prepare() if callable(prepare) else plain

    def has_run(self) -> bool:
        return bool(self._sessions)

    def device(self) -> str:
        module = self._module() if self._module is not None else None
        return super().device() if module is None else devices.of_module(module)

    def enter(self, module: torch.nn.Module, args: tuple[Any, ...]) -> None:
        if torch.compiler.is_compiling():
            return
        frame = sys._getframe(1)
        calls = self._calls_of_this_thread()
        self._close_abandoned(calls, frame)
        calls.append(_Call(id(frame)))  # before entering: exit runs even when entering raises
        self.__enter__()
        calls[-1].has_entered = True

    def exit(self, module: torch.nn.Module, args: tuple[Any, ...], result: object) -> None:
        if torch.compiler.is_compiling():
            return
        calls = self._calls_of_this_thread()
        if calls and calls.pop().has_entered:
            self.__exit__()

    def _calls_of_this_thread(self) -> list[_Call]:
        if not hasattr(self._calls, "list"):
            self._calls.list = []
        calls: list[_Call] = self._calls.list
        return calls

    def _close_abandoned(self, calls: list[_Call], caller: FrameType) -> None:
        """Closes calls that ended without their exit hook: PyTorch does not run it for a
        KeyboardInterrupt. Such a call's frame is no longer on the stack below `caller`."""
        if not calls:
            return
        running = set()
        frame = caller.f_back
        while frame is not None:
            running.add(id(frame))
            frame = frame.f_back
        while calls and calls[-1].frame_id not in running:
            if calls.pop().has_entered:
                self.__exit__()

    def __reduce__(self) -> tuple[object, ...]:
        module = self._module() if self._module is not None else None
        return type(self), (self._config, self.hook_ids), {"module": module}

    def __setstate__(self, state: dict[str, torch.nn.Module | None]) -> None:
        module = state["module"]
        self._module = None if module is None else weakref.ref(module)


def scope_of(model: torch.nn.Module) -> ModuleScope | None:
    """The scope of a wrapped module, None for any other."""
    for hook in model._forward_pre_hooks.values():
        scope = getattr(hook, "__self__", None)
        if isinstance(scope, ModuleScope):
            return scope
    return None


def wrap(model: M, config: Config | None = None, /, **fields: Unpack[Fields]) -> M:
    """Makes the module's forward run under `offload` with these settings, on whatever thread.

    The module stays the same object, of the same class, with the same parameters and state_dict
    keys. Copies and pickles of it are wrapped with the same Config and have recorded nothing.
    Wrapping again replaces the settings; `torchlms.report(model)` is its report.

    Args:
        model: the module; backward may run at any time later.
        config: a Config; its fields may be given by name as well, and then win.

    Returns:
        `model` itself.

    Raises:
        TypeError, ValueError, OSError: as `offload`; the module is unchanged then.
    """
    if not isinstance(model, torch.nn.Module):
        raise TypeError(f"torchlms.wrap: expected a torch.nn.Module, got {type(model).__name__}")
    scope = ModuleScope(combine("wrap", config, fields))
    # Bad settings are told here, not in the first forward.
    sessions.get(*resolve(scope.config, devices.of_module(model)))
    unwrap(model)
    scope.attach(model)
    return model


def unwrap(model: M) -> M:
    """Takes `wrap` back; a module that is not wrapped is left as it is. Returns `model`."""
    scope = scope_of(model)
    if scope is not None:
        scope.detach(model)
    return model
