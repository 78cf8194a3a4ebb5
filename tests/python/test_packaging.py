# SPDX-License-Identifier: BSD-3-Clause
"""The package as users install it: what setup.py refuses, metadata, a wheel, a wrong torch."""

from __future__ import annotations

import importlib.metadata
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import torch

import torchlms
from torchlms import _build, _built_for

ROOT = Path(__file__).resolve().parents[2]
PUBLIC_TORCH = str(torch.__version__).split("+")[0]


def run_setup(patch: str = "", **environment: str) -> subprocess.CompletedProcess[str]:
    """Runs setup.py in a process of its own after `patch`, to where it refuses or prints a name."""
    code = (
        "import runpy, struct, sys, importlib.util, setuptools.command.build_ext\n"
        f"sys.argv = ['setup.py', '--name']\n{patch}\n"
        "runpy.run_path('setup.py', run_name='__main__')"
    )
    env = {**os.environ, **environment}
    command = [sys.executable, "-c", code]
    return subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=300)


def fake_compiler(folder: Path, *macros: str) -> str:
    """A compiler that prints these macros, whatever it is asked."""
    path = folder / "c++"
    path.write_text("#!/bin/sh\n" + "".join(f"echo '#define {macro}'\n" for macro in macros))
    path.chmod(0o755)
    return str(path)


def assert_refused(result: subprocess.CompletedProcess[str], *texts: str) -> None:
    """It stopped with one line, which has all of `texts` and a command in backquotes."""
    assert result.returncode == 1
    lines = result.stderr.strip().splitlines()
    assert len(lines) == 1, result.stderr
    assert lines[0].startswith("torchlms: ")
    assert lines[0].endswith("`")
    for text in texts:
        assert text in lines[0]


def test_setup_accepts_this_machine() -> None:
    result = run_setup()
    assert result.returncode == 0, result.stderr
    assert result.stdout.splitlines()[-1] == "torchlms"


@pytest.mark.parametrize(
    ("patch", "texts"),
    [
        ("sys.platform = 'darwin'", ["macOS", "docker run"]),
        ("sys.platform = 'win32'", ["Windows", "wsl --install"]),
        ("struct.calcsize = lambda code: 4", ["32-bit", "--no-build-isolation"]),
        ("setuptools.__version__ = '65.5.0'", ["65.5.0", "pip install 'setuptools>=77"]),
        ("importlib.util.find_spec = lambda name: None", ["no torch", "pip install torch"]),
    ],
)
def test_setup_stops_with_one_sentence_where_it_cannot_work(patch: str, texts: list[str]) -> None:
    assert_refused(run_setup(patch), *texts)


def test_setup_refuses_a_torch_that_is_too_old(tmp_path: Path) -> None:
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch/__init__.py").touch()
    (tmp_path / "torch/version.py").write_text("__version__ = '2.3.1+cpu'\n")
    result = run_setup(f"sys.path.insert(0, {str(tmp_path)!r})")
    assert_refused(result, "torch 2.3.1+cpu is too old", "torch>=2.11")


@pytest.mark.parametrize(
    ("macros", "texts"),
    [
        (["__GNUC__ 9"], ["g++ 9", "g++ 11 is needed", "CXX="]),
        (["__GNUC__ 4", "__clang_major__ 13"], ["clang++ 13", "clang++ 14 is needed"]),
        (["_MSC_VER 1930"], ["neither g++ nor clang++"]),
    ],
)
def test_setup_refuses_the_compiler_in_cxx(
    tmp_path: Path, macros: list[str], texts: list[str]
) -> None:
    assert_refused(run_setup(CXX=fake_compiler(tmp_path, *macros)), *texts)


def test_setup_accepts_the_oldest_compilers_in_cxx(tmp_path: Path) -> None:
    for macros in (["__GNUC__ 11"], ["__GNUC__ 4", "__clang_major__ 14"]):
        result = run_setup(CXX=fake_compiler(tmp_path, *macros))
        assert result.returncode == 0, result.stderr


def test_setup_refuses_a_missing_compiler() -> None:
    assert_refused(run_setup(CXX="no-such-compiler"), "no C++ compiler", "no-such-compiler")


