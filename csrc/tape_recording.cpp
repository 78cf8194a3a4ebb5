// SPDX-License-Identifier: BSD-3-Clause
// What a tape writes into its trace of ops, values and storages.
#include <algorithm>

#include "recompute/each_tensor.h"
#include "recompute/op_record.h"
#include "session.h"
#include "signature.h"
#include "tape.h"

namespace torchlms {

namespace {

Bytes span_bytes(const at::Tensor& tensor) {
  int64_t last = 0;
  for (int64_t i = 0; i < tensor.dim(); ++i) {
    if (tensor.size(i) == 0) {
      return 0;
    }
    last += (tensor.size(i) - 1) * tensor.stride(i);
  }
  return (last + 1) * static_cast<Bytes>(tensor.itemsize());
}

c10::VariableVersion counter_of(const at::Tensor& tensor) {
  return tensor.is_inference() ? c10::VariableVersion() : tensor.unsafeGetTensorImpl()->version_counter();
}

uint32_t version_of(const at::Tensor& tensor) {
  const c10::VariableVersion counter = counter_of(tensor);
  return counter.enabled() ? counter.current_version() : 0;
}

} // namespace

StorageId Tape::id_of(const at::Tensor& tensor) {
  const c10::Storage& storage = tensor.storage();
  const auto [entry, is_new] =
      ids_.emplace(storage.unsafeGetStorageImpl(), static_cast<StorageId>(slots_.size()));
  if (is_new) {
    const Device::Block block = device_.block_of(storage.data());
    const Bytes size = block.bytes > 0 ? block.bytes : static_cast<Bytes>(storage.nbytes());
    const bool is_root = block.bytes == 0 || block.serial < start_serial_;
    recorder_.add_storage(size, is_root);
    if (block.bytes == 0 && size > 0) {
      session_->note_external(storage);
    }
    Slot& slot = slots_.emplace_back(storage.getWeakStorageImpl());
    slot.size_bytes = size;
    slot.is_root = is_root;
  }
  return entry->second;
}

bool Tape::has_version(StorageId id, uint32_t version) const {
  const auto& values = slots_[id].values;
  return std::any_of(
      values.begin(), values.end(), [version](const KnownValue& value) { return value.version == version; });
}

ValueId Tape::value_of(const at::Tensor& tensor, OpId producer) {
  const StorageId id = id_of(tensor);
  const c10::VariableVersion counter = counter_of(tensor);
  const uint32_t version = version_of(tensor);
  const Bytes offset = tensor.storage_offset() * static_cast<Bytes>(tensor.itemsize());
  const Bytes size = span_bytes(tensor);
  auto& values = slots_[id].values;
  for (auto value = values.rbegin(); value != values.rend(); ++value) {
    if (value->version == version && value->offset == offset && value->size == size) {
      return value->id;
    }
  }
  if (producer == kNone && !values.empty() && !has_version(id, version)) {
    slots_[id].is_opaque = true; // written by no op that we saw
    recorder_.set_opaque(id);
  }
  const ValueId value = recorder_.add_value(id, offset, size, static_cast<int32_t>(version), producer);
  values.push_back({counter, version, offset, size, value});
  return value;
}

// What the op reads, what it will write, and whether it may run again.
void Tape::read_arguments(OpFrame& frame, c10::ArrayRef<const c10::IValue> inputs) {
  const auto& traits = frame.op->traits;
  const uint64_t written = traits ? written_args(*traits, inputs) : 0;
  frame.inputs.clear();
  frame.written.clear();
  frame.first_op = num_ops_;
  frame.record = nullptr;
  frame.is_replayable = traits && torchlms::is_replayable(*traits, inputs);
  for (size_t i = 0; i < inputs.size(); ++i) {
    for_each_tensor(inputs[i], [&](int, const at::Tensor& tensor) {
      if (!is_plain(tensor)) {
        frame.is_replayable = false;
        return;
      }
      const ValueId value = value_of(tensor, kNone);
      frame.inputs.push_back(value);
      frame.signature = mix(frame.signature, static_cast<uint64_t>(value));
      frame.signature = mix(frame.signature, static_cast<uint64_t>(recorder_.trace().values[value].storage));
      if (i < 64 && (written >> i & 1) != 0) {
        frame.written.push_back(value);
        slots_[id_of(tensor)].is_scratch |= (traits->scratch_args >> i & 1) != 0;
      }
    });
  }
  // An op that writes in place may first copy what it writes, and then be the op after the copy.
  const bool may_be_next = written != 0 && program_ && program_->captures(num_ops_ + 1);
  if (mode_ == Mode::kFollowing && frame.is_replayable && (program_->captures(num_ops_) || may_be_next)) {
    capture(frame, inputs);
  }
}

// The outputs on storages that it made, and on those that it wrote; the latter at last where it returns none.
void Tape::find_written(OpFrame& frame) {
  const auto& values = recorder_.trace().values;
  const auto is_on = [&values](const std::vector<ValueId>& among, StorageId storage) {
    return std::any_of(
        among.begin(), among.end(), [&](ValueId value) { return values[value].storage == storage; });
  };
  std::vector<ValueId> arguments;
  std::swap(arguments, frame.written);
  for (const ValueId output : frame.outputs) {
    const StorageId storage = values[output].storage;
    if (!is_on(frame.inputs, storage) || is_on(arguments, storage)) {
      frame.written.push_back(output);
    }
  }
  for (const ValueId argument : arguments) {
    if (!is_on(frame.outputs, values[argument].storage)) {
      frame.written.push_back(argument);
    }
  }
  for (const ValueId value : frame.written) {
    slots_[values[value].storage].last_written = num_ops_;
  }
}

bool Tape::wrote_itself(const OpFrame& frame) const {
  const std::lock_guard lock(mutex_);
  return std::any_of(frame.written.begin(), frame.written.end(), [&](ValueId argument) {
    const Slot& slot = slots_[recorder_.trace().values[argument].storage];
    const auto before = std::find_if(slot.values.begin(), slot.values.end(), [&](const KnownValue& value) {
      return value.id == argument;
    });
    return before != slot.values.end() && before->counter.enabled() &&
        before->counter.current_version() != before->version && slot.last_written < frame.first_op;
  });
}

// What only the end of the step tells of its values and storages.
void Tape::record_ends() {
  for (size_t i = 0; i < slots_.size(); ++i) {
    const Slot& slot = slots_[i];
    const size_t num_ours = (slot.state ? 1 : 0) + (slot.held ? 1 : 0);
    if (slot.storage.use_count() > num_ours) {
      recorder_.set_outlives_step(static_cast<StorageId>(i));
    }
    for (const KnownValue& value : slot.values) {
      if (value.counter.enabled() && value.counter.current_version() != value.version) {
        recorder_.set_changed(value.id);
      }
    }
  }
}

} // namespace torchlms
