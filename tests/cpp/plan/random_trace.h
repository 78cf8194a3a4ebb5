// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <random>
#include <vector>

#include "trace/recorder.h"

namespace torchlms {

enum class Shape : uint8_t { kChain, kResidual, kUNet };

struct RandomTraceOptions {
  Shape shape = Shape::kChain;
  int num_ops = 20;
  uint64_t seed = 0;
};

// Sizes are large enough for no record to hold them.
inline constexpr Bytes kUnit = 4096;

// Plays a step of a made-up network into a Recorder: op i makes value i, from value i - 1 and, where the
// shape says so, from an older one; some ops write in place, read weights, update running statistics, or
// may not run again; autograd saves some inputs and outputs; backward runs the ops in reverse. Equal
// options give equal traces.
class RandomStep {
 public:
  explicit RandomStep(const RandomTraceOptions& options)
      : options_(options), random_(options.seed * 3 + static_cast<uint64_t>(options.shape)) {}

  Trace play() {
    base_ = uniform(0, 4000) * kUnit;
    recorder_ = Recorder(base_);
    plan_network();
    weight_ = root(/*outlives_step=*/true);
    statistics_ = root(/*outlives_step=*/true);
    input_ = root(chance(50));
    const bool saves_input = chance(70);
    if (saves_input) {
      recorder_.add_event(EventKind::kPack, input_.storage, time_us_, base_, base_);
    }
    for (int i = 0; i < options_.num_ops; ++i) {
      forward(i);
    }
    recorder_.end_forward();
    for (int i = options_.num_ops - 1; i >= 0; --i) {
      backward(i);
    }
    if (saves_input) {
      recorder_.add_event(EventKind::kFree, input_.storage, time_us_, base_, std::max(peak_, base_));
    }
    return recorder_.finish();
  }

 private:
  struct Activation {
    StorageId storage = kNone;
    Bytes size_bytes = 0;
    int last_reader = 0; // op
    int uses_left = 0; // ops of backward that will drop it
    bool is_movable = true;
    bool is_packed = false;
    bool is_held_by_program = false; // past the end of the forward pass
    bool is_freed_by_step = true;
    bool is_opaque = false;
  };
  struct Root {
    StorageId storage = kNone;
    ValueId value = kNone;
  };

  int64_t uniform(int64_t low, int64_t high) {
    return low + static_cast<int64_t>(random_() % static_cast<uint64_t>(high - low + 1));
  }
  bool chance(int percent) {
    return uniform(1, 100) <= percent;
  }

  Root root(bool outlives_step) {
    const StorageId id = recorder_.add_storage(1000 * kUnit, true);
    if (outlives_step) {
      recorder_.set_outlives_step(id);
    }
    return {id, recorder_.add_value(id, 0, 1000 * kUnit, 0, kNone)};
  }
  Activation& activation(int value) {
    return activations_[owners_[value]];
  }

  void plan_network() {
    const int n = options_.num_ops;
    activations_.resize(n);
    inputs_.resize(n);
    const int depth = n / 2;
    for (int i = 0; i < n; ++i) {
      if (i > 0) {
        inputs_[i].push_back(i - 1);
      }
      if (options_.shape == Shape::kResidual && i >= 3 && i % 3 == 0) {
        inputs_[i].push_back(i - 3);
      }
      if (options_.shape == Shape::kUNet && i > depth && n - 1 - i < i - 1) {
        inputs_[i].push_back(n - 1 - i);
      }
      Activation& activation = activations_[i];
      // A U-Net is wide at its ends and narrow in the middle.
      const int scale = options_.shape == Shape::kUNet ? 1 + std::abs(depth - i) : 4;
      activation.size_bytes = uniform(1, 100) * scale * kUnit;
      activation.is_movable = !chance(10);
      activation.is_held_by_program = chance(8);
      activation.is_freed_by_step = !chance(4);
      activation.is_opaque = chance(3);
    }
    plan_saves();
  }

  void plan_saves() {
    const int n = options_.num_ops;
    std::vector<int> num_uses(n); // readers and saves
    saves_.resize(n);
    for (int i = 0; i < n; ++i) {
      for (const int input : inputs_[i]) {
        ++num_uses[input];
        if (chance(60)) {
          saves_[i].push_back(input);
          ++num_uses[input];
        }
      }
      if (chance(30)) {
        saves_[i].push_back(i);
        ++num_uses[i];
      }
    }
    for (int i = 0; i < n; ++i) {
      const bool is_in_place = i > 0 && num_uses[i - 1] == 1 && inputs_[i].size() == 1 && chance(40);
      owners_.push_back(is_in_place ? owners_[i - 1] : i);
      activation(i).last_reader = i;
      for (const int input : inputs_[i]) {
        activation(input).last_reader = i;
      }
      for (const int saved : saves_[i]) {
        ++activation(saved).uses_left;
      }
    }
  }

  void advance(Bytes transient) {
    time_us_ += static_cast<double>(uniform(0, 40)) / 4;
    peak_ = std::max(peak_, base_ + transient);
  }

