// SPDX-License-Identifier: BSD-3-Clause
#include "packed.h"

#include <cstring>

#include "forked.h"
#include "signature.h"
#include "tape.h"

namespace torchlms {

// Note [Handles]
//
// A handle never owns a Tensor: dropping a Tensor that Python knows takes the GIL, and a saved output
// that refers to its own graph would never be freed. It owns a share in a StorageState, which owns one
// c10::Storage, and rebuilds a tensor from geometry at each unpack. The version counter is shared with
// the program's tensor, so in-place changes after the pack are seen at unpack, as in plain PyTorch.
//
// Of a leaf plain PyTorch saves the variable itself, and so backward sees what `leaf.data = ...` has put there
// since. A handle refers to a leaf weakly, and hands out its new bytes when its storage is another.

Packed::Packed(std::shared_ptr<Tape> tape, StorageStatePtr state, StorageId storage, const at::Tensor& tensor)
    : tape_(std::move(tape)), state_(std::move(state)), storage_(storage), view_(tensor) {
  if (!tensor.is_inference()) {
    version_counter_ = tensor.unsafeGetTensorImpl()->version_counter();
    version_ = version_counter_.current_version();
  }
  if (tensor.is_leaf()) {
    leaf_.emplace(
        Leaf{
            c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>(tensor.getIntrusivePtr()),
            tensor.storage().getWeakStorageImpl()});
  }
}

Packed::~Packed() {
  if (!in_forked_child()) { // whose locks may never be free; the parent does the bookkeeping
    tape_->handle_died(storage_);
  }
}

void Packed::check_version() const {
  if (!version_counter_.enabled() || version_counter_.current_version() == version_) {
    return;
  }
  TORCH_CHECK(
      false,
      "one of the variables needed for gradient computation has been modified by an inplace operation: [",
      view_.dtype.name(),
      " ",
      c10::IntArrayRef(view_.sizes),
      "] is at version ",
      version_counter_.current_version(),
      "; expected version ",
      version_,
      " instead. Hint: enable anomaly detection to find the operation that failed to compute its gradient, "
      "with torch.autograd.set_detect_anomaly(True).");
}

at::Tensor Packed::swapped_leaf() const {
  if (!leaf_) {
    return {};
  }
  auto impl = leaf_->tensor.lock();
  if (!impl || !impl->has_storage()) {
    return {};
  }
  at::Tensor leaf(std::move(impl));
  const bool is_same = leaf.storage().unsafeGetStorageImpl() == leaf_->storage._unsafe_get_target();
  return is_same ? at::Tensor() : leaf;
}

bool Packed::is_ready() const {
  return in_forked_child() || tape_->is_ready(storage_);
}

at::Tensor Packed::unpack(CopyOut copy_out, const SwapEngine::InterruptFn& interrupt) {
  TORCH_CHECK(
      !in_forked_child(),
      "torchlms: this graph was recorded before the process was forked; its saved tensors can be used in the parent only");
  check_version();
  c10::Storage storage = tape_->unpack(storage_, state_, interrupt);
  if (const at::Tensor leaf = swapped_leaf(); leaf.defined()) {
    return View(leaf).over(leaf.storage());
  }
  // AccumulateGrad keeps a tensor that a custom Function returns when it looks unshared, and adds into
  // it later: such a Function must not get bytes that somebody else reads.
  const bool copies = copy_out == CopyOut::kAlways ||
      (copy_out == CopyOut::kIfShared && tape_->has_other_readers(storage_, storage));
  return copies ? view_.copy_of(storage) : view_.over(std::move(storage));
}

namespace {

int64_t tracked_version(const at::Tensor& tensor) {
  return tensor.is_inference() ? -1 : static_cast<int64_t>(tensor._version());
}

} // namespace

VersionPin::VersionPin(const at::Tensor& tensor) : version_(tracked_version(tensor)) {}

void VersionPin::check(const at::Tensor& alias) const {
  const int64_t version = tracked_version(alias);
  TORCH_CHECK(
      version == version_,
      "one of the variables needed for gradient computation has been modified by an inplace operation: it is at "
      "version ",
      version,
      "; expected version ",
      version_,
      " instead. Hint: enable anomaly detection to find the operation that failed to compute its gradient, with "
      "torch.autograd.set_detect_anomaly(True).");
}

uint64_t checksum_of(const void* data, Bytes size) {
  // Four independent lanes: as fast as memory.
  uint64_t lanes[4] = {1, 2, 3, 4};
  const char* bytes = static_cast<const char*>(data);
  Bytes i = 0;
  for (; i + 32 <= size; i += 32) {
    uint64_t words[4];
    std::memcpy(words, bytes + i, 32);
    for (int lane = 0; lane < 4; ++lane) {
      lanes[lane] = mix(lanes[lane], words[lane]);
    }
  }
  uint64_t hash = mix(mix(lanes[0], lanes[1]), mix(lanes[2], lanes[3]));
  for (; i < size; ++i) {
    hash = mix(hash, static_cast<unsigned char>(bytes[i]));
  }
  return hash;
}

} // namespace torchlms
