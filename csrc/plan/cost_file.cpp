// SPDX-License-Identifier: BSD-3-Clause
#include "plan/cost_file.h"

#include <charconv>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <stdexcept>

namespace torchlms {

namespace {

// Reads {"name": number, ...} from left to right.
class NumbersReader {
 public:
  NumbersReader(std::string_view text, const std::string& path) : rest_(text), path_(path) {}

  template <class F>
  void read(const F& visit) {
    expect('{');
    if (next() != '}') {
      do {
        const std::string name = quoted();
        expect(':');
        visit(name, number(name));
      } while (skip(','));
    }
    expect('}');
    if (next() != '\0') {
      fail("something follows the object");
    }
  }

  [[noreturn]] void fail(const std::string& what) const {
    throw std::invalid_argument(
        "torchlms: TORCHLMS_COSTS=\"" + path_ + "\": " + what + " before \"" +
        std::string(rest_.substr(0, 30)) +
        R"(". Accepted: {"out_bytes_per_s": 1e9, "in_bytes_per_s": 1e9, "latency_us": 100, "event_us": 50})");
  }

 private:
  char next() {
    const auto first = rest_.find_first_not_of(" \t\r\n");
    rest_.remove_prefix(first == std::string_view::npos ? rest_.size() : first);
    return rest_.empty() ? '\0' : rest_.front();
  }

  bool skip(char c) {
    const bool is_there = next() == c;
    rest_.remove_prefix(is_there ? 1 : 0);
    return is_there;
  }

  void expect(char c) {
    if (!skip(c)) {
      fail(std::string("expected ") + c);
    }
  }

  std::string quoted() {
    expect('"');
    const auto end = rest_.find('"');
    if (end == std::string_view::npos) {
      fail("expected a name in quotes");
    }
    std::string name(rest_.substr(0, end));
    rest_.remove_prefix(end + 1);
    return name;
  }

  double number(const std::string& name) {
    next();
    double value = 0;
    const auto result = std::from_chars(rest_.data(), rest_.data() + rest_.size(), value);
    if (result.ec != std::errc() || !std::isfinite(value) || value < 0) {
      fail("\"" + name + "\" needs a number that is not negative");
    }
    rest_.remove_prefix(static_cast<size_t>(result.ptr - rest_.data()));
    return value;
  }

  std::string_view rest_;
  const std::string& path_;
};

} // namespace

CostFile CostFile::parse(std::string_view text, const std::string& path) {
  CostFile file;
  NumbersReader reader(text, path);
  reader.read([&](const std::string& name, double value) {
    if (name == "out_bytes_per_s" && value > 0) {
      file.costs.out_bytes_per_s = value;
    } else if (name == "in_bytes_per_s" && value > 0) {
      file.costs.in_bytes_per_s = value;
    } else if (name == "latency_us") {
      file.costs.latency_us = value;
    } else if (name == "event_us") {
      file.event_us = value;
    } else {
      reader.fail("\"" + name + "\" is unknown, or zero");
    }
  });
  return file;
}

std::optional<CostFile> CostFile::from_environment() {
  const char* path = std::getenv("TORCHLMS_COSTS");
  if (!path || !*path) {
    return std::nullopt;
  }
  std::ifstream stream(path);
  if (!stream) {
    throw std::invalid_argument(std::string("torchlms: TORCHLMS_COSTS=\"") + path + "\" cannot be read");
  }
  return parse(std::string(std::istreambuf_iterator<char>(stream), {}), path);
}

void CostFile::retime(Trace& trace) const {
  if (!event_us) {
    return;
  }
  for (Op& op : trace.ops) {
    op.duration_us = *event_us;
  }
  for (size_t i = 0; i < trace.events.size(); ++i) {
    trace.events[i].time_us = *event_us * static_cast<double>(i + 1);
  }
}

} // namespace torchlms
