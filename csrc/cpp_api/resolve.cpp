// SPDX-License-Identifier: BSD-3-Clause
#include "cpp_api/resolve.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <linux/magic.h>
#include <string>
#include <sys/vfs.h>
#include <system_error>

#include "human.h"
#include "swap/device.h"

namespace torchlms {

namespace {

constexpr double kAutoShare = 0.9;
constexpr double kDiskShare = 0.8;

int64_t processes_on_this_machine() {
  const char* text = std::getenv("LOCAL_WORLD_SIZE"); // as the launcher set it
  if (!text) {
    return 1;
  }
  const std::string number = text;
  const bool is_number =
      !number.empty() && number.size() < 10 && number.find_first_not_of("0123456789") == std::string::npos;
  if (!is_number || std::stoll(number) < 1) {
    throw std::invalid_argument(
        "torchlms: LOCAL_WORLD_SIZE=\"" + number + "\" is not a number of processes. Accepted: 1, 2, ...");
  }
  return std::stoll(number);
}

// Fixed at first use, so that a session made later has the same budget.
Bytes automatic_bytes(Device& device) {
  static const Bytes bytes = [&device] {
    const double share = kAutoShare * static_cast<double>(device.available_bytes()) /
        static_cast<double>(processes_on_this_machine());
    return std::min(device.held_bytes() + static_cast<Bytes>(share), device.total_bytes());
  }();
  return bytes;
}

bool is_in_memory(const std::string& folder) {
  struct statfs status{};
  return ::statfs(folder.c_str(), &status) == 0 &&
      (status.f_type == TMPFS_MAGIC || status.f_type == RAMFS_MAGIC);
}

std::string default_disk_path() {
  const char* temporary = std::getenv("TMPDIR");
  const std::string folder = temporary && *temporary ? temporary : "/tmp";
  return is_in_memory(folder) ? "/var/tmp" : folder;
}

Bytes default_disk_budget(const std::string& folder) {
  std::error_code error; // the disk store tells about a folder that cannot be used
  const auto free = std::filesystem::space(folder, error).available;
  return error
      ? 0
      : static_cast<Bytes>(
            kDiskShare * static_cast<double>(free) / static_cast<double>(processes_on_this_machine()));
}

Policy policy_of(v1::Policy policy) {
  switch (policy) {
    case v1::Policy::kAuto:
      return Policy::kAuto;
    case v1::Policy::kSwap:
      return Policy::kSwap;
    case v1::Policy::kRecompute:
      return Policy::kRecompute;
    case v1::Policy::kHybrid:
      return Policy::kHybrid;
    case v1::Policy::kOff:
      return Policy::kOff;
  }
  throw std::invalid_argument("torchlms: Options::policy is none of Policy's values");
}

std::string describe(const SessionOptions& options) {
  std::string text = "budget=";
  text += options.budget_bytes ? std::to_string(options.budget_bytes) + " bytes" : "min";
  text += std::string(", policy=") + to_string(options.policy);
  if (options.link_limit_bytes_per_s > 0) {
    text += ", link_limit=" + human_bytes(static_cast<Bytes>(options.link_limit_bytes_per_s)) + "/s";
  }
  text += ", disk_path=" + options.disk_path + ", disk_budget=" + human_bytes(options.disk_budget_bytes) +
      ", min_offload_bytes=" + std::to_string(options.min_offload_bytes);
  return text + (options.verify ? ", verify" : "");
}

} // namespace

// Reads what users only write.
struct v1::BudgetResolver {
  // 0: as little as possible.
  static Bytes bytes_of(const Budget& budget, Device& device) {
    switch (budget.kind_) {
      case Budget::Kind::kAutomatic:
        return automatic_bytes(device);
      case Budget::Kind::kMinimum:
        return 0;
      case Budget::Kind::kFraction:
        return std::max<Bytes>(
            1, static_cast<Bytes>(budget.share_ * static_cast<double>(device.total_bytes())));
      case Budget::Kind::kBytes:
        break;
    }
    const auto total = static_cast<uint64_t>(device.total_bytes());
    if (budget.bytes_ > total) {
      throw std::invalid_argument(
          "torchlms: budget_bytes=" + std::to_string(budget.bytes_) + " is more than the device has (" +
          std::to_string(total) + " bytes, " + human_bytes(device.total_bytes()) + ")");
    }
    return static_cast<Bytes>(budget.bytes_);
  }
};

SessionOptions resolve(const v1::Options& options) {
  if (!(options.link_limit_bytes_per_s >= 0)) {
    throw std::invalid_argument(
        "torchlms: link_limit_bytes_per_s=" + std::to_string(options.link_limit_bytes_per_s) +
        " is not a rate. Accepted: above 0, or 0 for no limit");
  }
  SessionOptions resolved;
  resolved.policy = policy_of(options.policy);
  resolved.budget_bytes = v1::BudgetResolver::bytes_of(options.budget_bytes, device_for(resolved.device));
  resolved.disk_path = options.disk_path.empty() ? default_disk_path() : options.disk_path;
  resolved.disk_budget_bytes = options.disk_budget_bytes ? static_cast<Bytes>(options.disk_budget_bytes)
                                                         : default_disk_budget(resolved.disk_path);
  resolved.link_limit_bytes_per_s = options.link_limit_bytes_per_s;
  resolved.min_offload_bytes = static_cast<Bytes>(options.min_offload_bytes);
  resolved.verify = options.verify;
  resolved.name = describe(resolved);
  return resolved;
}

} // namespace torchlms