  void event(EventKind kind, const Activation& activation) {
    recorder_.add_event(kind, activation.storage, time_us_, base_, std::max(peak_, base_));
    peak_ = base_;
  }

  void make(int i) {
    Activation& output = activation(i);
    if (owners_[i] == i) {
      output.storage = recorder_.add_storage(output.size_bytes, false);
      if (output.is_opaque) {
        recorder_.set_opaque(output.storage);
      }
      base_ += output.size_bytes;
    } else {
      recorder_.set_changed(values_.back());
    }
    values_.push_back(recorder_.add_value(output.storage, 0, output.size_bytes, i - owners_[i], i));
  }

  void forward(int i) {
    const double start_us = time_us_;
    advance(uniform(0, 200) * kUnit);
    make(i);
    for (const int saved : saves_[i]) {
      pack(activation(saved));
    }
    advance(0);
    std::vector<ValueId> inputs;
    std::transform(inputs_[i].begin(), inputs_[i].end(), std::back_inserter(inputs), [this](int input) {
      return values_[input];
    });
    std::vector<ValueId> written = {values_[i]};
    if (i == 0) {
      inputs.push_back(input_.value);
    }
    if (chance(40)) {
      inputs.push_back(weight_.value);
    }
    if (chance(10)) {
      inputs.push_back(statistics_.value);
      recorder_.set_changed(statistics_.value);
      statistics_.value = recorder_.add_value(statistics_.storage, 0, 1000 * kUnit, i + 1, i);
      written.push_back(statistics_.value);
    }
    const char* const name = i % 2 == 0 ? "aten::convolution" : "aten::relu";
    recorder_.add_op(
        {.name = name,
         .signature = static_cast<uint64_t>(i) + 1,
         .duration_us = time_us_ - start_us,
         .inputs = inputs,
         .outputs = {&values_[i], 1},
         .written = written,
         .is_replayable = !chance(12)},
        time_us_,
        base_,
        std::max(peak_, base_));
    peak_ = base_;
    for (int j = 0; j <= i; ++j) {
      if (owners_[j] == j && activations_[j].last_reader == i) {
        die(activations_[j]);
      }
    }
  }

  void pack(Activation& activation) {
    recorder_.add_packed_bytes(activation.storage, activation.size_bytes);
    if (activation.is_movable && !activation.is_packed) {
      recorder_.set_managed(activation.storage);
      base_ -= activation.size_bytes;
    }
    activation.is_packed = true;
    event(EventKind::kPack, activation);
  }

  void die(Activation& activation) {
    if (activation.is_held_by_program) {
      return;
    }
    if (activation.is_packed && activation.is_movable) {
      event(EventKind::kDead, activation);
    } else if (activation.uses_left == 0) {
      base_ -= activation.size_bytes;
    }
  }

  void backward(int i) {
    recorder_.set_backward_node(i % 2 == 0 ? "ConvolutionBackward0" : "ReluBackward0");
    const bool is_skipped = chance(7); // its gradient was not needed: nothing is unpacked
    advance(0);
    for (const int saved : saves_[i]) {
      if (activation(saved).is_packed && !is_skipped) {
        event(EventKind::kUnpack, activation(saved));
      }
    }
    advance(uniform(0, 300) * kUnit);
    base_ += uniform(0, 20) * kUnit;
    for (const int saved : saves_[i]) {
      Activation& used = activation(saved);
      if (--used.uses_left == 0 && used.is_packed && used.is_freed_by_step) {
        event(EventKind::kFree, used);
        base_ += used.is_held_by_program && used.is_movable ? used.size_bytes : 0;
        base_ -= !used.is_held_by_program && !used.is_movable ? used.size_bytes : 0;
        peak_ = std::max(peak_, base_);
      }
    }
  }

  const RandomTraceOptions options_;
  std::mt19937_64 random_;
  Recorder recorder_;
  std::vector<Activation> activations_;
  std::vector<int> owners_; // per op: which activation's storage holds its output
  std::vector<std::vector<int>> inputs_; // per op: ops whose outputs it reads
  std::vector<std::vector<int>> saves_; // per op
  std::vector<ValueId> values_; // per op
  Root weight_;
  Root statistics_;
  Root input_;
  double time_us_ = 0;
  Bytes base_ = 0;
  Bytes peak_ = 0; // of the base since the previous event
};

inline Trace random_trace(const RandomTraceOptions& options) {
  return RandomStep(options).play();
}

// A count of traces to plan for: fewer where a sanitizer makes each one ten times as slow.
inline int some(int count) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  return std::max(6, count / 6);
#else
  return count;
#endif
}

// Many small traces of every shape.
inline std::vector<Trace> random_traces(int count) {
  std::vector<Trace> traces;
  for (int i = 0; i < count; ++i) {
    const auto shape = static_cast<Shape>(i % 3);
    traces.push_back(random_trace({shape, 4 + (i * 7) % 45, static_cast<uint64_t>(i)}));
  }
  return traces;
}

} // namespace torchlms
