// SPDX-License-Identifier: BSD-3-Clause
#include "cpu/system_memory.h"

#include <algorithm>
#include <fstream>
#include <sstream>
#include <string>
#include <string_view>

namespace torchlms {

namespace fs = std::filesystem;

namespace {

// The number after `key` in a file of lines "key number ...", as meminfo and memory.stat are.
std::optional<Bytes> number_after(const fs::path& file, std::string_view key) {
  std::ifstream lines(file);
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    std::string word;
    Bytes number = 0;
    if (words >> word >> number && word == key) {
      return number;
    }
  }
  return std::nullopt;
}

// Nothing for a file that says "max" instead of a number, or is not there.
std::optional<Bytes> number_in(const fs::path& file) {
  std::ifstream in(file);
  Bytes number = 0;
  return in >> number ? std::optional<Bytes>(number) : std::nullopt;
}

Bytes meminfo_bytes(const fs::path& root, std::string_view key) {
  return number_after(root / "proc/meminfo", key).value_or(0) * 1024;
}

bool lists_memory(const std::string& comma_separated) {
  std::istringstream items(comma_separated);
  for (std::string item; std::getline(items, item, ',');) {
    if (item == "memory") {
      return true;
    }
  }
  return false;
}

// The process's path in the v2 hierarchy, or in the v1 hierarchy of the memory controller.
std::optional<std::string> cgroup_path(const fs::path& root, bool is_v2) {
  std::ifstream lines(root / "proc/self/cgroup");
  for (std::string line; std::getline(lines, line);) {
    std::istringstream fields(line); // hierarchy:controllers:path
    std::string hierarchy;
    std::string controllers;
    std::string path;
    std::getline(fields, hierarchy, ':');
    std::getline(fields, controllers, ':');
    std::getline(fields, path);
    if (is_v2 ? hierarchy == "0" && controllers.empty() : lists_memory(controllers)) {
      return path;
    }
  }
  return std::nullopt;
}

struct Mount {
  std::string root; // the cgroup that shows at the mount point: not "/" in some containers
  std::string point;
  bool is_v2;
};

std::vector<Mount> memory_mounts(const fs::path& root) {
  std::vector<Mount> mounts;
  std::ifstream lines(root / "proc/self/mountinfo");
  for (std::string line; std::getline(lines, line);) {
    const size_t dash = line.find(" - ");
    if (dash == std::string::npos) {
      continue;
    }
    std::istringstream head(line);
    std::istringstream tail(line.substr(dash + 3));
    std::string skipped;
    std::string type;
    std::string options;
    Mount mount;
    head >> skipped >> skipped >> skipped >> mount.root >> mount.point;
    tail >> type >> skipped >> options;
    mount.is_v2 = type == "cgroup2";
    if (mount.is_v2 || (type == "cgroup" && lists_memory(options))) {
      mounts.push_back(std::move(mount));
    }
  }
  return mounts;
}

} // namespace

Bytes SystemMemory::total_bytes() const {
  Bytes total = meminfo_bytes(root_, "MemTotal:");
  for (const Cgroup& cgroup : cgroups()) {
    total = std::min(total, limit_bytes(cgroup).value_or(total));
  }
  return total;
}

Bytes SystemMemory::available_bytes() const {
  Bytes available = meminfo_bytes(root_, "MemAvailable:");
  for (const Cgroup& cgroup : cgroups()) {
    available = std::min(available, head_room_bytes(cgroup).value_or(available));
  }
  return available;
}

std::vector<SystemMemory::Cgroup> SystemMemory::cgroups() const {
  std::vector<Cgroup> found;
  for (const Mount& mount : memory_mounts(root_)) {
    const auto path = cgroup_path(root_, mount.is_v2);
    if (!path) {
      continue;
    }
    fs::path below = fs::path(*path).lexically_relative(mount.root);
    if (below.empty() || *below.begin() == ".." || below == ".") {
      below.clear(); // seen from outside: only the mount point itself is known to be ours
    }
    const fs::path top = root_ / fs::path(mount.point).relative_path();
    for (; !below.empty(); below = below.parent_path()) {
      found.push_back({top / below, mount.is_v2});
    }
    found.push_back({top, mount.is_v2});
  }
  return found;
}

std::optional<Bytes> SystemMemory::limit_bytes(const Cgroup& cgroup) {
  if (!cgroup.is_v2) {
    return number_in(cgroup.folder / "memory.limit_in_bytes");
  }
  // Above memory.high a process is throttled until it crawls: to us that is a limit.
  const auto high = number_in(cgroup.folder / "memory.high");
  const auto max = number_in(cgroup.folder / "memory.max");
  return high && max ? std::min(*high, *max) : (high ? high : max);
}

std::optional<Bytes> SystemMemory::head_room_bytes(const Cgroup& cgroup) {
  const auto limit = limit_bytes(cgroup);
  const auto used = number_in(cgroup.folder / (cgroup.is_v2 ? "memory.current" : "memory.usage_in_bytes"));
  if (!limit || !used) {
    return std::nullopt;
  }
  const Bytes droppable =
      number_after(cgroup.folder / "memory.stat", cgroup.is_v2 ? "inactive_file" : "total_inactive_file")
          .value_or(0);
  return std::max<Bytes>(0, *limit - *used + droppable);
}

} // namespace torchlms
