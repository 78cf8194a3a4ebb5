# SPDX-License-Identifier: BSD-3-Clause
"""Builds the emulated device for the torch of the running Python, what is out of date of it.

Prints the folder with libemulated_cudart.so, libcuda.so.1 and libemulated_operators.so. Needs g++ and
CUDA's headers: of CUDA_HOME, /usr/local/cuda, or NVIDIA's wheels beside torch.
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib.util
import os
import shlex
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
FLAGS = ["-std=c++20", "-O1", "-g1", "-fPIC", "-pthread", "-Wall", "-DNDEBUG"]


def torch_folder() -> Path:
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        sys.exit(f"emulated_cuda: {sys.executable} has no torch")
    folder = Path(spec.origin).parent
    if not (folder / "lib/libtorch_cuda.so").exists():
        sys.exit(f"emulated_cuda: the torch in {folder} is no CUDA build")
    return folder


def cuda_headers(torch: Path) -> Path:
    candidates = [Path(os.environ.get("CUDA_HOME", "/usr/local/cuda")) / "include"]
    candidates += sorted(torch.parent.glob("nvidia/*/include"))
    for folder in candidates:
        if (folder / "cuda_runtime_api.h").exists() and (folder / "crt/host_defines.h").exists():
            return folder
    sys.exit("emulated_cuda: no CUDA headers; set CUDA_HOME or pip install nvidia-cuda-crt")


def compiler() -> list[str]:
    command = shlex.split(os.environ.get("CXX", "g++"))
    return ["ccache", *command] if len(command) == 1 and shutil.which("ccache") else command


def changed_since(made: Path, depends: Path) -> bool:
    if not made.exists() or not depends.exists():
        return True
    names = depends.read_text().replace("\\\n", " ").split()[1:]
    age = made.stat().st_mtime
    return any(not Path(n).exists() or Path(n).stat().st_mtime > age for n in names)


def call(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{shlex.join(command)}\n{done.stdout}{done.stderr}")
    if done.stderr:
        print(done.stderr, file=sys.stderr)


def compile_all(sources: list[Path], flags: list[str], out: Path) -> list[Path]:
    def one(source: Path) -> Path:
        made = out / f"{source.parent.name}_{source.stem}.o"
        depends = made.with_suffix(".d")
        if changed_since(made, depends):
            print(f"emulated_cuda: compiling {source.relative_to(ROOT)}", file=sys.stderr)
            call(
                [
                    *compiler(),
                    *FLAGS,
                    *flags,
                    "-MD",
                    "-MF",
                    str(depends),
                    "-c",
                    str(source),
                    "-o",
                    str(made),
                ]
            )
        return made

    with ThreadPoolExecutor(int(os.environ.get("MAX_JOBS", min(4, os.cpu_count() or 1)))) as pool:
        return list(pool.map(one, sources))


def link(objects: list[Path], library: Path, flags: list[str]) -> None:
    age = library.stat().st_mtime if library.exists() else 0
    if all(o.stat().st_mtime <= age for o in objects):
        return
    fresh = library.with_suffix(".new")  # a running process keeps the old one
    call([*compiler()[-1:], "-shared", "-pthread", *map(str, objects), "-o", str(fresh), *flags])
    fresh.replace(library)


def build() -> Path:
    torch = torch_folder()
    headers = cuda_headers(torch)
    version = (torch / "version.py").read_text()
    key = hashlib.sha256(f"{torch}{version}{headers}{FLAGS}{compiler()}".encode()).hexdigest()[:12]
    out = ROOT / "build" / f"emulated-cuda-{key}"
    out.mkdir(parents=True, exist_ok=True)
    with open(out / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        runtime = sorted(f for name in ("runtime", "race") for f in (HERE / name).glob("*.cpp"))
        driver = HERE / "runtime/libcuda.cpp"
        runtime.remove(driver)
        cuda = [f"-I{HERE}", f"-isystem{headers}"]
        link(compile_all(runtime, cuda, out), out / "libemulated_cudart.so", ["-ldl"])
        link(compile_all([driver], [], out), out / "libcuda.so.1", ["-Wl,-soname,libcuda.so.1"])
        include = [f"-isystem{torch}/include", f"-isystem{torch}/include/torch/csrc/api/include"]
        abi = ["-D_GLIBCXX_USE_CXX11_ABI=1", "-DUSE_CUDA"]
        objects = compile_all(sorted((HERE / "ops").glob("*.cpp")), [*cuda, *include, *abi], out)
        lib = torch / "lib"
        libraries = [
            f"-L{lib}",
            f"-Wl,-rpath,{lib}",
            "-lc10",
            "-ltorch_cpu",
            "-lc10_cuda",
            "-ltorch_cuda",
        ]
        runtime_library = [
            "-Wl,--allow-shlib-undefined",
            f"-L{out}",
            f"-Wl,-rpath,{out}",
            "-lemulated_cudart",
        ]
        link(objects, out / "libemulated_operators.so", [*libraries, *runtime_library])
    return out


if __name__ == "__main__":
    print(build())
