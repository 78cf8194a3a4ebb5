// SPDX-License-Identifier: BSD-3-Clause
// Options as users give them: in code, and in the environment.
#include <torchlms/torchlms.h>

#include <cctype>
#include <cstdlib>
#include <limits>

#include "cpp_api/quantity.h"

namespace torchlms::v1 {

namespace {

constexpr const char* kByteForms =
    "bytes as a whole number, or with a unit (\"512MiB\", \"20 GB\"; B, KB, MB, GB, TB, KiB, MiB, GiB, TiB)";
constexpr const char* kBudgetForms =
    "bytes as a whole number, or with a unit (\"20GiB\", \"20 GB\"; B, KB, MB, GB, TB, KiB, MiB, GiB, TiB), a fraction "
    "of the device in (0, 1] with a decimal point, \"auto\", or \"min\"";

[[noreturn]] void bad_value(const char* name, const std::string& value, const char* why, const char* forms) {
  throw std::invalid_argument(
      std::string("torchlms: ") + name + "=\"" + value + "\" " + why + ". Accepted: " + forms);
}

std::string lower(std::string text) {
  for (char& c : text) {
    c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  }
  return text;
}

bool is_whole(const std::string& text) {
  return text.find_first_not_of("0123456789 ") == std::string::npos;
}

uint64_t read_bytes(const char* name, const std::string& text) {
  const auto bytes = is_whole(text) ? parse_number(text) : parse_bytes(text);
  if (!bytes || *bytes > static_cast<double>(std::numeric_limits<int64_t>::max())) {
    bad_value(name, text, "is not a number of bytes", kByteForms);
  }
  return static_cast<uint64_t>(*bytes);
}

Budget read_budget(const char* name, const std::string& text) {
  if (text == "auto") {
    return Budget::automatic();
  }
  if (text == "min") {
    return Budget::minimum();
  }
  const auto share = is_whole(text) ? std::nullopt : parse_number(text);
  if (share) {
    if (!(*share > 0 && *share <= 1)) {
      bad_value(name, text, "is not a fraction of the device", kBudgetForms);
    }
    return Budget::fraction(*share);
  }
  const auto bytes = is_whole(text) ? parse_number(text) : parse_bytes(text);
  if (!bytes || *bytes < 1 || *bytes > static_cast<double>(std::numeric_limits<int64_t>::max())) {
    bad_value(name, text, "is not a budget", kBudgetForms);
  }
  return static_cast<uint64_t>(*bytes);
}

Policy read_policy(const char* name, const std::string& text) {
  static constexpr std::pair<const char*, Policy> kPolicies[] = {
      {"auto", Policy::kAuto},
      {"swap", Policy::kSwap},
      {"recompute", Policy::kRecompute},
      {"hybrid", Policy::kHybrid},
      {"off", Policy::kOff}};
  for (const auto& [spelling, policy] : kPolicies) {
    if (text == spelling) {
      return policy;
    }
  }
  bad_value(name, text, "is not a policy", "\"auto\", \"swap\", \"recompute\", \"hybrid\", \"off\"");
}

uint64_t read_disk_budget(const char* name, const std::string& text) {
  const uint64_t bytes = read_bytes(name, text);
  if (bytes == 0) {
    bad_value(name, text, "leaves no room on the disk", kByteForms);
  }
  return bytes;
}

double read_rate(const char* name, const std::string& text) {
  const auto rate = parse_rate(text) ? parse_rate(text) : parse_number(text);
  if (!rate || *rate <= 0) {
    bad_value(
        name, text, "is not a rate", "bytes per second as a number above 0, or with a unit (\"400MB/s\")");
  }
  return *rate;
}

bool read_flag(const char* name, const std::string& text) {
  const std::string word = lower(text);
  if (word == "1" || word == "true" || word == "yes" || word == "on") {
    return true;
  }
  if (word != "0" && word != "false" && word != "no" && word != "off") {
    bad_value(name, text, "is neither true nor false", "1, true, yes, on, 0, false, no, off");
  }
  return false;
}

} // namespace

Budget Budget::automatic() {
  return {};
}

Budget Budget::minimum() {
  return {Kind::kMinimum, 0, 0};
}

Budget Budget::fraction(double share) {
  if (!(share > 0 && share <= 1)) {
    throw std::invalid_argument(
        "torchlms: Budget::fraction(" + std::to_string(share) +
        ") is not a fraction of the device: above 0, at most 1");
  }
  return {Kind::kFraction, 0, share};
}

uint64_t Budget::checked(bool is_positive, uint64_t bytes) {
  if (!is_positive) {
    throw std::invalid_argument(
        "torchlms: a budget of " + std::to_string(static_cast<int64_t>(bytes)) + " bytes is not above zero");
  }
  return bytes;
}

Options Options::from_environment() {
  Options options;
  // An empty variable is no choice; "none" is the default of a field whose default is none.
  const auto read = [](const char* name, const auto& reader, auto& field, bool may_be_none = false) {
    const char* text = std::getenv(name);
    if (text && *text && !(may_be_none && lower(text) == "none")) {
      field = reader(name, text);
    }
  };
  const auto read_path = [](const char*, const std::string& text) { return text; };
  read("TORCHLMS_BUDGET", read_budget, options.budget_bytes);
  read("TORCHLMS_POLICY", read_policy, options.policy);
  read("TORCHLMS_DISK_PATH", read_path, options.disk_path, /*may_be_none=*/true);
  read("TORCHLMS_DISK_BUDGET", read_disk_budget, options.disk_budget_bytes, /*may_be_none=*/true);
  read("TORCHLMS_LINK_LIMIT", read_rate, options.link_limit_bytes_per_s, /*may_be_none=*/true);
  read("TORCHLMS_MIN_OFFLOAD_BYTES", read_bytes, options.min_offload_bytes);
  read("TORCHLMS_VERIFY", read_flag, options.verify);
  return options;
}

} // namespace torchlms::v1
