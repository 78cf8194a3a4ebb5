# SPDX-License-Identifier: BSD-3-Clause
"""The sessions of this process, shared by equal settings, so that an `offload(...)` made anew in
every iteration finds the plan of the last one."""

from __future__ import annotations

import atexit
import functools
import os
import threading
from collections import OrderedDict

import torch

from torchlms import _C
from torchlms.policy_fn import ask
from torchlms.progress import ProgressLine, is_wanted
from torchlms.settings import Settings

MAX_SESSIONS = 8

_lock = threading.Lock()
_by_settings: OrderedDict[Settings, _C.Session] = OrderedDict()
_latest: _C.Session | None = None
_is_forked_child = False


def get(settings: Settings, progress: bool | None) -> _C.Session:
    """The session with these settings, made when there is none. Thread-safe.

    Raises:
        OSError: the disk folder cannot be used.
        ValueError: a loaded plan is damaged.
    """
    with _lock:
        session = _by_settings.pop(settings, None) or _make(settings)
        _by_settings[settings] = session
        _evict()
    session.set_progress(ProgressLine() if is_wanted(progress) else None)
    return session


def _drain_backward_queue() -> None:
    """A backward that raised leaves the nodes it had queued, and what they saved, to this thread's
    next backward. Without one PyTorch would free them after the interpreter is gone, and crash."""
    if not _is_forked_child:
        with torch.enable_grad():
            torch.zeros((), requires_grad=True).backward()  # type: ignore[no-untyped-call]


atexit.register(_drain_backward_queue)


def _make(settings: Settings) -> _C.Session:
    session = _C.Session(
        device=settings.device,
        budget_bytes=settings.budget_bytes,
        policy=settings.policy,
        ask_policy=settings.policy_fn and functools.partial(ask, settings.policy_fn),
        host_budget=settings.host_budget,
        pin_memory=settings.pin_memory,
        disk_path=settings.disk_path,
        disk_budget=settings.disk_budget,
        link_limit=settings.link_limit,
        min_offload_bytes=settings.min_offload_bytes,
        verify=settings.verify,
        name=str(settings),
    )
    if settings.plan is not None:
        session.load_plan(settings.plan.trace, settings.plan.plan)
    return session


def _evict() -> None:
    excess = len(_by_settings) - MAX_SESSIONS
    for settings in list(_by_settings)[:-1]:
        if excess <= 0:
            return
        if not _by_settings[settings].is_busy():
            del _by_settings[settings]
            excess -= 1


def use(session: _C.Session) -> None:
    """Makes `session` the most recently used one."""
    global _latest
    _latest = session


def latest() -> _C.Session | None:
    return _latest


def is_forked_child() -> bool:
    """Whether this process was forked after torchlms was imported: it has no sessions."""
    return _is_forked_child


def _after_fork_in_child() -> None:
    global _is_forked_child, _lock
    _is_forked_child = True
    _lock = threading.Lock()  # another thread may have held it at the moment of the fork
    _C.abandon_scope()


os.register_at_fork(after_in_child=_after_fork_in_child)
