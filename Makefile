# SPDX-License-Identifier: BSD-3-Clause
# make build | demo | test | test-cuda-emulated | opscan | zoo | fuzz | lint | format | wheel | bench | clean.
# Every target does its own set-up, in .venv.
#
# TORCHLMS_TORCH  the torch to install, e.g. TORCHLMS_TORCH='torch==2.11.*' (default: the newest)
# PYTHON          the Python that .venv is made with (default: python3)
# MAX_JOBS        compilers at once (default: what cores and memory allow)

PYTHON ?= python3
TORCHLMS_TORCH ?= torch
VENV := .venv
BIN := $(VENV)/bin
JOBS := $(or $(MAX_JOBS),$(shell nproc))

export PIP_DISABLE_PIP_VERSION_CHECK := 1

# Stamps. The one of torch carries what was asked for, so that another TORCHLMS_TORCH is installed.
torch_key := $(shell printf '%s' '$(TORCHLMS_TORCH)' | cksum | cut -d' ' -f1)
venv_done := $(VENV)/.venv-done
torch_done := $(VENV)/.torch-$(torch_key)-done
build_done := $(VENV)/.build-done
lint_done := $(VENV)/.lint-done
zoo_done := $(VENV)/.zoo-done
native := $(shell find csrc include -name '*.h' -o -name '*.cpp') csrc/sources.txt $(wildcard cmake/*.in)

.PHONY: build demo test test-cpp test-python test-cuda-emulated opscan zoo fuzz fuzz-planted lint format tidy wheel bench clean
.DELETE_ON_ERROR:

build: $(build_done)

$(venv_done):
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --upgrade pip 'setuptools>=77,<82'
	touch $@

$(torch_done): $(venv_done)
	$(BIN)/pip install '$(TORCHLMS_TORCH)' torchvision
	rm -f $(VENV)/.torch-*-done
	touch $@

# Editable: an edit of a Python file needs no build, and torchlms imports from any folder, this one included.
# setup.py first, since pip would hide its progress for minutes; pip then finds the objects made.
$(build_done): $(torch_done) $(native) setup.py pyproject.toml torchlms/_version.py
	$(BIN)/python setup.py --quiet build_ext --inplace
	$(BIN)/pip install --quiet --no-build-isolation --editable '.[test,examples]'
	touch $@

$(lint_done): $(build_done) pyproject.toml
	$(BIN)/pip install --quiet --no-build-isolation --editable '.[lint]'
	touch $@

$(zoo_done): $(build_done) pyproject.toml
	$(BIN)/pip install --quiet --no-build-isolation --editable '.[zoo]'
	touch $@

demo: build
	$(BIN)/python examples/demo.py

bench: build
	for script in $$(grep -l __main__ benchmarks/*.py); do $(BIN)/python $$script || exit 1; done

wheel: $(torch_done)
	rm -rf build/lib.*
	$(BIN)/pip wheel --no-build-isolation --no-deps --wheel-dir dist .

test: test-cpp test-python

# C++: all tests, then those of trace, plan, swap and the C++ API under each sanitizer.
test-cpp: build/cmake/ctest build/cmake-address/ctest build/cmake-thread/ctest

.PHONY: build/cmake/ctest build/cmake-address/ctest build/cmake-thread/ctest
build/cmake-address/ctest: sanitizer := address
build/cmake-thread/ctest: sanitizer := thread
build/cmake/ctest build/cmake-address/ctest build/cmake-thread/ctest: build/%/ctest: $(torch_done)
	cmake -S . -B build/$* -DPython_EXECUTABLE=$(CURDIR)/$(BIN)/python -DSANITIZE=$(sanitizer)
	cmake --build build/$* --parallel $(JOBS)
	ctest --test-dir build/$* --parallel $(JOBS) --output-on-failure --no-tests=error

# Two tests at once: most leave a core idle. A file's tests stay together, and share what it sets up.
at_once := -n 2 --dist loadfile

test-python: build
	$(BIN)/pytest $(at_once)

# The CUDA backend on the emulated device; SEEDS=50 for more orders of events.
test-cuda-emulated: build
	[ -e "$${CUDA_HOME:-/usr/local/cuda}/include/cuda_runtime_api.h" ] || \
	    $(BIN)/pip install --quiet "nvidia-cuda-crt==$$($(BIN)/python -c 'import torch; print(torch.version.cuda)').*"
	tests/emulated_cuda/run $(BIN)/python -m pytest $(at_once) tests/emulated_cuda tests/python/test_cuda.py
	cmake -S . -B build/cmake -DPython_EXECUTABLE=$(CURDIR)/$(BIN)/python
	cmake --build build/cmake --parallel $(JOBS) --target cuda_cuda_device_test
	PYTHON=$(BIN)/python tests/emulated_cuda/run build/cmake/tests/cpp/cuda_cuda_device_test

# All of what the tests look at a part of: PyTorch's op database (10 minutes) and public models (15).
opscan: build
	$(BIN)/python tests/cases/opscan.py swap recompute auto

zoo: $(zoo_done)
	TORCHLMS_ZOO=all $(BIN)/pytest tests/zoo

fuzz: build
	$(BIN)/python tests/fuzz/fuzz.py --programs 20000

fuzz-planted: build
	$(BIN)/python tests/fuzz/planted.py

lint: $(lint_done)
	PATH="$(CURDIR)/$(BIN):$$PATH" pre-commit run --all-files --show-diff-on-failure

format: $(lint_done)
	git ls-files '*.h' '*.cpp' | xargs $(BIN)/clang-format -i
	git ls-files '*CMakeLists.txt' '*.cmake' | xargs $(BIN)/gersemi -i
	$(BIN)/ruff format
	$(BIN)/ruff check --fix

tidy: $(lint_done)
	cmake -S . -B build/cmake -DPython_EXECUTABLE=$(CURDIR)/$(BIN)/python > /dev/null
	find csrc -name '*.cpp' | xargs -P $(JOBS) -n 1 $(BIN)/clang-tidy --quiet -p build/cmake

clean:
	rm -rf build dist $(VENV) *.egg-info torchlms/*.so torchlms/_built_for.py torchlms/include torchlms/lib torchlms/share
