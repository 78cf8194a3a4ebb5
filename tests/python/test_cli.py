# SPDX-License-Identifier: BSD-3-Clause
"""`torchlms info` as a table and as JSON."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import torchlms
from torchlms.cli import main


def test_info_prints_versions_device_tier_and_bandwidths(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["info", "--disk-path", str(tmp_path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    rows = {line.split("  ")[0] or line.split()[0]: line for line in lines}
    assert rows["torchlms"].endswith(torchlms.__version__)
    assert rows["torch"].endswith(str(torch.__version__))
    assert "iB" in rows["device cpu"]
    assert str(tmp_path) in rows["tier disk"]
    assert sum("B/s" in line for line in lines) == 2


def test_info_as_json_is_in_bytes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["info", "--json", "--disk-path", str(tmp_path)]) == 0
    info = json.loads(capsys.readouterr().out)
    assert info["torch"] == str(torch.__version__)
    assert 0 < info["devices"]["cpu"]["available_bytes"] <= info["devices"]["cpu"]["total_bytes"]
    disk = info["tiers"]["disk"]
    assert disk["path"] == str(tmp_path)
    assert disk["out_bytes_per_s"] > 0
    assert disk["in_bytes_per_s"] > 0
    assert 0 < disk["budget_bytes"] <= disk["free_bytes"]
    assert not list(tmp_path.iterdir())


def test_a_folder_that_is_missing_is_one_sentence_on_stderr(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["info", "--disk-path", str(tmp_path / "missing")]) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "missing" in captured.err
    assert len(captured.err.splitlines()) == 1


def test_without_a_command_the_usage_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main([])
    assert stop.value.code == 2
    assert "info" in capsys.readouterr().err


def test_the_module_runs_as_a_program(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "torchlms", "info", "--json", "--disk-path", str(tmp_path)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    assert json.loads(result.stdout)["torchlms"] == torchlms.__version__
    assert result.stderr == ""


def test_a_reader_that_stops_reading_is_no_error() -> None:
    command = f"{sys.executable} -m torchlms info | true"
    result = subprocess.run(
        ["bash", "-o", "pipefail", "-c", command], capture_output=True, text=True, check=False
    )
    assert (result.returncode, result.stderr) == (0, "")
