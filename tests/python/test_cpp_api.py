# SPDX-License-Identifier: BSD-3-Clause
"""The installed package from C++: the examples, a library in a Python process, equal plans."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

import torchlms

ROOT = Path(__file__).resolve().parents[2]
BUDGET_BYTES = 12 << 20
COSTS = {"out_bytes_per_s": 5e8, "in_bytes_per_s": 1e9, "latency_us": 50, "event_us": 400}

# The same chain as in cpp_api/plugin.cpp, trained by Python.
TRAIN_CHAIN = """
def numbers(rows, columns):
    return torch.arange(rows * columns, dtype=torch.float32).sin().view(rows, columns)

inputs = numbers(512, 256)
weights = [numbers(256, 256).mul(0.1).requires_grad_() for _ in range(12)]
lms = torchlms.offload(budget=budget, min_offload_bytes=1 << 16)

def forward():
    x = inputs
    for weight in weights:
        x = x.mm(weight).tanh()
    return x.mul(x).sum()

for step in range(4):
    with lms:
        loss = forward()
    loss.backward()
    del loss
with open(f"{folder}/gradients", "wb") as file:
    for weight in weights:
        file.write(weight.grad.numpy().tobytes())
lms.plan().save(f"{folder}/plan.json")
"""


def run(
    command: list[Any], cwd: Path | None = None, **variables: str
) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, **variables}
    words = [str(word) for word in command]
    return subprocess.run(words, cwd=cwd, env=env, capture_output=True, text=True)


def build(source: Path, folder: Path) -> Path:
    """Configures and builds a copy of the project, which must not need this repository."""
    shutil.copytree(source, folder / "source")
    options = [f"-DCMAKE_PREFIX_PATH={torchlms.cmake_prefix_path()}"]
    for command in (
        ["cmake", "-S", folder / "source", "-B", folder / "build", *options],
        ["cmake", "--build", folder / "build", "--parallel", len(os.sched_getaffinity(0))],
    ):
        result = run(command)
        assert result.returncode == 0, result.stdout + result.stderr
    return folder / "build"


def libraries_of(program: Path) -> str:
    return run(["ldd", program]).stdout


@pytest.fixture(scope="module")
def outside(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(ROOT / "tests/python/cpp_api", tmp_path_factory.mktemp("outside"))


@pytest.fixture(scope="module")
def costs(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("costs") / "costs.json"
    path.write_text(json.dumps(COSTS))
    return str(path)


def run_python(code: str) -> subprocess.CompletedProcess[str]:
    return run([sys.executable, "-c", textwrap.dedent(code)])


def train_in_plugin(outside: Path, folder: Path, imports: str) -> str:
    """What train_chain says in a Python process that did `imports`."""
    code = f"""
    import ctypes, torch
    {imports}
    train_chain = ctypes.CDLL({str(outside / "plugin.so")!r}).train_chain
    train_chain.restype = ctypes.c_char_p
    print(train_chain(ctypes.c_int64({BUDGET_BYTES}), {str(folder)!r}.encode()).decode())
    """
    result = run_python(code)
    assert result.returncode == 0, result.stderr
    return result.stdout.strip()


@pytest.fixture(scope="module")
def examples(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(ROOT / "examples/cpp", tmp_path_factory.mktemp("examples"))


def test_the_example_trains_both_models_at_two_fifths_of_plain(
    examples: Path, tmp_path: Path
) -> None:
    command = [examples / "train_images", "--batch", 32, "--steps", 3]
    result = run(command, cwd=tmp_path)
    assert result.returncode == 0, result.stdout + result.stderr
    assert result.stdout.splitlines()[-1].startswith("OK: both trained at 0.4 of plain's peak")
    assert result.stdout.count("gradients equal, bit for bit") == 2


def test_the_five_lines_train_inside_their_budget(examples: Path) -> None:
    result = run([examples / "five_lines"])
    assert result.returncode == 0, result.stderr
    budget, peak = (
        float(re.search(rf"^  {name} +([\d.]+) MiB", result.stdout, re.M)[1])  # type: ignore[index]
        for name in ("budget", "peak")
    )
    assert 0 < peak <= budget


def test_no_python_is_loaded_by_a_cpp_program(examples: Path) -> None:
    libraries = libraries_of(examples / "train_images")
    assert "libtorchlms.so" in libraries
    assert "not found" not in libraries
    assert "libpython" not in libraries
    assert "libtorch_python" not in libraries


@pytest.mark.parametrize(("policy", "kind"), [("swap", "swap"), ("recompute", "recompute")])
def test_the_same_plan_and_gradients_come_from_cpp_and_from_python(
    outside: Path, costs: str, tmp_path: Path, policy: str, kind: str
) -> None:
    results = []
    for face in ("cpp", "python"):
        folder = tmp_path / face
        folder.mkdir()
        if face == "cpp":
            command = [outside / "loader", outside / "plugin.so", BUDGET_BYTES, folder]
        else:
            head = f"import torch, torchlms\nbudget, folder = {BUDGET_BYTES}, {str(folder)!r}\n"
            command = [sys.executable, "-c", head + TRAIN_CHAIN]
        result = run(command, TORCHLMS_COSTS=costs, TORCHLMS_POLICY=policy)
        assert result.returncode == 0, result.stdout + result.stderr
        plan = json.loads((folder / "plan.json").read_text())["plan"]
        gradients = (folder / "gradients").read_bytes()
        results.append((plan["actions"], plan["swap_in_order"], gradients))
    (actions, order, gradients), (python_actions, python_order, python_gradients) = results
    assert any(action["kind"] == kind for action in actions)
    assert actions == python_actions
    assert order == python_order
    assert gradients == python_gradients


def test_a_library_in_a_python_process_uses_the_hooks_of_the_package(
    outside: Path, tmp_path: Path
) -> None:
    (tmp_path / "alone").mkdir()
    (tmp_path / "hosted").mkdir()
    alone = run([outside / "loader", outside / "plugin.so", BUDGET_BYTES, tmp_path / "alone"])
    assert alone.returncode == 0, alone.stdout + alone.stderr
    assert train_in_plugin(outside, tmp_path / "hosted", "import torchlms") == ""
    expected = (tmp_path / "alone/gradients").read_bytes()
    assert (tmp_path / "hosted/gradients").read_bytes() == expected


def test_a_python_process_without_the_package_is_told_to_import_it(
    outside: Path, tmp_path: Path
) -> None:
    answer = train_in_plugin(outside, tmp_path, "pass")
    assert answer.startswith("SetupError: ")
    assert "`import torchlms`" in answer


def test_a_library_loaded_after_the_first_backward_says_that_it_is_too_late(
    outside: Path, tmp_path: Path
) -> None:
    command = [outside / "loader", outside / "plugin.so", BUDGET_BYTES, tmp_path, "late"]
    answer = run(command).stdout
    assert answer.startswith("SetupError: ")
    assert "too late" in answer


def test_one_session_of_either_face_holds_the_device(outside: Path) -> None:
    code = f"""
    import ctypes, torch, torchlms
    lms = torchlms.offload(budget="min", min_offload_bytes=0)
    x = torch.ones(1000, requires_grad=True)
    with lms:
        loss = x.mul(x).tanh().sum()
    train_chain = ctypes.CDLL({str(outside / "plugin.so")!r}).train_chain
    train_chain.restype = ctypes.c_char_p
    print(train_chain(ctypes.c_int64({BUDGET_BYTES}), b"/nonexistent").decode())
    """
    result = run_python(code)
    assert "the device is in use by offload(budget=min" in result.stdout, result.stderr


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ('{"out_bytes_per_s": "fast"}', "needs a number"),
        ('{"speed": 3}', '"speed" is unknown'),
        ("[]", "expected {"),
        ('{"latency_us": 5} 6', "something follows"),
    ],
)
def test_a_damaged_cost_file_is_quoted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, part: str
) -> None:
    path = tmp_path / "costs.json"
    path.write_text(text)
    monkeypatch.setenv("TORCHLMS_COSTS", str(path))
    with pytest.raises(ValueError, match=re.escape(part)) as caught:
        torchlms.offload(budget=123456789)
    assert str(path) in str(caught.value)


def test_symbols_beside_the_interface_are_hidden() -> None:
    (library,) = Path(torchlms.cmake_prefix_path()).parents[1].glob("lib/libtorchlms.so.*")
    lines = run(["nm", "-D", "--defined-only", "-C", library]).stdout.splitlines()
    names = [line.split(" ", 2)[2] for line in lines]
    assert any(name.startswith("torchlms::v1::Session::") for name in names)
    for hidden in (
        "swap_by_distance",
        "SwapSchedule",
        "BlockCache",
        "HookingEngine",
        "parse_bytes",
    ):
        assert not [name for name in names if f"torchlms::{hidden}" in name]
