// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <optional>
#include <string_view>

namespace torchlms {

// Quantities as people write them: MB = 10^6 bytes, MiB = 2^20 bytes.

// "1.5 MiB", units in any case. Empty for anything else.
std::optional<double> parse_bytes(std::string_view text);
// "400MB/s". Empty for anything else.
std::optional<double> parse_rate(std::string_view text);
// "0.8", "1000". Empty for anything else, infinities and NaNs included.
std::optional<double> parse_number(std::string_view text);

} // namespace torchlms
