// SPDX-License-Identifier: BSD-3-Clause
#include "tape.h"

#include <algorithm>

#include "recompute/each_tensor.h"
#include "recompute/op_record.h"
#include "session.h"
#include "signature.h"

namespace torchlms {

namespace {

// Kinds of tensor whose bytes are not simply those of their storage.
constexpr c10::DispatchKeySet kOpaqueKeys({
    c10::DispatchKey::Python,
    c10::DispatchKey::Functionalize,
    c10::DispatchKey::ZeroTensor,
    c10::DispatchKey::NestedTensor,
    c10::DispatchKey::FuncTorchBatched,
    c10::DispatchKey::BatchedNestedTensor,
    c10::DispatchKey::FuncTorchGradWrapper,
});

// Tensors may carry names up to torch 2.14.
template <class T>
bool is_named(const T& tensor) {
  if constexpr (requires { tensor.has_names(); }) {
    return tensor.has_names();
  } else {
    return false;
  }
}

// The device's type is known to fit. There is one CPU, whatever index a tensor gives it.
bool is_on(c10::Device device, const c10::TensorImpl& impl) {
  return !device.has_index() || impl.device() == device;
}

uint64_t mix_geometry(uint64_t hash, const at::Tensor& tensor) {
  hash = mix(hash, static_cast<uint64_t>(tensor.scalar_type()));
  for (const int64_t size : tensor.unsafeGetTensorImpl()->sizes()) {
    hash = mix(hash, static_cast<uint64_t>(size));
  }
  return hash;
}

} // namespace

Tape::Tape(std::shared_ptr<Session> session, std::vector<ProgramPtr> candidates, bool records)
    : session_(std::move(session)),
      engine_(session_->engine()),
      device_(engine_.device()),
      start_(std::chrono::steady_clock::now()),
      start_stall_us_(engine_.stall_us()),
      start_link_us_(engine_.link().now_us()),
      start_serial_(device_.next_serial()),
      candidates_(std::move(candidates)),
      recorder_(device_.held_bytes() - device_.managed_bytes()),
      device_times_(engine_) {
  if (!candidates_.empty()) {
    program_ = candidates_.front();
    mode_ = program_->only_watches() && !records ? Mode::kWatching : Mode::kFollowing;
    is_partial_ = mode_ == Mode::kWatching;
  }
}

Tape::Mode Tape::mode() const {
  const std::lock_guard lock(mutex_);
  return mode_;
}

double Tape::now_us() const {
  const std::chrono::duration<double, std::micro> elapsed = std::chrono::steady_clock::now() - start_;
  return elapsed.count() - (engine_.stall_us() - start_stall_us_) - recompute_us_;
}

void Tape::sample_memory(Bytes* base, Bytes* base_peak) {
  const Device::Peaks peaks = device_.take_peaks();
  session_->note_peak(peaks.held);
  *base = device_.held_bytes() - device_.managed_bytes();
  *base_peak = std::max(peaks.base, *base);
  const std::chrono::duration<double, std::micro> elapsed = std::chrono::steady_clock::now() - start_;
  memory_.emplace_back(elapsed.count(), std::max(peaks.held, std::exchange(replay_peak_, 0)));
}

void Tape::add_event(EventKind kind, StorageId id) {
  if (is_finished_) {
    return; // a retained graph goes on after its step
  }
  Bytes base = 0;
  Bytes base_peak = 0;
  last_event_us_ = now_us();
  sample_memory(&base, &base_peak);
  recorder_.add_event(kind, id, last_event_us_, base, base_peak);
  device_times_.event();
}

bool Tape::is_plain(const at::Tensor& tensor) const {
  const auto* impl = tensor.unsafeGetTensorImpl();
  return impl->device_type() == device_.type() && is_on(device_.device(), *impl) &&
      impl->layout() == c10::kStrided && impl->has_storage() && !impl->key_set().has_any(kOpaqueKeys) &&
      !c10::isQIntType(tensor.scalar_type()) && !impl->is_python_dispatch() && !is_named(tensor) &&
      !impl->has_symbolic_sizes_strides();
}

bool Tape::op_started(OpFrame& frame, c10::ArrayRef<const c10::IValue> inputs) {
  States to_wait;
  std::vector<StorageId> endangered;
  bool stays = true;
  {
    const std::lock_guard lock(mutex_);
    uint64_t geometry = mix(running_geometry_, frame.op->signature);
    for (const c10::IValue& input : inputs) {
      for_each_tensor(input, [&](int, const at::Tensor& tensor) {
        if (is_plain(tensor)) {
          geometry = mix_geometry(geometry, tensor);
        }
      });
    }
    running_geometry_ = geometry;
    ++num_started_;
    if (mode_ == Mode::kWatching) {
      stays = watch();
      if (stays) {
        return true;
      }
    }
    geometry_.push_back(geometry);
    frame.signature = mix(frame.op->signature, geometry);
    read_arguments(frame, inputs);
    poll_deaths(to_wait);
    if (mode_ == Mode::kFollowing) {
      collect(program_->releases_before_op(num_ops_), to_wait);
    }
    for (const ValueId value : frame.written) {
      add_readers(recorder_.trace().values[value].storage, endangered);
    }
  }
  for (const StorageStatePtr& state : to_wait) {
    engine_.wait_swapped_out(state); // orders the end of the copy before the next op's allocations
  }
  rebuild_before_write(endangered);
  note_device_time(&DeviceTimes::op_starts);
  frame.start_stall_us = engine_.stall_us();
  frame.start = std::chrono::steady_clock::now();
  return stays;
}

void Tape::op_ended(OpFrame& frame, const std::vector<c10::IValue>& outputs) {
  const std::chrono::duration<double, std::micro> elapsed = std::chrono::steady_clock::now() - frame.start;
  const double duration_us = std::max(0.0, elapsed.count() - (engine_.stall_us() - frame.start_stall_us));
  States to_wait;
  Bytes margin = -1;
  {
    const std::lock_guard lock(mutex_);
    device_times_.op_ended();
    frame.outputs.clear();
    const int workspace = frame.op->traits ? frame.op->traits->workspace_output : -1;
    for (const c10::IValue& output : outputs) {
      for_each_tensor(output, [&](int, const at::Tensor& tensor) {
        if (is_plain(tensor)) {
          const ValueId value = value_of(tensor, num_ops_);
          frame.outputs.push_back(value);
          frame.signature =
              mix(frame.signature, static_cast<uint64_t>(recorder_.trace().values[value].storage));
          if (workspace >= 0 && &output == &outputs[workspace]) {
            slots_[id_of(tensor)].is_scratch = true;
          }
        } else {
          frame.is_replayable = false;
        }
      });
    }
    find_written(frame);
    if (frame.record) {
      frame.record->set_outputs(outputs, [this](const at::Tensor& tensor) { return id_of(tensor); });
      if (frame.record->has_one_thread_count()) {
        records_[num_ops_] = std::move(frame.record);
      }
    }
    Bytes base = 0;
    Bytes base_peak = 0;
    last_event_us_ = now_us();
    sample_memory(&base, &base_peak);
    recorder_.add_op(
        {.name = frame.op->name,
         .signature = mix(frame.signature, running_packs_ + static_cast<uint64_t>(frame.demand)),
         .duration_us = duration_us,
         .inputs = frame.inputs,
         .outputs = frame.outputs,
         .written = frame.written,
         .is_replayable = frame.is_replayable,
         .demand = frame.demand},
        last_event_us_,
        base,
        base_peak);
    device_times_.event();
    ++num_ops_;
    take_checksums();
    follow(recorder_.trace().signature());
    poll_deaths(to_wait);
    if (mode_ == Mode::kReactive) {
      margin = 2 * largest_bytes_; // what the next op is likely to allocate
    }
  }
  for (const StorageStatePtr& state : to_wait) {
    engine_.wait_swapped_out(state);
  }
  if (margin >= 0) {
    session_->relieve(margin);
  }
}

// Where the host's clock tells the times, there is nothing to note.
void Tape::note_device_time(void (DeviceTimes::*what)()) {
  if (!device_.is_host_memory()) {
    const std::lock_guard lock(mutex_);
    (device_times_.*what)();
  }
}

void Tape::take_checksums() {
  for (const StorageId id : to_checksum_) {
    if (const auto storage = slots_[id].storage.lock(); storage && !slots_[id].is_scratch) {
      slots_[id].checksum = checksum(c10::Storage(storage));
    }
  }
  to_checksum_.clear();
}

// Waits for the device, where it has a queue.
uint64_t Tape::checksum(const c10::Storage& storage) const {
  const auto size = static_cast<Bytes>(storage.nbytes());
  if (device_.is_host_memory()) {
    return checksum_of(storage.data(), size);
  }
  std::vector<char> copy(storage.nbytes());
  if (const FencePtr written = device_.fence(storage.data())) {
    written->wait();
  }
  device_.copy_out(copy.data(), storage.data(), size);
  return checksum_of(copy.data(), size);
}

bool Tape::is_captured() {
  if (device_.is_host_memory() || !device_.is_capturing()) {
    return false;
  }
  const std::lock_guard lock(mutex_);
  ++not_planned_["CUDA graph capture"];
  is_partial_ = true;
  if (mode_ != Mode::kReactive) {
    leave_program("a CUDA graph capture");
  }
  return true;
}

void Tape::poll_deaths(States& to_wait) {
  auto alive = awaiting_death_.begin();
  for (const StorageId id : awaiting_death_) {
    const Slot& slot = slots_[id];
    if (slot.num_handles == 0) {
      continue; // they died first
    }
    if (slot.storage.use_count() == 1) {
      died(id, to_wait);
    } else {
      *alive++ = id;
    }
  }
  awaiting_death_.erase(alive, awaiting_death_.end());
}

void Tape::died(StorageId id, States& to_wait) {
  Slot& slot = slots_[id];
  slot.is_dead = true;
  add_event(EventKind::kDead, id);
  if (slot.is_kept) {
    return;
  }
  if (mode_ == Mode::kFollowing) {
    if (program_->swaps(id)) {
      engine_.swap_out(slot.state);
    } else if (program_->recomputes(id)) {
      drop(id);
    }
  } else if (session_->holds_minimum() && !forward_ended_) {
    if (engine_.swap_out(slot.state)) {
      to_wait.push_back(slot.state); // the least memory: nothing runs while a block could be free
    }
  }
}

std::unique_ptr<Packed> Tape::pack(const at::Tensor& tensor, bool keep) {
  if (!is_plain(tensor) || is_captured()) {
    return nullptr;
  }
  States to_wait; // nothing waits here: the caller holds the GIL
  const std::lock_guard lock(mutex_);
  poll_deaths(to_wait); // a custom Function saves with no op of ours around it
  StorageId id = id_of(tensor);
  if (slots_[id].was_freed) {
    // Saved again after its first graph was gone: a new life, a new id.
    ids_.erase(tensor.storage().unsafeGetStorageImpl());
    id = id_of(tensor);
    // The op that saves it may have read it under the old id and written it in place: no op of a region.
    slots_[id].is_opaque = true;
    recorder_.set_opaque(id);
  }
  Slot& slot = slots_[id];
  slot.is_kept = slot.is_kept || keep;
  if (!slot.state) {
    const char* reason = slot.is_root                             ? "alive at scope entry"
        : slot.is_kept                                            ? "kept by request"
        : slot.size_bytes < session_->options().min_offload_bytes ? "below min_offload_bytes"
        : slot.size_bytes == 0                                    ? "empty"
                                                                  : nullptr;
    if (reason) {
      ++not_planned_[reason];
    } else {
      awaiting_death_.push_back(id);
      packed_order_.push_back(id);
      largest_bytes_ = std::max(largest_bytes_, slot.size_bytes);
      recorder_.set_managed(id);
    }
    slot.state = engine_.adopt(tensor.storage(), slot.size_bytes, reason == nullptr);
  }
  ++slot.num_handles;
  ++num_handles_;
  const auto own_bytes = static_cast<Bytes>(tensor.numel() * static_cast<int64_t>(tensor.itemsize()));
  slot.packed_bytes += own_bytes;
  if (session_->options().verify) {
    to_checksum_.push_back(id);
  }
  running_packs_ = mix(running_packs_, static_cast<uint64_t>(id) * 2 + (keep ? 1 : 0));
  add_event(EventKind::kPack, id);
  recorder_.add_packed_bytes(id, own_bytes);
  return std::make_unique<Packed>(shared_from_this(), slot.state, id, tensor);
}

void Tape::keep(const at::Tensor& tensor) {
  if (!tensor.defined() || !is_plain(tensor)) {
    return;
  }
  const std::lock_guard lock(mutex_);
  if (mode_ == Mode::kWatching) {
    return;
  }
  Slot& slot = slots_[id_of(tensor)];
  slot.is_kept = true;
  if (slot.state) {
    engine_.pin(slot.state);
  }
}

void Tape::count_not_planned(const char* reason) {
  const std::lock_guard lock(mutex_);
  ++not_planned_[reason];
}

void Tape::end_forward() {
  States to_wait;
  bool ended = false;
  {
    const std::lock_guard lock(mutex_);
    if (forward_ended_) {
      return;
    }
    take_checksums();
    poll_deaths(to_wait);
    if (mode_ == Mode::kFollowing && num_ops_ != static_cast<int32_t>(program_->trace().ops.size())) {
      leave_program("the end of the forward pass");
    }
    begin_backward();
    forward_ended_ = true;
    num_forward_unpacks_ = num_unpacks_;
    ended = is_over(); // backward ran inside the scope
  }
  for (const StorageStatePtr& state : to_wait) {
    engine_.wait_swapped_out(state);
  }
  if (ended) {
    finish_step();
  }
}

void Tape::begin_backward() {
  if (is_finished_ || recorder_.is_backward()) {
    return;
  }
  recorder_.end_forward();
  forward_us_ = now_us();
  prefetch_cursor_ = packed_order_.size();
  if (mode_ == Mode::kFollowing) {
    prefetch_planned();
  }
}

} // namespace torchlms
