// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>
#include <cstdint>
#include <optional>
#include <string>

#include "export.h"

namespace torchlms {

// What an operator does beside computing its outputs, as far as its schema and the tables in the source
// tell. A plain value; immutable.
struct TORCHLMS_EXPORT OperatorTraits {
  enum class Replay : uint8_t {
    kNever, // random, made of nothing, out of order when accumulated, or unknown
    kAlways,
    kWithoutDropout, // random only if its dropout_p is not 0
    kIfAllowed, // of a foreign library: when the user said so
  };

  explicit OperatorTraits(const c10::OperatorHandle& handle);

  c10::OperatorHandle handle;
  Replay replay = Replay::kNever;
  uint64_t written_args = 0; // bit i: argument i is written
  uint64_t scratch_args = 0; // of those, running statistics: replay gives it other bytes to write
  int training_arg = -1; // running statistics are written only when this one is true
  int dropout_arg = -1;
  int workspace_output = -1; // its backward writes this one, and PyTorch does not say so
  int transposed_arg = -1; // of a convolution
  bool is_unordered_on_gpu = false;
};

// The arguments that this call writes.
TORCHLMS_EXPORT uint64_t written_args(const OperatorTraits& traits, c10::ArrayRef<const c10::IValue> args);
// Called again with the same bytes, this call gives the same bytes and changes nothing but its first
// argument, if that.
TORCHLMS_EXPORT bool is_replayable(const OperatorTraits& traits, c10::ArrayRef<const c10::IValue> args);

// The user's word that an operator of a foreign library ("ns::op" or "ns::op.overload") is a function of its
// inputs. Throws std::invalid_argument for what is not the name of an operator.
TORCHLMS_EXPORT void allow_replay(const std::string& name);

} // namespace torchlms
