// SPDX-License-Identifier: BSD-3-Clause
#include "plan/lower_bound.h"

#include <algorithm>
#include <limits>
#include <vector>

#include "plan/candidates.h"
#include "plan/regions.h"

namespace torchlms {

namespace {

// More of either only sharpens the bound.
constexpr size_t kNumPositions = 96;
constexpr int kNumShares = 128;

// Rounding must not lift the bound above the time it bounds.
constexpr double kRounding = 1 - 1e-9;

// Note [Lower bound]
// Before event t, `missing` = held - budget bytes must be away. Say x of them are swapped and the others,
// those that are rebuilt fastest per byte, recomputed, which takes r(x). Copies out begin with the first
// death among what may be away and end before event t: what does not fit in between, o(x), delays event t.
// Copies in begin after event t, and what does not fit before the last first use, i(x), delays the end,
// unless replays fill the time. So the step is longer by at least o(x) + max(r(x), i(x)), for the best x;
// between two x, o and i are no less than at the smaller, and r no less than at the larger. What is left out
// (latencies, copies that share a window, the memory of replays) would only add to it.
class Bound {
 public:
  Bound(const Trace& trace, const CostModel& costs)
      : trace_(trace), costs_(costs), candidates_(swap_candidates(trace)), regions_(trace) {
    for (const Region& region : regions_.all()) {
      by_rate_.push_back(&region);
    }
    std::stable_sort(by_rate_.begin(), by_rate_.end(), [this](const Region* a, const Region* b) {
      return a->replay_us * size_of(b) < b->replay_us * size_of(a);
    });
  }

  double us(Bytes budget_bytes) const {
    const std::vector<Bytes> held = held_when_kept(trace_);
    const size_t stride = std::max<size_t>(1, held.size() / kNumPositions);
    double most = 0;
    for (size_t first = 0; first < held.size(); first += stride) {
      const auto end = held.begin() + static_cast<ptrdiff_t>(std::min(first + stride, held.size()));
      const auto worst = std::max_element(held.begin() + static_cast<ptrdiff_t>(first), end);
      if (*worst > budget_bytes) {
        const auto event = static_cast<EventId>(worst - held.begin());
        most = std::max(most, delay_us(event, static_cast<double>(*worst - budget_bytes)));
      }
    }
    return trace_.step_us() + most * kRounding;
  }

 private:
  // What the copies of one position have to share.
  struct Link {
    double leaving = 0; // bytes that may go and do not come back
    double out_window_us = 0;
    double in_window_us = 0;
  };

  double size_of(const Region* region) const {
    return static_cast<double>(trace_.storages[region->storage].size_bytes);
  }
  double time(EventId event) const {
    return event < 0 ? 0 : trace_.events[event].time_us;
  }

  Link link_at(EventId event) const {
    Link link;
    double first_us = std::numeric_limits<double>::infinity();
    double last_us = 0;
    for (const Candidate& candidate : candidates_) {
      if (event <= candidate.dead || event > candidate.gap_last) {
        continue;
      }
      first_us = std::min(first_us, time(candidate.dead));
      if (candidate.first_unpack == kNone) {
        link.leaving += static_cast<double>(candidate.size_bytes);
      } else {
        last_us = std::max(last_us, time(candidate.first_unpack));
      }
    }
    link.out_window_us = std::max(0.0, time(event - 1) - first_us);
    link.in_window_us = std::max(0.0, last_us - time(event));
    return link;
  }

  double delay_us(EventId event, double missing) const {
    const Link link = link_at(event);
    const auto out_us = [&](double swapped) {
      return std::max(0.0, swapped * 1e6 / costs_.out_bytes_per_s - link.out_window_us);
    };
    const auto in_us = [&](double swapped) {
      const double returning = std::max(0.0, swapped - link.leaving);
      return std::max(0.0, returning * 1e6 / costs_.in_bytes_per_s - link.in_window_us);
    };
    double least = std::numeric_limits<double>::infinity();
    double recomputed = 0; // bytes of the regions before `next`
    double replay_us = 0;
    double last_rate = 0;
    size_t next = 0;
    for (int i = 0; i < kNumShares; ++i) {
      const double share = missing * i / kNumShares; // recomputed, at least
      for (; next < by_rate_.size() && recomputed < share; ++next) {
        const StorageRecord& storage = trace_.storages[by_rate_[next]->storage];
        if (event > storage.dead && event <= storage.first_unpack) {
          recomputed += size_of(by_rate_[next]);
          replay_us += by_rate_[next]->replay_us;
          last_rate = by_rate_[next]->replay_us / size_of(by_rate_[next]);
        }
      }
      if (recomputed < share) {
        break; // there is no more
      }
      const double excess_us = share > 0 ? (recomputed - share) * last_rate : 0; // part of the last one
      const double swapped = missing - missing * (i + 1) / kNumShares;
      least = std::min(least, out_us(swapped) + std::max(replay_us - excess_us, in_us(swapped)));
    }
    return least;
  }

  const Trace& trace_;
  const CostModel& costs_;
  std::vector<Candidate> candidates_;
  Regions regions_;
  std::vector<const Region*> by_rate_; // fastest per byte first
};

} // namespace

double lower_bound_us(const Trace& trace, const CostModel& costs, Bytes budget_bytes) {
  return Bound(trace, costs).us(budget_bytes);
}

} // namespace torchlms