def test_version_is_that_of_the_distribution() -> None:
    assert torchlms.__version__ == importlib.metadata.version("torchlms")


def test_metadata_require_the_torch_built_for_and_name_the_licence() -> None:
    requirements = importlib.metadata.requires("torchlms")
    assert requirements is not None
    assert f"torch=={PUBLIC_TORCH}" in requirements
    assert importlib.metadata.metadata("torchlms")["License-Expression"] == "BSD-3-Clause"


def test_check_passes_for_another_build_of_the_same_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_built_for, "TORCH_VERSION", f"{PUBLIC_TORCH}+other")
    _build.check()


def test_check_names_both_torches_and_how_to_reinstall(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "__version__", "9.8.7+cu999")
    with pytest.raises(ImportError) as caught:
        _build.check()
    text = str(caught.value)
    assert f"built for torch {_built_for.TORCH_VERSION}" in text
    assert "torch 9.8.7+cu999 is installed" in text
    assert "pip install --no-build-isolation --force-reinstall --no-deps" in text


def test_check_says_that_a_source_folder_was_not_built(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torchlms._built_for", None)
    with pytest.raises(ImportError, match="was not built"):
        _build.check()


def import_torchlms(folder: Path) -> subprocess.CompletedProcess[str]:
    """Imports torchlms in a new process, with `folder` before everything installed."""
    env = {**os.environ, "PYTHONPATH": str(folder)}
    command = [sys.executable, "-c", "import torchlms"]
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=300)


def test_import_under_another_torch_explains_instead_of_an_undefined_symbol(tmp_path: Path) -> None:
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch/__init__.py").write_text("__version__ = '9.8.7'\n")
    result = import_torchlms(tmp_path)
    assert result.returncode != 0
    last = result.stderr.strip().splitlines()[-1]
    assert last.startswith("ImportError: torchlms was built for torch")
    assert "torch 9.8.7 is installed" in last


def test_import_without_torch_names_the_torch_to_install(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("raise ModuleNotFoundError('no torch', name='torch')\n")
    result = import_torchlms(tmp_path)
    last = result.stderr.strip().splitlines()[-1]
    assert f"pip install torch=={PUBLIC_TORCH}" in last


def test_wheel_holds_the_package_its_types_and_nothing_else(tmp_path: Path) -> None:
    options = ["--no-build-isolation", "--no-deps", "--quiet", "--wheel-dir", str(tmp_path)]
    subprocess.run([sys.executable, "-m", "pip", "wheel", *options, "."], cwd=ROOT, check=True)
    (wheel,) = tmp_path.glob("torchlms-*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    package = {name for name in names if name.startswith("torchlms/")}
    assert {"torchlms/__init__.py", "torchlms/_built_for.py", "torchlms/py.typed"} <= package
    assert any(name.startswith("torchlms/_C.") and name.endswith(".so") for name in package)
    assert "torchlms/_C.pyi" in package
    rest = {name.split("/")[0] for name in set(names) - package}
    assert rest == {f"torchlms-{torchlms.__version__}.dist-info"}


def test_source_list_names_every_source_once() -> None:
    lines = (ROOT / "csrc/sources.txt").read_text().splitlines()
    listed = [line for line in lines if line and line[0] not in "#["]
    folder = ROOT / "csrc"
    present = {path.relative_to(folder).as_posix() for path in folder.rglob("*.cpp")}
    assert len(listed) == len(set(listed))
    assert set(listed) == present


def test_every_source_starts_with_the_licence_line() -> None:
    folders = ["csrc", "torchlms", "tests", "examples", "benchmarks"]
    files = [ROOT / "setup.py", *(f for name in folders for f in (ROOT / name).rglob("*"))]
    sources = [f for f in files if f.suffix in {".h", ".cpp", ".py", ".pyi"}]
    bare = [
        str(f.relative_to(ROOT))
        for f in sources
        if f.name != "_built_for.py"
        and "cases" not in f.parts
        and "SPDX-License-Identifier: BSD-3-Clause" not in "".join(f.read_text().splitlines()[:2])
    ]
    assert not bare
