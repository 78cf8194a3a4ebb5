#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-3-Clause
# First look at torchlms on a real GPU: builds, compares gradients, measures the link, times ResNet-50 and a GPT at
# budgets of 0.6 and 0.4 of plain PyTorch's memory beside plain, save_on_cpu, checkpoint and TRL's offloader, and runs
# the tests that need a GPU. Most valuable first, each part under a limit of its own, under 8 minutes in all. Needs one
# GPU, torch, a compiler, CUDA's headers; no network. Writes to $OUT (default: build/gpu_check).
#
#   [PYTHON=python3] [OUT=folder] [SIZE=tiny] [TIMES=1] benchmarks/gpu_check.sh
#
# SIZE=tiny and TIMES=20 (time limits as many times longer) try it without a GPU, on tests/emulated_cuda.
set -uo pipefail
cd "$(dirname "$0")/.." || exit 1
python=${PYTHON:-python3}
out=$(realpath -m "${OUT:-build/gpu_check}")
mkdir -p "$out"
times=${TIMES:-1}
size=(${SIZE:+--size "$SIZE"})
failed=0

part() { # NAME SECONDS COMMAND...
    local name=$1 limit=$(($2 * times)) start=$SECONDS status
    shift 2
    printf '\n=== %s (at %d s, limit %d s)\n' "$name" "$SECONDS" "$limit"
    timeout --kill-after=10 "$limit" "$@" 2>&1 | tee "$out/$name.log"
    status=${PIPESTATUS[0]}
    printf '%s\t%d\t%d\n' "$name" "$status" "$((SECONDS - start))" >> "$out/parts.tsv"
    [ "$status" -eq 0 ] || { failed=1; echo "=== $name: exit status $status"; }
}

: > "$out/parts.tsv"
nvidia-smi > "$out/nvidia-smi.txt" 2>&1 || true
part build 150 env TORCHLMS_CUDA=1 "$python" setup.py --quiet build_ext --inplace
export PYTHONPATH=$PWD${PYTHONPATH:+:$PYTHONPATH} TORCHLMS_REQUIRE_CUDA=1
part info 30 "$python" -m torchlms info --json
part exact 60 "$python" benchmarks/on_gpu/compare.py exact --out "$out/exact.json" "${size[@]}"
part link 20 "$python" benchmarks/on_gpu/compare.py link --out "$out/link.json"
part times 130 "$python" benchmarks/on_gpu/compare.py times --out "$out/times.json" "${size[@]}"
if "$python" -c 'import pytest' 2> /dev/null; then
    part tests 60 "$python" -m pytest -q -m needs_cuda tests/python
fi
printf '\n%s\n' "part	status	seconds"
cat "$out/parts.tsv"
exit "$failed"
