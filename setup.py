# SPDX-License-Identifier: BSD-3-Clause
"""Builds libtorchlms.so and torchlms._C against the torch that is installed.

Metadata is in pyproject.toml.

Plain setuptools and the compiler, without ninja: objects are compiled in parallel into build/obj-*,
one folder per set of flags and torch, and only when one of the files they were made from is newer.

With a CUDA build of torch and CUDA's headers (in $CUDA_HOME, in the wheels that torch brings, or
beside nvcc) libtorchlms_cuda.so is built too; nothing of CUDA is linked but torch's own libraries.

Environment: CXX, CXXFLAGS, LDFLAGS, MAX_JOBS (default: what cores and free memory allow),
CUDA_HOME, TORCHLMS_CUDA (0: no GPU support, 1: an error where it cannot be built; default: where
it can be).
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import re
import runpy
import shlex
import shutil
import struct
import subprocess
import sys
import sysconfig
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import setuptools
from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.errors import CompileError, LinkError

ROOT = Path(__file__).resolve().parent
INSTALL = "pip install --no-build-isolation ."
OLDEST_TORCH = (2, 11)
OLDEST_SETUPTOOLS = 77  # the first that reads the licence as an SPDX expression
OLDEST_GCC, OLDEST_CLANG = 11, 14  # the first with the C++20 that torch's headers use
BYTES_PER_JOB = 1_500_000_000


@dataclass(frozen=True)
class Torch:
    folder: Path
    version: str  # with the local part: "2.15.0+cu132"

    cuda_include: Path | None  # of CUDA's headers; None: no GPU support is built

    @property
    def public_version(self) -> str:
        return self.version.split("+")[0]


def stop(sentence: str) -> NoReturn:
    sys.exit(f"torchlms: {sentence}")


def check_platform() -> None:
    if sys.platform == "win32":
        stop("Windows is not supported; build inside Linux: `wsl --install`")
    if sys.platform != "linux":
        name = {"darwin": "macOS"}.get(sys.platform, sys.platform)
        stop(
            f"{name} is not supported; build inside Linux: "
            "`docker run -it -v $PWD:/torchlms -w /torchlms python:3.12 bash`"
        )
    if struct.calcsize("P") != 8:
        stop(
            f"{sys.executable} is a 32-bit Python; use a 64-bit one: "
            f"`/path/to/64-bit/python -m {INSTALL}`"
        )
    if int(setuptools.__version__.split(".")[0]) < OLDEST_SETUPTOOLS:
        stop(
            f"setuptools {setuptools.__version__} is too old: "
            f"`pip install 'setuptools>={OLDEST_SETUPTOOLS},<82' && {INSTALL}`"
        )
    if not Path(sysconfig.get_paths()["include"], "Python.h").exists():
        stop(f"Python.h is missing: `apt-get install python3-dev && {INSTALL}`")


def find_torch() -> Torch:
    # Read, not imported: pip runs this file three times and importing torch takes seconds.
    spec = importlib.util.find_spec("torch")
    if spec is None or not spec.submodule_search_locations:
        stop(
            "no torch in this environment (pip's build isolation hides the installed one): "
            f"`pip install torch && {INSTALL}`"
        )
    folder = Path(spec.submodule_search_locations[0])
    about = runpy.run_path(str(folder / "version.py"))
    version = str(about["__version__"])
    if tuple(int(part) for part in version.split(".")[:2]) < OLDEST_TORCH:
        oldest = ".".join(map(str, OLDEST_TORCH))
        stop(f"torch {version} is too old: `pip install 'torch>={oldest}' && {INSTALL}`")
    return Torch(folder, version, find_cuda_headers(folder, about.get("cuda")))


def find_cuda_headers(torch_folder: Path, cuda_version: str | None) -> Path | None:
    """The folder with cuda_runtime_api.h: of $CUDA_HOME, else of the wheels beside torch,
    which fit it best, else of an installed toolkit."""
    wanted = os.environ.get("TORCHLMS_CUDA", "")
    if wanted == "0":
        return None
    homes = [os.environ["CUDA_HOME"]] if os.environ.get("CUDA_HOME") else []
    found = [Path(home, "include") for home in homes]
    found += sorted(torch_folder.parent.glob("nvidia/*/include"))
    nvcc = shutil.which("nvcc")
    found += [Path(nvcc).resolve().parents[1] / "include"] if nvcc else []
    found += [Path("/usr/local/cuda/include")]
    include = next((path for path in found if (path / "cuda_runtime_api.h").exists()), None)
    if cuda_version and include and (torch_folder / "lib/libc10_cuda.so").exists():
        return include
    if wanted == "1":
        missing = "CUDA's headers (set CUDA_HOME)" if cuda_version else "a CUDA build of torch"
        stop(f"TORCHLMS_CUDA=1 asks for GPU support, which needs {missing}")
    return None


def find_compiler() -> list[str]:
    """The C++ compiler as the start of a command line: $CXX, else g++, else clang++."""
    advice = f"`apt-get install g++-12 && CXX=g++-12 {INSTALL}`"
    names = [os.environ["CXX"]] if os.environ.get("CXX") else ["g++", "clang++"]
    commands = [shlex.split(name) for name in names]
    compiler = next((c for c in commands if shutil.which(c[0])), None)
    if compiler is None:
        stop(f"no C++ compiler ({', '.join(names)}): {advice}")
    probe = subprocess.run(
        [*compiler, "-dM", "-E", "-x", "c++", os.devnull], capture_output=True, text=True
    )
    macros = dict(re.findall(r"^#define (__clang_major__|__GNUC__) (\d+)$", probe.stdout, re.M))
    found = macros.get("__clang_major__") or macros.get("__GNUC__")
    if found is None:
        stop(f"{shlex.join(compiler)} is neither g++ nor clang++: {advice}")
    name, oldest = ("clang++", OLDEST_CLANG) if "__clang_major__" in macros else ("g++", OLDEST_GCC)
    if int(found) < oldest:
        stop(f"{shlex.join(compiler)} is {name} {found} and {name} {oldest} is needed: {advice}")
    return compiler


def default_jobs() -> int:
    """As many compilers at once as cores and free memory allow."""
    meminfo = Path("/proc/meminfo").read_text()
    available = int(re.search(r"MemAvailable:\s+(\d+) kB", meminfo)[1]) * 1024
    try:  # a container's own limit
        limit = int(Path("/sys/fs/cgroup/memory.max").read_text())
        available = min(available, limit - int(Path("/sys/fs/cgroup/memory.current").read_text()))
    except (OSError, ValueError):
        pass
    return max(1, min(len(os.sched_getaffinity(0)), available // BYTES_PER_JOB))


def list_sources() -> list[str]:
    lines = (line.strip() for line in (ROOT / "csrc/sources.txt").read_text().splitlines())
    sources = [f"csrc/{line}" for line in lines if line and line[0] not in "#["]
    return [s for s in sources if TORCH.cuda_include or not s.startswith("csrc/cuda/")]


def library_name(name: str = "torchlms") -> str:
    """The file name and soname. A wheel cannot hold the links that usually lead to it."""
    return f"lib{name}.so." + ".".join(VERSION.split(".")[:2])


class BuildExtension(build_ext):
    """Compiles and links torchlms._C, and puts beside it what is made by building: _built_for.py,
    and in lib, include and share what `find_package(TorchLMS)` finds."""

    def build_extension(self, ext: Extension) -> None:
        command = [
            *COMPILER,
            "-std=c++20",
            "-O2",
            "-DNDEBUG",  # torch's release builds set it: RecordFunction asserts without
            "-D_GLIBCXX_USE_CXX11_ABI=1",
            f'-DTORCHLMS_BUILT_FOR="{TORCH.version}"',
            "-fPIC",
            "-pthread",
            "-fvisibility=hidden",
            "-Wall",
            "-Wextra",
            "-Icsrc",
            "-Iinclude",
            "-DTORCHLMS_BUILD",
            *(f"-isystem{path}" for path in self.system_includes()),
            *shlex.split(os.environ.get("CXXFLAGS", "")),
        ]
        key = hashlib.sha256(shlex.join(command).encode()).hexdigest()[:12]
        objects = [Path("build", f"obj-{key}", s).with_suffix(".o") for s in ext.sources]
        jobs = int(os.environ.get("MAX_JOBS") or default_jobs())
        pool = ThreadPoolExecutor(jobs)
        try:
            compiled = [
                pool.submit(compile_object, command, source, output)
                for source, output in zip(ext.sources, objects, strict=True)
            ]
            for future in compiled:
                future.result()
        finally:
            pool.shutdown(cancel_futures=True)  # after a failure, what has not begun
        in_module = [o for o in objects if "csrc/python" in o.as_posix()]
        in_backend = [o for o in objects if "csrc/cuda" in o.as_posix()]
        in_library = [o for o in objects if o not in in_module + in_backend]
        # Where torch is beside torchlms, a C++ program need not know where that is.
        link(
            in_library,
            LIBRARY,
            *("-ltorch_cpu", "-lc10", f"-Wl,-soname,{LIBRARY.name}", "-Wl,--no-undefined"),
            *("-Wl,--allow-shlib-undefined", "-Wl,-rpath,$ORIGIN/../../torch/lib"),
        )
        if in_backend:
            # Not libcudart: libc10_cuda brings the one that torch was made for.
            link(
                in_backend,
                CUDA_LIBRARY,
                *(str(LIBRARY), "-lc10_cuda", "-ltorch_cpu", "-lc10"),
                *(f"-Wl,-soname,{CUDA_LIBRARY.name}", "-Wl,--allow-shlib-undefined"),
                "-Wl,-rpath,$ORIGIN:$ORIGIN/../../torch/lib",
            )
        # No rpath to torch: `import torch` has loaded its libraries before torchlms._C is.
        link(
            in_module,
            Path(self.get_ext_fullpath(ext.name)),
            *(str(LIBRARY), "-ltorch_python", "-ltorch_cpu", "-lc10", "-Wl,-rpath,$ORIGIN/lib"),
        )

    def run(self) -> None:
        super().run()
        package = Path(self.get_ext_fullpath("torchlms._C")).parent
        (package / "_built_for.py").write_text(f'TORCH_VERSION = "{TORCH.version}"\n')
        (package / "lib" / CUDA_LIBRARY.name).unlink(missing_ok=True)  # of an earlier build
        install(LIBRARY, package / "lib")
        if TORCH.cuda_include:
            install(CUDA_LIBRARY, package / "lib")
        for header in sorted(ROOT.glob("include/torchlms/*.h")):
            install(header, package / "include/torchlms")
        cmake = package / "share/cmake/TorchLMS"
        cmake.mkdir(parents=True, exist_ok=True)
        for template in sorted(ROOT.glob("cmake/TorchLMS*.cmake.in")):
            text = template.read_text()
            for name, value in self.cmake_values().items():
                text = text.replace(f"@{name}@", value)
            (cmake / template.stem).write_text(text)

    def cmake_values(self) -> dict[str, str]:
        """What the templates in cmake/ leave open. A wheel may be installed elsewhere: it does not
        say where torch was."""
        return {
            "PROJECT_VERSION": VERSION,
            "torch_version": TORCH.version,
            "library_name": library_name(),
            "torch_hint": str(TORCH.folder) if self.inplace else "",
        }

    @staticmethod
    def system_includes() -> list[Path]:
        include = TORCH.folder / "include"
        found = [
            include,
            include / "torch/csrc/api/include",
            Path(sysconfig.get_paths()["include"]),
        ]
        return [*found, TORCH.cuda_include] if TORCH.cuda_include else found


def link(objects: list[Path], output: Path, *options: str) -> None:
    output.parent.mkdir(parents=True, exist_ok=True)
    command = [
        *COMPILER,
        "-shared",
        "-pthread",
        *map(str, objects),
        f"-L{TORCH.folder / 'lib'}",
        *options,
        *shlex.split(os.environ.get("LDFLAGS", "")),
        "-o",
        str(output),
    ]
    if subprocess.run(command).returncode:
        raise LinkError(f"cannot link {output.name}: {shlex.join(command)}")


def install(file: Path, folder: Path) -> None:
    """Copies; a process that has the old file open keeps it."""
    folder.mkdir(parents=True, exist_ok=True)
    unfinished = folder / f"{file.name}.tmp"
    shutil.copy(file, unfinished)
    unfinished.replace(folder / file.name)


def compile_object(command: list[str], source: str, output: Path) -> None:
    if is_current(output, source):
        return
    output.parent.mkdir(parents=True, exist_ok=True)
    unfinished = output.with_suffix(".tmp")
    files = ["-MD", "-MF", str(output.with_suffix(".d")), "-c", source, "-o", str(unfinished)]
    print(f"compiling {source}", flush=True)
    if subprocess.run([*command, *files]).returncode:
        raise CompileError(f"cannot compile {source}: {shlex.join([*command, *files])}")
    unfinished.replace(output)


def is_current(output: Path, source: str) -> bool:
    """Whether the object is newer than its source and every header it was made from."""
    try:
        made = output.stat().st_mtime_ns
        rule = output.with_suffix(".d").read_text().replace("\\\n", " ")
        inputs = rule.split(":", 1)[1].split()
        return all(Path(path).stat().st_mtime_ns < made for path in [source, *inputs])
    except (OSError, IndexError):
        return False


check_platform()
TORCH = find_torch()
COMPILER = find_compiler()
os.chdir(ROOT)
VERSION = str(runpy.run_path("torchlms/_version.py")["__version__"])
LIBRARY = Path("build", f"lib-{TORCH.version}", library_name())
CUDA_LIBRARY = LIBRARY.with_name(library_name("torchlms_cuda"))
setup(
    ext_modules=[Extension("torchlms._C", list_sources(), language="c++")],
    cmdclass={"build_ext": BuildExtension},
    # torch promises no C++ ABI between releases, patch releases included.
    install_requires=[f"torch=={TORCH.public_version}", "tqdm>=4.60"],
)
