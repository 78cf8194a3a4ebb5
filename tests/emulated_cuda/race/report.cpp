// SPDX-License-Identifier: BSD-3-Clause
#include "report.h"

#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <set>
#include <vector>

#include "runtime/counters.h"

namespace emulated_cuda::race {
namespace {

constexpr size_t kMostPrinted = 40;

std::mutex mutex;

std::vector<std::string>& texts() {
  static auto& all = *new std::vector<std::string>;
  return all;
}

std::set<std::string>& seen() {
  static auto& all = *new std::set<std::string>;
  return all;
}

// A process that raced does not succeed.
void end_with_races() {
  const uint64_t races = counters().races;
  if (races == 0)
    return;
  std::fprintf(stderr, "emulated_cuda: %llu races\n", static_cast<unsigned long long>(races));
  std::fflush(nullptr);
  _exit(86);
}

} // namespace

void report(const Finding& finding) {
  std::lock_guard lock(mutex);
  if (counters().races++ == 0)
    std::atexit(end_with_races);
  const std::string key = finding.what.substr(0, finding.what.find(" ["));
  if (!seen().insert(key).second || texts().size() >= kMostPrinted)
    return;
  std::string text = "emulated_cuda: RACE: " + finding.what + "\n";
  if (finding.now)
    text += "    now:\n" + describe(*finding.now) + (finding.now->python.empty() ? python_stack() : "");
  if (finding.before)
    text += "    before:\n" + describe(*finding.before);
  std::fputs(text.c_str(), stderr);
  texts().push_back(std::move(text));
}

} // namespace emulated_cuda::race

// The i-th report since the last emulated_cuda_forget_races(), or null.
extern "C" __attribute__((visibility("default"))) const char* emulated_cuda_race_text(uint64_t i) {
  using namespace emulated_cuda::race;
  std::lock_guard lock(mutex);
  return i < texts().size() ? texts()[i].c_str() : nullptr;
}

// A test that provoked races is done with them.
extern "C" __attribute__((visibility("default"))) void emulated_cuda_forget_races() {
  using namespace emulated_cuda;
  std::lock_guard lock(race::mutex);
  counters().races = 0;
  race::texts().clear();
  race::seen().clear();
}
