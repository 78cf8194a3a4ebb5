// SPDX-License-Identifier: BSD-3-Clause
#include "cpp_api/quantity.h"

#include <cctype>
#include <charconv>
#include <cmath>
#include <string>

namespace torchlms {

namespace {

std::string_view trimmed(std::string_view text) {
  const auto first = text.find_first_not_of(" \t\n");
  return first == std::string_view::npos ? std::string_view()
                                         : text.substr(first, text.find_last_not_of(" \t\n") - first + 1);
}

// Bytes of "KiB", "mb", "B".
std::optional<double> unit_bytes(std::string_view text) {
  std::string unit;
  for (const char c : text) {
    unit += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  }
  if (unit == "b") {
    return 1;
  }
  constexpr std::string_view kPrefixes = "kmgt";
  const auto power = unit.empty() ? std::string_view::npos : kPrefixes.find(unit[0]);
  if (power == std::string_view::npos || (unit.substr(1) != "b" && unit.substr(1) != "ib")) {
    return std::nullopt;
  }
  return std::pow(unit.size() == 3 ? 1024.0 : 1000.0, static_cast<double>(power + 1));
}

} // namespace

std::optional<double> parse_number(std::string_view text) {
  text = trimmed(text);
  double number = 0;
  const auto result = std::from_chars(text.data(), text.data() + text.size(), number);
  const bool is_whole = result.ec == std::errc() && result.ptr == text.data() + text.size();
  return is_whole && std::isfinite(number) ? std::optional(number) : std::nullopt;
}

std::optional<double> parse_bytes(std::string_view text) {
  text = trimmed(text);
  const auto end = text.find_first_not_of("0123456789.");
  if (end == 0 || end == std::string_view::npos) {
    return std::nullopt;
  }
  const auto number = parse_number(text.substr(0, end));
  const auto unit = unit_bytes(trimmed(text.substr(end)));
  return number && unit ? std::optional(std::round(*number * *unit)) : std::nullopt;
}

std::optional<double> parse_rate(std::string_view text) {
  const auto slash = text.rfind('/');
  if (slash == std::string_view::npos) {
    return std::nullopt;
  }
  const std::string_view second = trimmed(text.substr(slash + 1));
  return second == "s" || second == "S" ? parse_bytes(text.substr(0, slash)) : std::nullopt;
}

} // namespace torchlms
