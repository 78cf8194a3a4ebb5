// SPDX-License-Identifier: BSD-3-Clause
#include "detector.h"

#include <cstdio>
#include <mutex>

#include "page_guard.h"
#include "report.h"
#include "runtime/knobs.h"
#include "shadow.h"

namespace emulated_cuda::race {
namespace {

struct State {
  std::mutex mutex;
  std::vector<VectorClock> streams;
  VectorClock host;
  Shadow shadow;
  PageGuard guard;
  std::vector<Finding> findings; // to be printed with the mutex released
};

State& state() {
  static auto& state = *new State;
  return state;
}

VectorClock& clock_ref(uint64_t stream) {
  auto& streams = state().streams;
  if (streams.size() <= stream)
    streams.resize(stream + 1);
  return streams[stream];
}

std::string of_stream(const Site& site) {
  return site.work + " on stream " + std::to_string(site.stream);
}

std::string range_text(const char* begin, uint64_t bytes) {
  char text[64];
  std::snprintf(text, sizeof text, " [%llu bytes at %p]", static_cast<unsigned long long>(bytes), begin);
  return text;
}

// One piece of work while its accesses are looked at.
struct Examination {
  const VectorClock& clock;
  Moment now;
  bool replayed = false;
  const char* begin = nullptr;
  uint64_t bytes = 0;

  void found(const std::string& what, const Moment& before) {
    state().findings.push_back({what + range_text(begin, bytes), now.site, before.site});
  }

  bool unordered(const Moment& before) const {
    return before.site && at(clock, before.stream) < before.count;
  }

  void conflict(const char* does, const char* did, const Moment& before) {
    std::string what = of_stream(*now.site) + " " + does + " bytes that " + of_stream(*before.site) + " " +
        did + ", and nothing orders the two";
    if (before.before_reuse)
      what += "; the caching allocator gave the block away in between";
    found(what, before);
  }

  void read(Cell& cell, bool copies) {
    if (unordered(cell.write))
      conflict("reads", "writes", cell.write);
    if (cell.content == Content::kFreed && !replayed)
      found(of_stream(*now.site) + " reads freed memory", cell.write);
    else if (cell.content == Content::kUnwritten && !copies)
      found(of_stream(*now.site) + " reads memory that nothing was written to", {});
    for (auto& read : cell.reads)
      if (read.stream == now.stream) {
        read = now;
        return;
      }
    cell.reads.push_back(now);
  }

