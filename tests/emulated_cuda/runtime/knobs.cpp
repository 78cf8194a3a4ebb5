// SPDX-License-Identifier: BSD-3-Clause
#include "knobs.h"

#include <cstdio>
#include <cstdlib>
#include <sstream>

namespace emulated_cuda {
namespace {

[[noreturn]] void refuse(const std::string& name, const std::string& value) {
  std::fprintf(stderr, "emulated_cuda: EMULATED_CUDA_%s=%s is not understood\n", name.c_str(), value.c_str());
  std::exit(2);
}

const char* text_of(const char* name) {
  const char* value = std::getenv((std::string("EMULATED_CUDA_") + name).c_str());
  return value != nullptr && *value != '\0' ? value : nullptr;
}

template <class T>
void read(const char* name, T& into) {
  const char* text = text_of(name);
  if (text == nullptr)
    return;
  std::istringstream in(text);
  T value{};
  if (!(in >> value) || !in.eof())
    refuse(name, text);
  into = value;
}

// "cudaMalloc:7,cudaHostAlloc:2+"
std::vector<InjectedFailure> read_failures() {
  std::vector<InjectedFailure> failures;
  const char* text = text_of("FAIL");
  if (text == nullptr)
    return failures;
  std::istringstream list(text);
  for (std::string item; std::getline(list, item, ',');) {
    InjectedFailure failure;
    const auto colon = item.find(':');
    if (colon == std::string::npos)
      refuse("FAIL", text);
    failure.function = item.substr(0, colon);
    failure.lasting = item.back() == '+';
    char* end = nullptr;
    failure.first = std::strtoull(item.c_str() + colon + 1, &end, 10);
    if (failure.first == 0 || end != item.c_str() + item.size() - (failure.lasting ? 1 : 0))
      refuse("FAIL", text);
    failures.push_back(failure);
  }
  return failures;
}

Knobs from_environment() {
  Knobs knobs;
  read("BYTES", knobs.device_bytes);
  read("PINNED_BYTES", knobs.pinned_bytes);
  read("H2D_BYTES_PER_S", knobs.h2d_bytes_per_s);
  read("D2H_BYTES_PER_S", knobs.d2h_bytes_per_s);
  read("SLOWDOWN", knobs.slowdown);
  read("DEVICES", knobs.devices);
  read("SEED", knobs.seed);
  read("DELAY_US", knobs.delay_us);
  read("RACE", knobs.race);
  knobs.failures = read_failures();
  return knobs;
}

} // namespace

const Knobs& knobs() {
  static const Knobs knobs = from_environment();
  return knobs;
}

} // namespace emulated_cuda
