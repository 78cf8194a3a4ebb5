# SPDX-License-Identifier: BSD-3-Clause
"""Plants bugs in copies of this tree, one at a time, and counts the programs until the fuzzer finds each.

python tests/fuzz/planted.py [--programs 2000] [NAME ...]
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
COPIED = ("csrc", "include", "cmake", "torchlms", "tests/fuzz", "tests/python", "setup.py")
COPIED += ("pyproject.toml", "README.md", "LICENSE", "build")


@dataclasses.dataclass(frozen=True)
class Bug:
    """An edit of one file that makes torchlms wrong."""

    meaning: str
    file: str
    right: str
    wrong: str


BUGS = {
    "wrong version": Bug(
        "a saved tensor that was written since is handed out",
        "csrc/packed.cpp",
        "if (!version_counter_.enabled() ||",
        "if (true ||",
    ),
    "lost stride": Bug(
        "a saved tensor comes back contiguous",
        "csrc/recompute/view.cpp",
        "set_sizes_and_strides(sizes, strides, storage_offset);",
        "set_sizes_contiguous(sizes);",
    ),
    "lost offset": Bug(
        "a saved view comes back at the start of its storage",
        "csrc/recompute/view.cpp",
        "set_sizes_and_strides(sizes, strides, storage_offset);",
        "set_sizes_and_strides(sizes, strides, 0);",
    ),
    "reused address": Bug(
        "a storage at the address of one that was swapped out is taken for it",
        "csrc/tape_backward.cpp",
        "ids_.erase(slots_[id].storage._unsafe_get_target());",
        "",
    ),
    "missing wait": Bug(
        "a storage is read while its copy is still on the way",
        "csrc/swap/swap_engine.cpp",
        "while (state->residency_ != Residency::kDevice) {",
        "while (state->residency_ != Residency::kDevice && state->residency_ != Residency::kSwappingIn) {",
    ),
    "replayed random op": Bug(
        "an op that draws random numbers is run again",
        "csrc/recompute/purity.cpp",
        "replay = is_attention ? Replay::kWithoutDropout : Replay::kNever;",
        "replay = Replay::kAlways;",
    ),
    "statistics twice": Bug(
        "batch norm run again moves its statistics again",
        "csrc/recompute/op_record.cpp",
        "const uint64_t scratch = written_args(traits, args) & traits.scratch_args;",
        "const uint64_t scratch = 0;",
    ),
    "unseen write": Bug(
        "an in-place op whose old value autograd copies is not recorded",
        "csrc/hooks.cpp",
        "(frame.has_inner || fn.outputs().empty()) && !scope.tape->wrote_itself(frame)",
        "(frame.has_inner || fn.outputs().empty())",
    ),
    "shared bytes": Bug(
        "a storage that the program still holds is swapped out, and comes back as another",
        "csrc/swap/swap_engine.cpp",
        " || state.device_copy_.use_count() != 1) {",
        ") {",
    ),
    "kept handle": Bug(
        "what no graph needs any more is not freed",
        "csrc/tape_recompute.cpp",
        "if (slot.num_handles > 0 || slot.num_needs > 0) {",
        "if (slot.num_handles > 0 || slot.num_needs >= 0) {",
    ),
}


def plant(bug: Bug, folder: Path) -> None:
    """A built copy of this tree with the bug; only what it touches is compiled."""
    for name in COPIED:
        source = ROOT / name
        if source.is_dir():
            ignored = shutil.ignore_patterns("cmake*", "__pycache__") if name == "build" else None
            shutil.copytree(source, folder / name, ignore=ignored)
        else:
            shutil.copy2(source, folder / name)
    path = folder / bug.file
    text = path.read_text()
    if text.count(bug.right) != 1:
        raise SystemExit(f"{bug.file} has {text.count(bug.right)} places with {bug.right!r}, not 1")
    path.write_text(text.replace(bug.right, bug.wrong))
    command = [sys.executable, "setup.py", "--quiet", "build_ext", "--inplace"]
    subprocess.run(command, cwd=folder, check=True, stdout=subprocess.DEVNULL)


def count_programs(folder: Path, most: int) -> tuple[int | None, str]:
    """How many programs it took to find the bug, None where it was not; and the failure."""
    command = [sys.executable, "tests/fuzz/fuzz.py", "--until-failure", "--programs", str(most)]
    environment = os.environ | {"PYTHONPATH": str(folder)}
    output = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False
    ).stdout
    found = re.search(r"^seed (\d+): (.*)", output, re.MULTILINE)
    counts = re.findall(r"^(\d+) programs", output, re.MULTILINE)
    return (int(counts[-1]), found[2]) if found and counts else (None, output[-200:])


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--programs", type=int, default=2000, help="the most to run for each bug")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(BUGS)}")
    options = parser.parse_args()
    missed = 0
    for name in options.names or BUGS:
        with tempfile.TemporaryDirectory() as folder:
            plant(BUGS[name], Path(folder))
            count, failure = count_programs(Path(folder), options.programs)
        missed += count is None
        print(f"{name} ({BUGS[name].meaning}): ", end="")
        print(
            f"found after {count} programs: {failure[:160]}" if count else "NOT FOUND", flush=True
        )
    return missed > 0


if __name__ == "__main__":
    sys.exit(main())
