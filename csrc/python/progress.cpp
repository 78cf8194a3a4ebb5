// SPDX-License-Identifier: BSD-3-Clause
#include "python/progress.h"

#include <unordered_map>

namespace py = pybind11;

namespace torchlms {

namespace {

struct Line {
  py::object fn;
  int64_t num_recorded = 0;
};

std::unordered_map<const Session*, Line>& lines() {
  static auto* lines = new std::unordered_map<const Session*, Line>; // leaked: outlives the interpreter
  return *lines;
}

} // namespace

void set_progress(const Session& session, py::object fn) {
  if (fn.is_none()) {
    lines().erase(&session);
  } else {
    lines()[&session] = {std::move(fn)};
  }
}

void show_progress(const Session& session, const char* phase, int64_t done, int64_t total) {
  const auto line = lines().find(&session);
  if (line != lines().end()) {
    line->second.fn(phase, done, total);
  }
}

void count_recorded(const Session& session) {
  constexpr int64_t kEvery = 64;
  const auto line = lines().find(&session);
  if (line != lines().end() && line->second.num_recorded++ % kEvery == 0) {
    line->second.fn("recording", line->second.num_recorded, 0);
  }
}

} // namespace torchlms
