// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <vector>

#include "clock.h"
#include "runtime/stream.h"
#include "shadow.h"

namespace emulated_cuda::race {

// Closes pages of pinned memory to the host while a copy of the device that the host has not waited for
// writes them (and to the host's writes while one reads them), so that an early access faults.
class PageGuard {
 public:
  void add(char* begin, uint64_t bytes);
  void remove(const char* begin);
  bool covers(const char* address) const;

  void device_access(const Access& access, const Moment& moment);
  void host_knows(const VectorClock& clock);

  // The copy that the host's access to `address` is too early for, whose pages are opened; null if there
  // is none, for then only the page is shared with one.
  std::optional<Moment> host_access(char* address, bool write);

 private:
  struct Pending {
    char* begin;
    char* end;
    bool write;
    Moment moment;
  };
  struct Block {
    char* end;
    std::vector<Pending> pending;
  };
  using Blocks = std::map<char*, Block>;

  Blocks::iterator block_of(const char* address);
  void protect(const Block& block, char* begin, char* end) const;

  Blocks blocks_;
  std::set<char*> busy_; // blocks with anything pending
};

// Runs `touched` when the host touches a closed page; true means that the access may be tried again.
// Handlers that others install for the same signal come after.
void on_fault(bool (*touched)(char* address, bool write));

} // namespace emulated_cuda::race
