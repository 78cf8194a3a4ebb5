// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <charconv>
#include <cmath>
#include <concepts>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

namespace torchlms {

// Writes one JSON value into a string: calls nest as the value does, commas are put where they belong.
// Numbers are as short as reads back exactly; not finite ones become null. Thread-safety: none.
class JsonWriter {
 public:
  JsonWriter& begin_object() {
    return open('{');
  }
  JsonWriter& end_object() {
    return close('}');
  }
  JsonWriter& begin_array() {
    return open('[');
  }
  JsonWriter& end_array() {
    return close(']');
  }

  JsonWriter& key(std::string_view name) {
    value(name);
    out_ += ':';
    return *this;
  }

  JsonWriter& value(std::string_view text) {
    separate();
    append_quoted(text);
    return *this;
  }
  template <std::same_as<bool> Flag> // no pointer converts to it
  JsonWriter& value(Flag flag) {
    separate();
    out_ += flag ? "true" : "false";
    return *this;
  }
  template <typename Number>
    requires(std::integral<Number> && !std::same_as<Number, bool>) || std::floating_point<Number>
  JsonWriter& value(Number number) {
    separate();
    if constexpr (std::floating_point<Number>) {
      if (!std::isfinite(number)) {
        out_ += "null";
        return *this;
      }
    }
    char digits[32];
    out_.append(digits, std::to_chars(digits, digits + sizeof(digits), number).ptr);
    return *this;
  }
  JsonWriter& null() {
    separate();
    out_ += "null";
    return *this;
  }
  // Fixed-width hexadecimal text: JSON numbers lose bits of 64-bit integers in most readers.
  JsonWriter& hex(uint64_t bits) {
    static constexpr char kDigits[] = "0123456789abcdef";
    char text[16];
    for (int i = 15; i >= 0; --i, bits >>= 4) {
      text[i] = kDigits[bits & 15];
    }
    return value(std::string_view(text, sizeof(text)));
  }

  template <typename T>
  JsonWriter& field(std::string_view name, T&& content) {
    return key(name).value(std::forward<T>(content));
  }

  std::string take() {
    return std::move(out_);
  }

 private:
  JsonWriter& open(char bracket) {
    separate();
    out_ += bracket;
    return *this;
  }
  JsonWriter& close(char bracket) {
    out_ += bracket;
    return *this;
  }

  void separate() {
    if (!out_.empty() && out_.back() != '{' && out_.back() != '[' && out_.back() != ':') {
      out_ += ',';
    }
  }

  void append_quoted(std::string_view text) {
    static constexpr char kDigits[] = "0123456789abcdef";
    out_ += '"';
    for (const char c : text) {
      const auto byte = static_cast<unsigned char>(c);
      if (c == '"' || c == '\\') {
        out_ += '\\';
        out_ += c;
      } else if (byte < 0x20) {
        out_ += "\\u00";
        out_ += kDigits[byte >> 4];
        out_ += kDigits[byte & 15];
      } else {
        out_ += c;
      }
    }
    out_ += '"';
  }

  std::string out_;
};

} // namespace torchlms
