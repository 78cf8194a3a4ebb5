# SPDX-License-Identifier: BSD-3-Clause
"""What users call besides wrap: offload, disabled, keep, step_boundary, trace, report."""

from __future__ import annotations

from typing import Unpack

import torch

from torchlms import _C, devices, sessions
from torchlms.config import Config, Fields, combine
from torchlms.plan_file import PlanFile, TraceFile
from torchlms.report import Report
from torchlms.scope import Scope, SessionScope, is_traced
from torchlms.wrap import scope_of


class offload(SessionScope):  # noqa: N801
    """Keeps the forward pass inside it, and its backward pass, within a memory budget.

    A context manager round the forward pass; backward may run inside or after it. One object
    serves many steps and threads, may be entered while it is open, and decorates functions. An
    object made anew with equal arguments continues with the same plan. Gradients are bit-identical
    to those without it.

    Without gradients (no_grad, inference_mode), under fake tensors, and in code that torch.compile,
    torch.export or torch.jit is tracing, entering does nothing; a compiled model is called inside
    the context instead.

    Args:
        config: a Config; its fields may be given by name as well, and then win.

    Raises:
        ValueError: a bad value, quoted with the accepted forms; at entry, an open scope, or saved
            tensors, of other settings.
        TypeError: an unknown field.
        OSError: a disk folder or plan file that cannot be used.
        BudgetError: at entry, once a step is known: the budget is below what one op needs.
    """

    def __init__(self, config: Config | None = None, /, **fields: Unpack[Fields]) -> None:
        super().__init__(combine("offload", config, fields))
        if not devices.may_become_cuda():
            self.session()  # a bad folder is told here, not in the first step

    def report(self) -> Report:
        """What the last step did."""
        return report_of(self.session())

    def trace(self) -> TraceFile:
        """The recorded step. RuntimeError before one has been recorded."""
        return trace_of(self.session())

    def plan(self) -> PlanFile:
        """The plan that is followed, with the trace it was made for. RuntimeError before one."""
        text = self.session().plan_json()
        if not text:
            raise RuntimeError("torchlms: no plan yet; run one step under offload first")
        return PlanFile(text, "the session's plan")


class disabled(Scope):  # noqa: N801
    """A region, or a decorated function, in which this thread records and moves nothing."""

    def _open(self) -> None:
        _C.disabled_enter()

    def _close(self) -> None:
        _C.disabled_exit()


def keep(tensor: torch.Tensor) -> torch.Tensor:
    """Keeps the tensor's storage on the device, in every open scope of this thread and later ones.

    Returns the tensor, whose attribute `_do_not_offload` is set.
    """
    if not isinstance(tensor, torch.Tensor):
        raise TypeError(f"torchlms.keep: expected a tensor, got {type(tensor).__name__}")
    if not is_traced():
        tensor._do_not_offload = True  # type: ignore[attr-defined]
        _C.keep(tensor)
    return tensor


def recomputable(op_name: str) -> None:
    """Says that an operator of another library is a function of its inputs.

    Run again on the same bytes it gives the same bytes, draws no random numbers, and changes
    nothing else. From the next step that is recorded on, plans may recompute what it made.

    Args:
        op_name: "ns::op", or "ns::op.overload".

    Raises:
        ValueError: not the name of an operator.
    """
    if not isinstance(op_name, str):
        raise TypeError(f"torchlms.recomputable: expected a str, got {type(op_name).__name__}")
    _C.allow_replay(op_name)


def step_boundary() -> None:
    """Ends the step of the most recently used session here: from the first call on, all passes
    between two calls are one step (gradient accumulation)."""
    session = sessions.latest()
    if session is not None:
        session.step_boundary()


def trace() -> TraceFile:
    """The recorded step of the most recently used session. RuntimeError before there is one."""
    return trace_of(_latest_session())


def report(model: torch.nn.Module | None = None) -> Report:
    """The report of a wrapped model, or of the most recently used session.

    Raises:
        ValueError: the model is not wrapped.
        RuntimeError: no session has been used yet.
    """
    if model is None:
        return report_of(_latest_session())
    scope = scope_of(model)
    if scope is None:
        raise ValueError(
            f"torchlms.report: this {type(model).__name__} is not wrapped; see torchlms.wrap"
        )
    return report_of(scope.session()) if scope.has_run() else Report.before_first_step()


def report_of(session: _C.Session) -> Report:
    return Report(session.report_json(), session.timeline_json())


def trace_of(session: _C.Session) -> TraceFile:
    text = session.trace_json()
    if not text:
        raise RuntimeError("torchlms: no step has been recorded yet; run one under offload first")
    return TraceFile(text, "the session's trace")


def _latest_session() -> _C.Session:
    session = sessions.latest()
    if session is None:
        raise RuntimeError("torchlms: nothing has run under offload or a wrapped model yet")
    return session
