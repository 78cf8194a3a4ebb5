// SPDX-License-Identifier: BSD-3-Clause
#include "cpp_api/public_report.h"

#include <iomanip>
#include <ostream>
#include <sstream>

#include "human.h"

namespace torchlms {

namespace {

v1::Report::Link public_link(const Report::LinkUse& use) {
  return {use.bytes, use.busy_us, use.bandwidth_bytes_per_s, use.late, use.wait_us_p50, use.wait_us_p99};
}

std::string milliseconds(double us) {
  std::ostringstream text;
  text << std::fixed << std::setprecision(1) << us / 1e3 << " ms";
  return text.str();
}

// Rows of a table: what it is, the figure, a remark.
class Rows {
 public:
  explicit Rows(std::ostream& out) : out_(out) {}

  void add(const std::string& label, const std::string& figure, const std::string& remark = "") {
    std::ostringstream line;
    line << "\n  " << std::left << std::setw(24) << label << "  " << std::right << std::setw(12) << figure;
    if (!remark.empty()) {
      line << "  " << remark;
    }
    out_ << line.str();
  }
  void bytes(const std::string& label, int64_t size, const std::string& remark = "") {
    add(label, human_bytes(size), remark);
  }

 private:
  std::ostream& out_;
};

void add_link(Rows& rows, const char* label, const v1::Report::Link& link) {
  rows.bytes(
      label,
      link.bytes,
      human_bytes(static_cast<Bytes>(link.bandwidth_bytes_per_s)) + "/s, busy " + milliseconds(link.busy_us) +
          ", " + std::to_string(link.late) + " late");
}

} // namespace

v1::Report public_report(const Report& report) {
  v1::Report copy;
  copy.step = report.step;
  copy.state = report.state;
  copy.policy = report.policy;
  copy.budget_bytes = report.budget_bytes;
  copy.peak_bytes = report.peak_bytes;
  copy.unlimited_peak_bytes = report.unlimited_peak_bytes;
  copy.predicted_peak_bytes = report.predicted_peak_bytes;
  copy.predicted_step_us = report.predicted_step_us;
  copy.measured_step_us = report.measured_step_us;
  copy.lower_bound_us = report.lower_bound_us;
  copy.floor_bytes = report.floor_bytes;
  copy.floor_op = report.floor_op;
  copy.saved_bytes = report.saved_bytes;
  copy.kept_bytes = report.kept_bytes;
  copy.swapped_bytes = report.swapped_bytes;
  copy.recomputed_bytes = report.recomputed_bytes;
  copy.deduplicated_bytes = report.deduplicated_bytes;
  copy.stall_us = report.stall_us;
  copy.recompute_us = report.recompute_us;
  copy.plan_us = report.plan_us;
  copy.out = public_link(report.out);
  copy.in = public_link(report.in);
  copy.disk_bytes = report.disk_bytes;
  copy.disk_written_total_bytes = report.disk_written_total_bytes;
  copy.host_bytes = report.host_bytes;
  copy.uncounted_bytes = report.uncounted_bytes;
  copy.num_evictions = report.num_evictions;
  copy.not_planned = report.not_planned;
  return copy;
}

std::ostream& v1::operator<<(std::ostream& out, const Report& report) {
  out << "torchlms: " << report.state << ", steps so far: " << report.step << ", policy: " << report.policy;
  Rows rows(out);
  rows.add("budget", report.budget_bytes ? human_bytes(report.budget_bytes) : "min");
  rows.bytes("peak", report.peak_bytes);
  if (report.unlimited_peak_bytes) {
    rows.bytes("plain would hold", *report.unlimited_peak_bytes);
  }
  if (report.floor_bytes) {
    rows.bytes(
        "smallest possible budget", *report.floor_bytes, "reached at " + report.floor_op.value_or("?"));
  }
  if (report.uncounted_bytes) {
    rows.bytes("older storages", report.uncounted_bytes, "not made by the device's allocator");
  }
  rows.bytes("kept", report.kept_bytes);
  rows.bytes("swapped", report.swapped_bytes);
  if (report.recomputed_bytes) {
    rows.bytes("recomputed", report.recomputed_bytes);
  }
  if (report.measured_step_us) {
    const auto& predicted = report.predicted_step_us;
    rows.add(
        "step",
        milliseconds(*report.measured_step_us),
        predicted ? "predicted " + milliseconds(*predicted) : "");
  }
  rows.add("stalls", milliseconds(report.stall_us));
  rows.add("planning", milliseconds(report.plan_us), "once");
  add_link(rows, "link out", report.out);
  add_link(rows, "link in", report.in);
  rows.bytes("written to disk", report.disk_written_total_bytes, "since the session began");
  if (report.num_evictions) {
    rows.add("evictions", std::to_string(report.num_evictions), "swap-outs that no plan foresaw");
  }
  for (const auto& [reason, count] : report.not_planned) {
    rows.add("not planned: " + reason, std::to_string(count));
  }
  return out << '\n';
}

} // namespace torchlms
