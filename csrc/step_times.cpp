// SPDX-License-Identifier: BSD-3-Clause
#include "step_times.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "median.h"
#include "signature.h"

namespace torchlms {

namespace {

uint64_t signature_of(const Trace& trace) {
  uint64_t signature = mix(trace.ops.size(), trace.events.size());
  for (const Event& event : trace.events) {
    signature = mix(signature, static_cast<uint64_t>(event.kind));
    signature = mix(signature, static_cast<uint64_t>(event.subject));
  }
  return signature;
}

} // namespace

void StepTimes::note(const Trace& trace) {
  const uint64_t signature = signature_of(trace);
  if (signature != signature_) {
    signature_ = signature;
    steps_.clear();
  }
  if (steps_.size() == kMostSteps) {
    steps_.pop_front();
  }
  Step step;
  step.event_us.reserve(trace.events.size());
  double before_us = 0;
  for (const Event& event : trace.events) {
    step.event_us.push_back(event.time_us - std::exchange(before_us, event.time_us));
  }
  step.op_us.reserve(trace.ops.size());
  for (const Op& op : trace.ops) {
    step.op_us.push_back(op.duration_us);
  }
  steps_.push_back(std::move(step));
}

bool StepTimes::apply(Trace& trace) const {
  if (steps_.empty() || signature_of(trace) != signature_) {
    return false;
  }
  std::vector<double> samples(steps_.size());
  const auto median_of = [&](const auto& sample) {
    std::transform(steps_.begin(), steps_.end(), samples.begin(), sample);
    return median(samples);
  };
  double sum_us = 0;
  for (size_t i = 0; i < trace.events.size(); ++i) {
    sum_us += median_of([&](const Step& step) { return step.event_us[i]; });
    trace.events[i].time_us = sum_us;
  }
  const double step_us = median_of(
      [](const Step& step) { return std::accumulate(step.event_us.begin(), step.event_us.end(), 0.0); });
  const double scale = sum_us > 0 ? step_us / sum_us : 1;
  for (Event& event : trace.events) {
    event.time_us *= scale;
  }
  for (size_t i = 0; i < trace.ops.size(); ++i) {
    trace.ops[i].duration_us = scale * median_of([&](const Step& step) { return step.op_us[i]; });
  }
  return true;
}

} // namespace torchlms
