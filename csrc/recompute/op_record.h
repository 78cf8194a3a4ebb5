// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <ATen/core/ivalue.h>
#include <ATen/core/stack.h>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "recompute/ambient.h"
#include "recompute/op_record_fwd.h"
#include "recompute/purity.h"
#include "recompute/view.h"

namespace torchlms {

// One call of an operator, kept so that it can be run again: the handle and the boxed arguments, with
// every tensor replaced by its geometry and the id of its storage, so that a record holds no data. What
// wrapped numbers hold is kept by value.
//
// Immutable once the outputs are set, and then thread-safe. replay() throws what the operator throws, and
// c10::Error when what it reads is no longer what the call read.
class OpRecord {
 public:
  using IdOf = std::function<StorageId(const at::Tensor&)>;

  // Before the op runs. Requires: is_replayable(traits, args).
  OpRecord(const OperatorTraits& traits, c10::ArrayRef<const c10::IValue> args, const IdOf& id_of);
  // When it has returned.
  void set_outputs(const std::vector<c10::IValue>& outputs, const IdOf& id_of);

  // Nobody wrote since into what the op left on that storage, as far as versions tell.
  bool left_unchanged(StorageId storage) const;
  // Throws c10::Error naming the op when the storage's bytes are not those that the op read.
  void check_unchanged(StorageId leaf, const c10::Storage& storage) const;
  bool reads(StorageId storage) const;
  bool makes(StorageId storage) const; // or writes it in place

  // Runs the op on the calling thread, below autograd and autocast, in the ambient state of the call.
  // Takes the bytes that it reads from `storages` and puts there those that it makes.
  void replay(Storages& storages) const;

 private:
  // Where in the boxed arguments or outputs a tensor stands.
  struct Place {
    uint16_t index = 0;
    int16_t element = -1; // of a list; -1: the value itself
  };
  struct Input {
    Place place;
    StorageId storage;
    View view;
    c10::VariableVersion counter;
    uint32_t version;
    uint64_t sample; // of the storage's bytes
    bool is_scratch; // written aside: gets bytes of its own
  };
  struct Output {
    Place place;
    StorageId storage;
    c10::VariableVersion counter;
    uint32_t version;
  };

  void add_input(Place place, const at::Tensor& tensor, bool is_scratch, const IdOf& id_of);
  torch::jit::Stack boxed(const Storages& storages) const;

  const c10::OperatorHandle op_;
  const Ambient ambient_;
  torch::jit::Stack args_; // tensors left out
  std::vector<Input> inputs_;
  std::vector<Output> outputs_;
};

} // namespace torchlms
