// SPDX-License-Identifier: BSD-3-Clause
// What a session learns from the steps that have run, and the plans it makes of them.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <utility>

#include "human.h"
#include "plan/planner.h"
#include "plan/simulator.h"
#include "session.h"
#include "trace/json.h"

namespace torchlms {

namespace {

constexpr size_t kMostPrograms = 8;
constexpr Bytes kSparedPart = 4; // at most one in so many bytes of the budget is left to fragmentation

PlanPolicy plan_policy(Policy policy) {
  switch (policy) {
    case Policy::kSwap:
      return PlanPolicy::kSwap;
    case Policy::kRecompute:
      return PlanPolicy::kRecompute;
    case Policy::kHybrid:
      return PlanPolicy::kHybrid;
    case Policy::kAuto:
    case Policy::kOff:
      break;
  }
  return PlanPolicy::kAuto;
}

Report::LinkUse link_use(const LinkStats& stats) {
  Report::LinkUse use;
  use.bytes = stats.bytes;
  use.busy_us = stats.busy_us;
  use.bandwidth_bytes_per_s = stats.busy_us > 0 ? static_cast<double>(stats.bytes) * 1e6 / stats.busy_us : 0;
  use.late = stats.num_late;
  use.wait_us_p50 = stats.wait_us_p50;
  use.wait_us_p99 = stats.wait_us_p99;
  return use;
}

void add(Report::LinkUse& sum, const Report::LinkUse& use) {
  sum.bytes += use.bytes;
  sum.busy_us += use.busy_us;
  sum.bandwidth_bytes_per_s = sum.busy_us > 0 ? static_cast<double>(sum.bytes) * 1e6 / sum.busy_us : 0;
  sum.late += use.late;
  sum.wait_us_p50 = std::max(sum.wait_us_p50, use.wait_us_p50);
  sum.wait_us_p99 = std::max(sum.wait_us_p99, use.wait_us_p99);
}

} // namespace

void Session::learn_all() {
  warn_pageable();
  for (Tape::Outcome& outcome : finished_) {
    learn(outcome);
  }
  finished_.clear();
}

void Session::learn(Tape::Outcome& outcome) {
  if (outcome.device_times) {
    const DeviceTimes::Totals totals = outcome.device_times->apply(outcome.trace, outcome.memory);
    outcome.step_us = totals.step_us;
    outcome.stall_us = totals.stall_us;
    outcome.recompute_us = totals.recompute_us;
    outcome.device_times.reset(); // its events can be used again
  }
  learn_costs();
  records_next_ = !outcome.is_complete && !outcome.was_watched;
  const Feedback::Next next = note_followed(outcome);
  publish(outcome);
  if (outcome.was_watched || !outcome.is_complete) {
    return;
  }
  latest_trace_ = std::make_shared<const Trace>(outcome.trace);
  if (outcome.followed && !given_costs_ && !has_loaded_plan_) {
    note_times(outcome);
  }
  if (!outcome.followed) {
    recorded_.push_back({std::move(outcome.trace), std::move(outcome.geometry)});
    return;
  }
  outcome.trace.backward_peak_node =
      outcome.followed->trace().backward_peak_node; // named while recording only
  if (next != Feedback::Next::kStay && !has_loaded_plan_ && !given_costs_) {
    recorded_.push_back(
        {std::move(outcome.trace), std::move(outcome.geometry), next == Feedback::Next::kTryOthers});
  }
}

Feedback::Next Session::note_followed(const Tape::Outcome& outcome) {
  Feedback::Step step;
  step.took_us = outcome.step_us + outcome.stall_us + outcome.recompute_us;
  const int64_t num_evictions = engine_->stats().num_evictions;
  step.evicted = std::exchange(num_evictions_, num_evictions) < num_evictions;
  if (!outcome.followed) {
    return Feedback::Next::kStay;
  }
  remember(outcome.followed);
  if (outcome.was_watched) {
    return Feedback::Next::kStay;
  }
  Learnt& learnt = this->learnt(outcome.followed->trace());
  if (std::exchange(learnt.followed, outcome.followed) != outcome.followed) {
    learnt.predicted_us = outcome.followed->plan().predicted_step_us;
  }
  return learnt.feedback.note(outcome.followed, step);
}

// Leaves the outcome with the times of several steps, for the next plan, and says what they make of this one.
void Session::note_times(Tape::Outcome& outcome) {
  Learnt& learnt = this->learnt(outcome.followed->trace());
  learnt.times.note(outcome.trace);
  learnt.times.apply(outcome.trace);
  Trace planned = outcome.followed->trace();
  if (learnt.times.apply(planned)) {
    learnt.predicted_us = simulate(planned, outcome.followed->plan(), costs_).step_us;
  }
}

Session::Learnt& Session::learnt(const Trace& trace) {
  return learnt_.try_emplace(trace.signature(), Feedback(plan_policy(options_.policy))).first->second;
}

void Session::publish(const Tape::Outcome& outcome) {
  const Link& link = engine_->link();
  Report& report = joins_passes_ ? joined_ : report_;
  if (joins_passes_) {
    ++num_joined_;
  } else {
    report = Report();
    ++num_steps_;
  }
  report.step = num_steps_;
  report.state = outcome.followed ? "executing" : "recording";
  report.policy = policy_name();
  report.peak_bytes = std::max<Bytes>(report.peak_bytes, step_peak_ + external_bytes_);
  const Trace& trace = outcome.was_watched ? outcome.followed->trace() : outcome.trace;
  if (outcome.is_complete || outcome.was_watched) {
    report.unlimited_peak_bytes =
        std::max(report.unlimited_peak_bytes.value_or(0), trace.unlimited_peak_bytes());
  }
  report.kept_bytes += outcome.was_watched ? trace.saved_bytes() : outcome.kept_bytes;
  report.swapped_bytes += outcome.swapped_bytes;
  report.recomputed_bytes += outcome.recomputed_bytes;
  report.saved_bytes = report.kept_bytes + report.swapped_bytes + report.recomputed_bytes;
  report.deduplicated_bytes += outcome.deduplicated_bytes;
  report.stall_us += outcome.stall_us;
  report.recompute_us += outcome.recompute_us;
  report.plan_us = plan_us_;
  add(report.out, link_use(link.stats(Direction::kOut)));
  add(report.in, link_use(link.stats(Direction::kIn)));
  for (const auto& [reason, count] : outcome.not_planned) {
    report.not_planned[reason] += count;
  }
  if (outcome.followed) {
    const Plan& plan = outcome.followed->plan();
    report.predicted_peak_bytes = plan.predicted_peak_bytes;
    report.lower_bound_us = plan.lower_bound_us;
    report.floor_bytes = plan.floor_bytes;
    report.floor_op = plan.floor_op;
    if (plan.num_unmet_demands > 0) {
      report.not_planned["demanded by policy_fn, and cannot be"] += plan.num_unmet_demands;
    }
    report.predicted_step_us = plan.predicted_step_us;
    if (!outcome.was_watched) {
      const Learnt& learnt = this->learnt(outcome.followed->trace());
      report.predicted_step_us = learnt.predicted_us;
      report.measured_step_us = learnt.feedback.measured_us();
    }
  } else {
    report.measured_step_us = outcome.step_us + outcome.stall_us;
  }
  memory_ = outcome.memory;
  replays_ = outcome.replays;
  forward_us_ = outcome.forward_us;
  link_start_us_ = outcome.link_start_us;
  link_records_ = engine_->link().take_records();
  engine_->link().reset_stats();
}

void Session::publish_off_step() {
  report_ = Report();
  report_.step = num_steps_;
  report_.state = "off";
  report_.policy = "off";
}

void Session::plan(Bytes entry_bytes) {
  const double most_drift = 0.01 * static_cast<double>(std::max<Bytes>(budget_bytes(), 1));
  std::vector<Recorded> wanted = std::exchange(recorded_, {});
  for (const ProgramPtr& program : programs_) {
    const auto drift = std::abs(static_cast<double>(entry_bytes - program->entry_bytes()));
    if (drift > most_drift && !has_loaded_plan_) {
      wanted.insert(wanted.begin(), {program->trace(), program->geometry()});
    }
  }
  plan_us_ = wanted.empty() ? plan_us_ : 0;
  for (Recorded& recorded : wanted) {
    Feedback& feedback = learnt(recorded.trace).feedback;
    remember(
        recorded.tries_others
            ? feedback.choose([&](PlanPolicy policy) {
                return make_program(recorded.trace, recorded.geometry, entry_bytes, policy);
              })
            : make_program(
                  std::move(recorded.trace), std::move(recorded.geometry), entry_bytes, feedback.policy()));
  }
}

ProgramPtr Session::make_program(
    Trace trace, std::vector<uint64_t> geometry, Bytes entry_bytes, PlanPolicy policy) {
  const auto start = std::chrono::steady_clock::now();
  if (given_costs_) {
    given_costs_->retime(trace);
  }
  PlanRequest request;
  const Bytes spared = std::min(device_.wasted_bytes(), options_.budget_bytes / kSparedPart);
  request.budget_bytes = holds_minimum() ? 0 : options_.budget_bytes - external_bytes_ - spared;
  request.base_delta_bytes = entry_bytes - trace.entry_bytes;
  request.policy = policy;
  const Bytes unlimited = trace.unlimited_peak_bytes() + request.base_delta_bytes;
  const bool has_room = !options_.verify && !passes_overlap_ && !options_.demand_of &&
      static_cast<double>(unlimited) < 0.9 * static_cast<double>(request.budget_bytes);
  if (!has_room) {
    measure_link();
  }
  Plan plan = make_plan(trace, costs_, request);
  const std::chrono::duration<double, std::micro> elapsed = std::chrono::steady_clock::now() - start;
  plan_us_ += elapsed.count();
  if (holds_minimum()) {
    minimum_bytes_ = plan.floor_bytes;
  }
  auto program = std::make_shared<const Program>(
      std::move(trace), std::move(plan), std::move(geometry), entry_bytes, has_room);
  check_fits(*program);
  return program;
}

void Session::check_fits(const Program& program) const {
  // The plan's floor is what planning can promise; reactive swapping may get below it. What nobody may
  // move does not fit by any means.
  const Trace& trace = program.trace();
  const auto largest =
      std::max_element(trace.events.begin(), trace.events.end(), [](const Event& a, const Event& b) {
        return a.base_peak_bytes < b.base_peak_bytes;
      });
  const Bytes budget = options_.budget_bytes - external_bytes_;
  if (holds_minimum() || largest == trace.events.end() ||
      largest->base_peak_bytes + program.entry_bytes() - trace.entry_bytes <= budget) {
    return;
  }
  const Plan& plan = program.plan();
  throw BudgetError(
      std::string(
          device_.is_host_memory() ? "out of memory. DefaultCPUAllocator: can't allocate memory: "
                                   : "CUDA out of memory. ") +
      "the budget of " + human_bytes(options_.budget_bytes) + " (" + std::to_string(options_.budget_bytes) +
      " bytes) is below what this program needs at " + plan.floor_op +
      ", whatever is moved: the smallest budget that works is " +
      human_bytes(plan.floor_bytes + external_bytes_) + " (at least " +
      std::to_string(plan.floor_bytes + external_bytes_) + " bytes)");
}

void Session::remember(ProgramPtr program) {
  std::erase_if(programs_, [&](const ProgramPtr& known) {
    return known->trace().signature() == program->trace().signature();
  });
  // Where a plan does not fit, reactive swapping does what can be done.
  if (program->plan().fits || holds_minimum()) {
    programs_.insert(programs_.begin(), std::move(program));
    programs_.resize(std::min(programs_.size(), kMostPrograms));
  }
  std::erase_if(learnt_, [&](const auto& entry) {
    return std::none_of(programs_.begin(), programs_.end(), [&](const ProgramPtr& known) {
      return known->trace().signature() == entry.first;
    });
  });
}

Report Session::report() {
  finish_open_steps();
  const std::lock_guard lock(mutex_);
  note_peak(device_.take_peaks().held);
  if (is_off()) {
    publish_off_step();
  } else {
    learn_all();
  }
  Report report = report_;
  report.peak_bytes = std::max<Bytes>(report.peak_bytes, step_peak_ + external_bytes_);
  report.budget_bytes = budget_bytes();
  report.uncounted_bytes = external_bytes_;
  report.disk_bytes = engine_->tiers().disk() ? engine_->store().peak_bytes() : 0;
  report.host_bytes = engine_->tiers().host().peak_bytes();
  const SwapEngine::Stats stats = engine_->stats();
  report.disk_written_total_bytes = stats.written_to_disk_bytes;
  report.num_evictions = stats.num_evictions;
  if (num_captures_ > 0) {
    report.not_planned["CUDA graph capture"] += num_captures_;
  }
  if (report.policy.empty()) {
    report.policy = policy_name();
  }
  return report;
}

std::string Session::timeline_json() {
  finish_open_steps();
  const std::lock_guard lock(mutex_);
  learn_all();
  JsonWriter json;
  json.begin_object().field("budget_bytes", budget_bytes()).field("forward_end_us", forward_us_);
  json.key("memory").begin_array();
  for (const auto& [time_us, held] : memory_) {
    json.begin_array().value(time_us).value(held + external_bytes_).end_array();
  }
  json.end_array().key("unlimited").begin_array();
  if (latest_trace_ && latest_trace_->events.size() <= memory_.size()) {
    Bytes managed = 0;
    for (size_t i = 0; i < latest_trace_->events.size(); ++i) {
      const Event& event = latest_trace_->events[i];
      json.begin_array()
          .value(memory_[i].first)
          .value(event.base_peak_bytes + managed + external_bytes_)
          .end_array();
      const bool is_managed =
          event.kind != EventKind::kOp && latest_trace_->storages[event.subject].is_managed;
      if (is_managed && latest_trace_->storages[event.subject].first_pack == static_cast<EventId>(i)) {
        managed += latest_trace_->storages[event.subject].size_bytes;
      } else if (is_managed && event.kind == EventKind::kFree) {
        managed -= latest_trace_->storages[event.subject].size_bytes;
      }
    }
  }
  json.end_array().key("link").begin_array();
  for (const TransferRecord& record : link_records_) {
    json.begin_array()
        .value(record.direction == Direction::kOut ? "out" : "in")
        .value(record.start_us - link_start_us_)
        .value(record.end_us - link_start_us_)
        .value(record.bytes)
        .end_array();
  }
  json.end_array().key("replays").begin_array();
  for (const Tape::ReplayRecord& replay : replays_) {
    json.begin_array()
        .value("recompute")
        .value(replay.start_us)
        .value(replay.end_us)
        .value(replay.bytes)
        .end_array();
  }
  json.end_array().end_object();
  return json.take();
}

ProgramPtr Session::latest_program() {
  finish_open_steps();
  const std::lock_guard lock(mutex_);
  learn_all();
  if (!recorded_.empty()) {
    const Bytes entry_bytes = recorded_.back().trace.entry_bytes;
    plan(entry_bytes);
  }
  return programs_.empty() ? nullptr : programs_.front();
}

std::shared_ptr<const Trace> Session::latest_trace() {
  finish_open_steps();
  const std::lock_guard lock(mutex_);
  learn_all();
  return latest_trace_;
}

void Session::load(ProgramPtr program) {
  const std::lock_guard lock(mutex_);
  programs_ = {std::move(program)};
  has_loaded_plan_ = true;
}

} // namespace torchlms
