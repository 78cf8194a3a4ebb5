// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <filesystem>
#include <optional>
#include <utility>
#include <vector>

#include "trace/types.h"

namespace torchlms {

// How much memory this process may use, as /proc and the memory cgroups (v1 and v2) tell: the
// process's own cgroup and all above it count, the tightest wins. Read afresh at each call, since
// limits change and processes move.
//
// Thread-safe. Failure: a cgroup file that is missing or unreadable sets no limit.
class SystemMemory {
 public:
  // `root` stands in front of /proc and of the mount points; tests put a made-up system there.
  explicit SystemMemory(std::filesystem::path root = "/") : root_(std::move(root)) {}

  Bytes total_bytes() const;
  // What can be had without swapping: page cache that the kernel would drop counts as free.
  Bytes available_bytes() const;

 private:
  struct Cgroup {
    std::filesystem::path folder;
    bool is_v2;
  };

  std::vector<Cgroup> cgroups() const;
  static std::optional<Bytes> limit_bytes(const Cgroup& cgroup);
  static std::optional<Bytes> head_room_bytes(const Cgroup& cgroup);

  const std::filesystem::path root_;
};

} // namespace torchlms
