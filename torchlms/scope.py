# SPDX-License-Identifier: BSD-3-Clause
"""The context managers' common part: per thread, reusable, re-entrant, usable as a decorator."""

from __future__ import annotations

import abc
import functools
import inspect
import logging
import threading
import weakref
from collections.abc import Callable
from typing import ParamSpec, Self, TypeVar

import torch

from torchlms import _C, devices, sessions
from torchlms.config import Config
from torchlms.settings import resolve

_logger = logging.getLogger("torchlms")

P = ParamSpec("P")
R = TypeVar("R")


def is_traced() -> bool:
    """Whether torch.compile, torch.export, torch.jit or fake tensors only look at the program now:
    there is nothing to record or move."""
    return (
        torch.compiler.is_compiling()
        or torch._C._is_tracing()
        or torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.FAKE) is not None
    )


def is_checkpointed() -> bool:
    """Whether a non-reentrant torch.utils.checkpoint takes what is saved here and now. It runs its
    region again in backward, where it must find the same tensors saved as in forward: a scope that
    begins inside the region would hide them one time and not the other."""
    hooks = torch._C._autograd._top_saved_tensors_default_hooks(True)
    return hooks is not None and hooks[0].__module__ == "torch.utils.checkpoint"


class Scope(abc.ABC):
    """A context manager whose `_open` and `_close` come in pairs on one thread.

    One object may be entered again while it is open, and on several threads at once. Where the
    program is only traced, and in a forked child, entering does nothing.
    """

    def __init__(self) -> None:
        self._thread = threading.local()

    def _applies(self) -> bool:
        """Whether entering here and now does anything."""
        return not is_traced() and not sessions.is_forked_child()

    @abc.abstractmethod
    def _open(self) -> None: ...

    @abc.abstractmethod
    def _close(self) -> None: ...

    def __enter__(self) -> Self:
        # First, and on both sides: compilers that follow this call see a constant and nothing else.
        if torch.compiler.is_compiling():
            return self
        applies = self._applies()
        if applies:
            self._open()
        if not hasattr(self._thread, "opened"):
            self._thread.opened = []
        self._thread.opened.append(applies)
        return self

    def __exit__(self, *exception: object) -> None:
        if torch.compiler.is_compiling():
            return
        opened = getattr(self._thread, "opened", None)
        if opened and opened.pop():
            self._close()

    def __call__(self, function: Callable[P, R]) -> Callable[P, R]:
        """The function, with a scope of its own round each call.

        Raises:
            TypeError: a generator or coroutine function, whose body runs after the call returned.
        """
        if (
            inspect.isgeneratorfunction(function)
            or inspect.iscoroutinefunction(function)
            or inspect.isasyncgenfunction(function)
        ):
            raise TypeError(
                f"torchlms: cannot decorate {function.__name__}: it is a generator or coroutine "
                "function, whose body runs after the call has returned; use `with` inside it"
            )

        @functools.wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            with self:
                return function(*args, **kwargs)

        return call


class SessionScope(Scope):
    """A scope of the session that `config` means on this machine, found at first use.

    Pickled and copied as its Config only: the copy has recorded nothing.
    """

    def __init__(self, config: Config) -> None:
        super().__init__()
        self._config = config
        self._sessions: dict[str, _C.Session] = {}  # by device
        self._device: str | None = None  # of the scope that was entered last

    @property
    def config(self) -> Config:
        return self._config

    def device(self) -> str:
        """Where the tensors of a scope that is entered now would be."""
        return devices.current()

    def session(self, device: str | None = None) -> _C.Session:
        """The one for `device`, or of the scope that was entered last."""
        device = device or self._device or self.device()
        session = self._sessions.get(device)
        if session is None:
            session = sessions.get(*resolve(self._config, device))
            # Without users the session no longer insists on its budget.
            session.add_user()
            weakref.finalize(self, session.remove_user).atexit = False
            self._sessions[device] = session
        return session

    def _applies(self) -> bool:
        # Without gradients nothing is saved for a backward pass.
        if not torch.is_grad_enabled() or is_checkpointed():
            return False
        if sessions.is_forked_child():
            _warn_forked_child()
        return super()._applies()

    def _open(self) -> None:
        self._device = self.device()
        session = self.session(self._device)
        session.enter()
        sessions.use(session)
        if not hasattr(self._thread, "entered"):
            self._thread.entered = []
        self._thread.entered.append(session)

    def _close(self) -> None:
        self._thread.entered.pop().exit()

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self._config,)


@functools.cache
def _warn_forked_child() -> None:
    _logger.warning(
        "this process was forked after torchlms was imported: offload does nothing in it; "
        "start processes that train with the 'spawn' method"
    )
