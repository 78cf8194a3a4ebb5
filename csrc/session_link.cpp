// SPDX-License-Identifier: BSD-3-Clause
// What a session knows of the link between the device and the tiers below it.
#include <algorithm>

#include "session.h"
#include "swap/link_probe.h"

namespace torchlms {

namespace {

constexpr Bytes kEnoughBytes = Bytes{32} << 20; // transfers that a bandwidth can be told from

} // namespace

void Session::warn_pageable() {
  if (!warned_pageable_ && engine_->tiers().host().is_pageable()) {
    warned_pageable_ = true;
    log(30,
        "the system gave no more page-locked memory: copies go through pageable memory, more slowly; lower "
        "host_budget, or raise the limit of locked memory (ulimit -l)");
  }
}

void Session::learn_costs() {
  if (given_costs_) {
    return;
  }
  const auto update = [](const LinkStats& stats, double& bytes_per_s, bool& is_known) {
    if (stats.bytes >= kEnoughBytes && stats.busy_us > 0) {
      bytes_per_s = static_cast<double>(stats.bytes) * 1e6 / stats.busy_us;
      is_known = true;
    }
  };
  update(engine_->link().stats(Direction::kOut), costs_.out_bytes_per_s, knows_out_cost_);
  update(engine_->link().stats(Direction::kIn), costs_.in_bytes_per_s, knows_in_cost_);
}

void Session::measure_link() {
  if (given_costs_ || (knows_out_cost_ && knows_in_cost_) || options_.link_limit_bytes_per_s > 0) {
    return;
  }
  const auto learn = [this](const LinkSpeed& speed) {
    costs_.out_bytes_per_s = speed.out_bytes_per_s;
    costs_.in_bytes_per_s = speed.in_bytes_per_s;
    knows_out_cost_ = knows_in_cost_ = true;
  };
  try {
    if (const auto speed = measure_host(*engine_, kEnoughBytes)) {
      learn(*speed);
    } else if (DiskStore* disk = engine_->tiers().disk()) {
      // A file of its own: the step's disk use is reported, and its budget may be small.
      DiskStore probe(options_.disk_path, std::min(kEnoughBytes, disk->budget_bytes()));
      learn(measure_disk(probe, engine_->link(), probe.budget_bytes()));
    }
  } catch (const DiskError& error) {
    log(30, std::string("the disk's speed could not be measured, an assumed one is used: ") + error.what());
  }
  engine_->link().reset_stats();
  engine_->link().take_records();
}

} // namespace torchlms