  void write(Cell& cell) {
    if (unordered(cell.write))
      conflict("writes", "writes", cell.write);
    for (const auto& read : cell.reads)
      if (unordered(read))
        conflict("writes", "reads", read);
    if (cell.content == Content::kFreed && !replayed)
      found(of_stream(*now.site) + " writes freed memory", cell.write);
  }
};

// Copies hand on what was never written as what was never written: a block may be copied whole.
bool only_copies(const Work& work) {
  return !work.compute || work.name.starts_with("aten::copy_") || work.name.starts_with("aten::clone");
}

void hand_on_unwritten(const Work& work) {
  if (work.compute || work.accesses.size() != 2)
    return;
  const auto& from = work.accesses[0];
  const auto& to = work.accesses[1];
  std::vector<std::pair<uint64_t, uint64_t>> ranges;
  state().shadow.each(from.begin, from.bytes, [&](const char* at, Cell& cell) {
    if (cell.content == Content::kUnwritten)
      ranges.emplace_back(at - from.begin, cell.end - at);
  });
  for (const auto& [offset, bytes] : ranges)
    state().shadow.each(
        to.begin + offset, bytes, [](const char*, Cell& cell) { cell.content = Content::kUnwritten; });
}

void examine(const Work& work, Examination& examination) {
  auto& shadow = state().shadow;
  for (const auto& access : work.accesses) {
    if (access.write)
      continue;
    examination.begin = access.begin;
    examination.bytes = access.bytes;
    shadow.each(access.begin, access.bytes, [&](const char*, Cell& cell) {
      examination.read(cell, only_copies(work));
    });
    state().guard.device_access(access, examination.now);
  }
  for (const auto& access : work.accesses) {
    if (!access.write)
      continue;
    examination.begin = access.begin;
    examination.bytes = access.bytes;
    shadow.each(access.begin, access.bytes, [&](const char*, Cell& cell) { examination.write(cell); });
    Cell cell;
    cell.write = examination.now;
    cell.content = Content::kWritten;
    shadow.replace(access.begin, access.bytes, std::move(cell));
    state().guard.device_access(access, examination.now);
  }
  hand_on_unwritten(work);
}

void print_findings() {
  std::vector<Finding> findings;
  {
    std::lock_guard lock(state().mutex);
    findings.swap(state().findings);
  }
  for (const auto& finding : findings)
    report(finding);
}

bool host_touched(char* address, bool write) {
  Finding finding;
  {
    std::lock_guard lock(state().mutex);
    if (!state().guard.covers(address))
      return false;
    const auto early = state().guard.host_access(address, write);
    if (!early)
      return true;
    finding.what = std::string("the host ") + (write ? "writes" : "reads") + " pinned memory that " +
        of_stream(*early->site) + " uses, before it waited for that" + range_text(address, 1);
    finding.before = early->site;
  }
  finding.now = site_here("the host", 0);
  report(finding);
  return true;
}

} // namespace

VectorClock queued(uint64_t stream, const Work& work) {
  if (!knobs().race)
    return {};
  VectorClock clock;
  auto site = work.accesses.empty() ? nullptr : site_here(work.name, stream);
  {
    std::lock_guard lock(state().mutex);
    auto& mine = clock_ref(stream);
    join(mine, state().host);
    if (mine.size() <= stream)
      mine.resize(stream + 1, 0);
    mine[stream]++;
    clock = mine;
    if (!work.accesses.empty()) {
      Examination examination{clock, {stream, clock[stream], std::move(site), false}, work.replayed};
      examine(work, examination);
    }
  }
  print_findings();
  return clock;
}

void ordered_after(uint64_t stream, const VectorClock& clock) {
  if (!knobs().race)
    return;
  std::lock_guard lock(state().mutex);
  join(clock_ref(stream), clock);
}

void host_knows(const VectorClock& clock) {
  if (!knobs().race)
    return;
  std::lock_guard lock(state().mutex);
  join(state().host, clock);
  state().guard.host_knows(state().host);
}

void host_knows_stream(uint64_t stream) {
  if (!knobs().race)
    return;
  std::lock_guard lock(state().mutex);
  join(state().host, clock_ref(stream));
  state().guard.host_knows(state().host);
}

VectorClock clock_of(uint64_t stream) {
  if (!knobs().race)
    return {};
  std::lock_guard lock(state().mutex);
  return clock_ref(stream);
}

void block_allocated(const char* begin, uint64_t bytes) {
  if (!knobs().race || bytes == 0)
    return;
  std::lock_guard lock(state().mutex);
  state().shadow.each(begin, bytes, [](const char*, Cell& cell) {
    cell.content = Content::kUnwritten;
    cell.write.before_reuse = true;
    for (auto& read : cell.reads)
      read.before_reuse = true;
  });
}

void block_freed(const char* begin, uint64_t bytes) {
  if (!knobs().race || bytes == 0)
    return;
  std::lock_guard lock(state().mutex);
  state().shadow.each(begin, bytes, [](const char*, Cell& cell) { cell.content = Content::kFreed; });
}

void memory_changed(const char* begin, uint64_t bytes) {
  if (!knobs().race || bytes == 0)
    return;
  std::lock_guard lock(state().mutex);
  state().shadow.forget(begin, bytes);
}

void guard_pinned(char* begin, uint64_t bytes) {
  on_fault(&host_touched);
  std::lock_guard lock(state().mutex);
  state().guard.add(begin, bytes);
}

void unguard_pinned(char* begin) {
  std::lock_guard lock(state().mutex);
  state().guard.remove(begin);
}

} // namespace emulated_cuda::race
