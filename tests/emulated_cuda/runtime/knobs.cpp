// SPDX-License-Identifier: BSD-3-Clause
#include "knobs.h"

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <sstream>

namespace emulated_cuda {
namespace {

template <class T>
bool read(const std::string& text, T& into) {
  std::istringstream in(text);
  T value{};
  if (!(in >> value) || !in.eof())
    return false;
  into = value;
  return true;
}

// "cudaMalloc:7,cudaHostAlloc:2+"
bool read(const std::string& text, std::vector<InjectedFailure>& into) {
  std::vector<InjectedFailure> failures;
  std::istringstream list(text);
  for (std::string item; std::getline(list, item, ',');) {
    InjectedFailure failure;
    failure.lasting = item.back() == '+';
    if (failure.lasting)
      item.pop_back();
    const auto colon = item.find(':');
    if (colon == std::string::npos || !read(item.substr(colon + 1), failure.first) || failure.first == 0)
      return false;
    failure.function = item.substr(0, colon);
    failures.push_back(failure);
  }
  into = failures;
  return true;
}

// Those that can change while the device runs.
bool change(Knobs& knobs, const std::string& name, const std::string& text) {
  if (name == "BYTES")
    return read(text, knobs.device_bytes);
  if (name == "PINNED_BYTES")
    return read(text, knobs.pinned_bytes);
  if (name == "H2D_BYTES_PER_S")
    return read(text, knobs.h2d_bytes_per_s);
  if (name == "D2H_BYTES_PER_S")
    return read(text, knobs.d2h_bytes_per_s);
  if (name == "SLOWDOWN")
    return read(text, knobs.slowdown);
  if (name == "FLOPS_PER_S")
    return read(text, knobs.flops_per_s);
  if (name == "MEMORY_BYTES_PER_S")
    return read(text, knobs.memory_bytes_per_s);
  if (name == "COMPUTE")
    return read(text, knobs.compute);
  if (name == "DELAY_US")
    return read(text, knobs.delay_us);
  if (name == "SEED") {
    knobs.seed_version++;
    return read(text, knobs.seed);
  }
  if (name == "FAIL") {
    knobs.failures_version++;
    return read(text, knobs.failures);
  }
  return false;
}

bool set(Knobs& knobs, const std::string& name, const std::string& text) {
  if (name == "DEVICES")
    return read(text, knobs.devices) && knobs.devices > 0;
  if (name == "RACE")
    return read(text, knobs.race);
  return change(knobs, name, text);
}

Knobs from_environment() {
  Knobs knobs;
  for (const char* name :
       {"BYTES",
        "PINNED_BYTES",
        "H2D_BYTES_PER_S",
        "D2H_BYTES_PER_S",
        "SLOWDOWN",
        "FLOPS_PER_S",
        "MEMORY_BYTES_PER_S",
        "COMPUTE",
        "DEVICES",
        "SEED",
        "DELAY_US",
        "RACE",
        "FAIL"}) {
    const char* text = std::getenv((std::string("EMULATED_CUDA_") + name).c_str());
    if (text == nullptr || *text == '\0' || set(knobs, name, text))
      continue;
    std::fprintf(stderr, "emulated_cuda: EMULATED_CUDA_%s=%s is not understood\n", name, text);
    std::_Exit(2);
  }
  return knobs;
}

// Replaced as a whole, and what was is never freed, for a thread may still read it.
std::atomic<const Knobs*>& current() {
  static std::atomic<const Knobs*> current{new Knobs(from_environment())};
  return current;
}

} // namespace

const Knobs& knobs() {
  return *current().load();
}

} // namespace emulated_cuda

// Changes a knob while the device runs; 0 if there is no such knob or value.
extern "C" __attribute__((visibility("default"))) int emulated_cuda_set(const char* name, const char* text) {
  using namespace emulated_cuda;
  static std::mutex mutex;
  std::lock_guard lock(mutex);
  auto* changed = new Knobs(knobs());
  if (!change(*changed, name, text)) {
    delete changed;
    return 0;
  }
  current() = changed;
  return 1;
}
