# SPDX-License-Identifier: BSD-3-Clause
"""The progress line: where it is shown, and what it shows."""

from __future__ import annotations

import io
import sys

import pytest
import torch

import torchlms
from torchlms.progress import ProgressLine, is_wanted


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def use_terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """Called in the test itself: pytest sets stderr anew after fixtures."""
    for name in ("RANK", "LOCAL_RANK"):
        monkeypatch.delenv(name, raising=False)
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    return terminal


def test_it_is_shown_on_a_terminal_only_unless_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    use_terminal(monkeypatch)
    assert is_wanted(None)
    assert not is_wanted(False)
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    assert not is_wanted(None)
    assert is_wanted(True)
    monkeypatch.setattr(sys, "stderr", None)
    assert not is_wanted(None)


@pytest.mark.parametrize("name", ["RANK", "LOCAL_RANK"])
def test_it_is_shown_by_rank_0_only_unless_asked_for(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    use_terminal(monkeypatch)
    monkeypatch.setenv(name, "1")
    assert not is_wanted(None)
    assert is_wanted(True)
    monkeypatch.setenv(name, "0")
    assert is_wanted(None)


def test_each_phase_has_a_line_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = use_terminal(monkeypatch)
    line = ProgressLine()
    line("recording", 5, 0)
    line("planning", 1, 2)
    line("planning", 2, 2)
    text = terminal.getvalue()
    assert text.index("torchlms: recording: 0") < text.index("torchlms: planning:   0%")


def test_a_stream_that_was_closed_does_not_fail_the_step(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = use_terminal(monkeypatch)
    line = ProgressLine()
    line("recording", 1, 10)
    terminal.close()
    line("recording", 10, 10)
    line("planning", 1, 2)


def test_recording_and_planning_are_shown_when_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    terminal = use_terminal(monkeypatch)
    lms = torchlms.offload(
        budget="min", min_offload_bytes=0, policy="swap", progress=True, link_limit="47GB/s"
    )
    weight = torch.randn(64, 64, requires_grad=True)
    for _ in range(2):
        with lms:
            loss = (weight @ weight).exp().sum()
        loss.backward()
    assert "torchlms: recording" in terminal.getvalue()
    assert "torchlms: planning" in terminal.getvalue()
