// SPDX-License-Identifier: BSD-3-Clause
// How a tape follows a known program, and how it notices that the step is another one.
#include <algorithm>

#include "session.h"
#include "tape.h"

namespace torchlms {

bool Tape::watch() {
  const size_t index = num_started_ - 1;
  const auto matches = [&](const ProgramPtr& program) {
    return index < program->geometry().size() && program->geometry()[index] == running_geometry_;
  };
  if (matches(program_)) {
    return true;
  }
  for (const ProgramPtr& candidate : candidates_) {
    if (candidate->only_watches() && matches(candidate)) {
      program_ = candidate;
      return true;
    }
  }
  // At the very first op nothing has been missed yet: any program may still begin here.
  is_partial_ = index > 0;
  const auto other = std::find_if(candidates_.begin(), candidates_.end(), matches);
  if (!is_partial_ && other != candidates_.end()) {
    program_ = *other;
    mode_ = Mode::kFollowing;
  } else {
    leave_program("its shapes");
  }
  return false;
}

void Tape::follow(uint64_t prefix) {
  if (mode_ != Mode::kFollowing) {
    return;
  }
  const auto index = static_cast<size_t>(num_ops_ - 1);
  const auto matches = [&](const ProgramPtr& program) {
    const auto& prefixes = program->trace().prefix_signatures;
    return index < prefixes.size() && prefixes[index] == prefix;
  };
  if (matches(program_)) {
    return;
  }
  const auto other = std::find_if(candidates_.begin(), candidates_.end(), matches);
  if (other != candidates_.end()) {
    switch_to(*other);
  } else {
    leave_program(recorder_.trace().name(recorder_.trace().ops.back()).c_str());
  }
}

void Tape::switch_to(ProgramPtr program) {
  program_ = std::move(program);
  for (size_t id = 0; id < slots_.size(); ++id) {
    const auto storage = static_cast<StorageId>(id);
    if (!slots_[id].is_dead || slots_[id].num_handles == 0 || slots_[id].rebuild) {
      continue;
    }
    if (program_->swaps(storage)) {
      engine_.swap_out(slots_[id].state);
    } else if (program_->recomputes(storage)) {
      drop(storage);
    }
  }
}

void Tape::leave_program(const char* where) {
  mode_ = Mode::kReactive;
  left_program_ = true;
  session_->program_changed(where, num_ops_);
}

void Tape::collect(Program::Ids ids, States& states) const {
  for (const auto& [count, id] : ids) {
    if (id < static_cast<StorageId>(slots_.size()) && slots_[id].state) {
      states.push_back(slots_[id].state);
    }
  }
}

} // namespace torchlms
