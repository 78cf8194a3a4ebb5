# SPDX-License-Identifier: BSD-3-Clause
"""Reads the #include lines of csrc and tests/cpp against the dependency rules of docs/design.md."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]

STD = r"<[a-z_]+>"
POSIX = (
    r"<(aio|dirent|dlfcn|errno|fcntl|limits|pthread|sched|signal|stdlib|string|unistd)\.h>"
    r"|<(sys|linux)/[a-z_]+\.h>"
)
EXPORT = r'"export\.h"'
C10 = r"<c10/(core|macros|util)/.+>"
ATEN = r"<ATen/(?!ATen\.h|record_function\.h).+>"
GTEST = r"<g(test|mock)/.+>"
AUTOGRAD = r"<torch/csrc/autograd/(?!python_).+>|<ATen/record_function\.h>"
PYTHON = r"<Python\.h>|<pybind11/.+>|<torch/csrc/(?!autograd/(?!python_)).+>|<torch/version\.h>"
FORBIDDEN = r"<torch/extension\.h>|<torch/all\.h>|<torch/torch\.h>|<ATen/ATen\.h>"

PLAIN = rf'"(trace|plan)/.+"|{EXPORT}|{STD}'
SWAP = rf'"swap/.+"|"trace/types\.h"|{EXPORT}|{STD}|{POSIX}|{C10}'
CPU = rf'"cpu/.+"|"swap/(device|held_counter)\.h"|"trace/types\.h"|{EXPORT}|{STD}|{POSIX}|{C10}'
CUDA = (
    rf'"cuda/.+"|"swap/(device|held_counter)\.h"|"trace/types\.h"|{EXPORT}|{STD}|{C10}'
    r"|<c10/cuda/.+>|<cuda_runtime_api\.h>|<ATen/Context\.h>"
)
RECOMPUTE = rf'"recompute/.+"|"trace/types\.h"|{EXPORT}|{STD}|{C10}|{ATEN}'
SESSION = rf'"(trace|plan|swap|recompute|cpu)/.+"|"(?!hook)\w+\.h"|{STD}|{POSIX}|{C10}|{ATEN}'
HOOKS = rf'{SESSION}|"hook(s|_frontend)\.h"|{AUTOGRAD}'
CPP_API = rf'{HOOKS}|"cpp_api/.+"|<torchlms/torchlms\.h>'
BINDINGS = rf'".+"|{STD}|{C10}|{ATEN}|{PYTHON}'

# The first row whose pattern matches says what a file may include; no row is an error.
RULES = [
    (r"csrc/trace/", rf'"trace/.+"|{EXPORT}|{STD}'),
    (r"csrc/plan/", PLAIN),
    (r"csrc/swap/", SWAP),
    (r"csrc/cpu/", CPU),
    (r"csrc/cuda/", CUDA),
    (r"csrc/recompute/thread_count\.", rf"{RECOMPUTE}|<dlfcn\.h>"),
    (r"csrc/recompute/", RECOMPUTE),
    (r"csrc/(hooks|hook_frontend)\.", HOOKS),
    (r"csrc/cpp_api/", CPP_API),
    (r"include/torchlms/", STD),
    (r"csrc/python/", BINDINGS),
    (r"csrc/\w+\.(h|cpp)", SESSION),
    (r"tests/cpp/trace/|tests/cpp/plan/", rf'{PLAIN}|{GTEST}|"\w+_trace\.h"'),
    (
        r"tests/cpp/api/",
        rf'"api/.+"|<torchlms/torchlms\.h>|{STD}|{POSIX}|{C10}|{ATEN}|{GTEST}|<torch/(?!torch\.h).+>',
    ),
    (r"tests/cpp/cuda/", rf'{CUDA}|"swap/device_contract\.h"|{GTEST}'),
    (r"tests/cpp/", rf'".+"|{STD}|{POSIX}|{C10}|{ATEN}|{GTEST}'),
]


def includes(text: str) -> list[str]:
    return re.findall(r'^\s*#\s*include\s*(<[^>]+>|"[^"]+")', text, re.M)


def violations(path: str, text: str) -> list[str]:
    """The includes in `text` that the file at `path`, relative to the root, may not have."""
    allowed = next((rule for pattern, rule in RULES if re.match(pattern, path)), None)
    if allowed is None:
        return [f"{path}: no rule for this file"]
    return [
        f"{path} includes {name}"
        for name in includes(text)
        if re.fullmatch(FORBIDDEN, name) or not re.fullmatch(allowed, name)
    ]


def sources() -> list[Path]:
    files = [f for name in ("csrc", "include", "tests/cpp") for f in (ROOT / name).rglob("*")]
    return sorted(f for f in files if f.suffix in {".h", ".cpp"})


def test_every_include_obeys_the_dependency_rules() -> None:
    files = sources()
    found = [v for f in files for v in violations(f.relative_to(ROOT).as_posix(), f.read_text())]
    assert files
    assert not found, "\n".join(found)


def test_no_build_switches_on_cuda_in_the_sources() -> None:
    found = [str(f) for f in sources() if re.search(r"#\s*if.*USE_CUDA", f.read_text())]
    assert not found


def folder_of_test(path: Path) -> list[Path]:
    return [path.parent] if path.is_relative_to(ROOT / "tests") else []


def test_includes_in_quotes_start_at_the_include_root_or_beside_a_test() -> None:
    roots = [ROOT / "csrc", ROOT / "tests/cpp"]
    missing = [
        f"{f.relative_to(ROOT)} includes {name}"
        for f in sources()
        for name in includes(f.read_text())
        if name[0] == '"'
        and not any((root / name.strip('"')).is_file() for root in [*roots, *folder_of_test(f)])
    ]
    assert not missing, "\n".join(missing)


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("csrc/trace/trace.cpp", "<c10/util/Exception.h>"),
        ("csrc/trace/trace.cpp", '"plan/plan.h"'),
        ("csrc/plan/planner.cpp", '"swap/link.h"'),
        ("csrc/swap/link.cpp", '"trace/trace.h"'),
        ("csrc/swap/link.cpp", '"cpu/cpu_device.h"'),
        ("csrc/swap/link.cpp", "<ATen/core/Tensor.h>"),
        ("csrc/cpu/cpu_device.cpp", '"swap/link.h"'),
        ("csrc/cuda/cuda_device.cpp", '"swap/swap_engine.h"'),
        ("csrc/swap/device.cpp", "<cuda_runtime_api.h>"),
        ("csrc/recompute/op_record.cpp", '"swap/swap_engine.h"'),
        ("csrc/recompute/op_record.cpp", '"trace/trace.h"'),
        ("csrc/swap/swap_engine.cpp", '"recompute/view.h"'),
        ("csrc/session.cpp", '"hooks.h"'),
        ("csrc/session.cpp", "<torch/csrc/autograd/variable.h>"),
        ("csrc/session.cpp", "<ATen/record_function.h>"),
        ("csrc/session.cpp", "<ATen/ATen.h>"),
        ("csrc/session.cpp", '"hook_frontend.h"'),
        ("csrc/trace/trace.cpp", '"cpp_api/engine.h"'),
        ("csrc/hooks.cpp", '"cpp_api/engine.h"'),
        ("csrc/hooks.cpp", "<torchlms/torchlms.h>"),
        ("csrc/cpp_api/api.cpp", "<pybind11/pybind11.h>"),
        ("csrc/cpp_api/api.cpp", '"python/errors.h"'),
        ("include/torchlms/torchlms.h", '"session.h"'),
        ("include/torchlms/torchlms.h", "<ATen/core/Tensor.h>"),
        ("tests/cpp/api/session_test.cpp", '"session.h"'),
        ("tests/cpp/api/session_test.cpp", "<torch/torch.h>"),
        ("csrc/hooks.cpp", "<Python.h>"),
        ("csrc/hooks.cpp", "<torch/csrc/autograd/python_variable.h>"),
        ("csrc/hooks.cpp", "<pybind11/pybind11.h>"),
        ("csrc/python/bindings.cpp", "<torch/extension.h>"),
        ("csrc/python/bindings.cpp", "<torch/csrc/autograd/variable.h>"),
        ("csrc/gpu/other.cpp", "<vector>"),
        ("tests/cpp/plan/planner_test.cpp", "<c10/core/Storage.h>"),
    ],
)
def test_an_include_against_the_rules_is_found(path: str, name: str) -> None:
    assert violations(path, f"#include <string>\n#include {name}\n")


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("csrc/plan/planner.cpp", '"trace/trace.h"'),
        ("csrc/swap/disk_store.cpp", "<sys/vfs.h>"),
        ("csrc/cpu/cpu_device.cpp", '"swap/device.h"'),
        ("csrc/cuda/cuda_device.cpp", "<c10/cuda/CUDAGuard.h>"),
        ("csrc/session.cpp", '"swap/swap_engine.h"'),
        ("csrc/swap/link.h", '"export.h"'),
        ("csrc/cpp_api/engine.cpp", "<torch/csrc/autograd/engine.h>"),
        ("csrc/hooks.cpp", "<torch/csrc/autograd/function.h>"),
        ("csrc/python/packed_object.cpp", "<torch/csrc/autograd/python_variable.h>"),
        ("csrc/python/bindings.cpp", '"hooks.h"'),
    ],
)
def test_an_include_within_the_rules_passes(path: str, name: str) -> None:
    assert not violations(path, f"#include {name}\n")
