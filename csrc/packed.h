// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/TensorImpl.h>
#include <memory>
#include <optional>

#include "export.h"
#include "recompute/view.h"
#include "swap/swap_engine.h"
#include "trace/types.h"

namespace torchlms {

class Tape;

// When unpack hands out a copy of its own instead of a tensor over the saved storage.
enum class CopyOut : uint8_t {
  kNever,
  kIfShared, // when anything else will read the storage
  kAlways,
};

// What autograd stores in place of a tensor that it saves: geometry, version, and a share in the
// storage's state. Its destructor gives up that share, and with the last one device, host and disk
// bytes are freed, on whatever thread that is. unpack() may be called any number of times, from any
// thread. See Note [Handles] in packed.cpp.
class TORCHLMS_EXPORT Packed {
 public:
  Packed(std::shared_ptr<Tape> tape, StorageStatePtr state, StorageId storage, const at::Tensor& tensor);
  ~Packed();
  Packed(const Packed&) = delete;
  Packed& operator=(const Packed&) = delete;

  // Throws c10::Error when the tensor was changed in place since it was packed (the text is plain
  // PyTorch's), DiskError, c10::OutOfMemoryError.
  at::Tensor unpack(CopyOut copy_out, const SwapEngine::InterruptFn& interrupt);
  // The unpack needs no wait, so that the caller need not release its locks.
  bool is_ready() const;

 private:
  void check_version() const;
  // The leaf that was saved when it has another storage by now, else undefined.
  at::Tensor swapped_leaf() const;

  const std::shared_ptr<Tape> tape_;
  const StorageStatePtr state_;
  const StorageId storage_;
  const View view_;
  c10::VariableVersion version_counter_;
  uint32_t version_ = 0;
  struct Leaf {
    c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl> tensor;
    c10::weak_intrusive_ptr<c10::StorageImpl> storage; // its, when it was saved; keeps the address unique
  };
  std::optional<Leaf> leaf_; // set if what was saved is one
};

// The version of a tensor that is passed through as an alias. Hooks bypass PyTorch's own check that a
// saved tensor was not changed in place.
class TORCHLMS_EXPORT VersionPin {
 public:
  VersionPin() = default;
  explicit VersionPin(const at::Tensor& tensor);
  // Throws c10::Error, with plain PyTorch's text, when the alias is at another version.
  void check(const at::Tensor& alias) const;

 private:
  int64_t version_ = -1; // of a tensor that has none
};

// Of the bytes [data, data + size).
uint64_t checksum_of(const void* data, Bytes size);

} // namespace torchlms
