// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <memory>
#include <stdexcept>
#include <string>

#include "export.h"
#include "trace/types.h"

namespace torchlms {

// A failed disk operation, with the errno that the caller can act on. what() names the path, the
// bytes needed and the bytes free.
class TORCHLMS_EXPORT DiskError : public std::runtime_error {
 public:
  DiskError(int code, const std::string& message) : std::runtime_error(message), code_(code) {}
  int code() const noexcept {
    return code_;
  }

 private:
  int code_;
};

class DiskStore;

// A region of a DiskStore. Move-only; gives itself back. Must not outlive its store.
class DiskExtent {
 public:
  DiskExtent() = default;
  DiskExtent(DiskStore* store, Bytes offset, Bytes size) : store_(store), offset_(offset), size_(size) {}
  DiskExtent(DiskExtent&& other) noexcept;
  DiskExtent& operator=(DiskExtent&& other) noexcept;
  DiskExtent(const DiskExtent&) = delete;
  DiskExtent& operator=(const DiskExtent&) = delete;
  ~DiskExtent();

  explicit operator bool() const {
    return store_ != nullptr;
  }
  Bytes offset() const {
    return offset_;
  }
  Bytes size() const {
    return size_;
  }

 private:
  DiskStore* store_ = nullptr;
  Bytes offset_ = 0;
  Bytes size_ = 0;
};

// The disk tier: one unlinked private file, cut into extents. Thread-safe. Calls block; Link runs
// them on its threads. Failures throw DiskError and leave the store usable.
class TORCHLMS_EXPORT DiskStore {
 public:
  static constexpr Bytes kAlignment = 4096;

  // folder: where the file is made (O_TMPFILE, mode 0600, else mkstemp and unlink).
  // budget_bytes: the most bytes that extents may take; 0 = 0.8 of what is free at construction.
  // Throws DiskError when the folder is missing, read-only or not a folder.
  DiskStore(std::string folder, Bytes budget_bytes);
  ~DiskStore();
  DiskStore(const DiskStore&) = delete;
  DiskStore& operator=(const DiskStore&) = delete;

  // Reserves `size` bytes (rounded up to kAlignment). Throws DiskError(ENOSPC) beyond the budget or
  // beyond what the file system has free.
  DiskExtent allocate(Bytes size);

  // Moves `size` bytes between memory and the extent at `offset`, with O_DIRECT where the file system
  // allows it: memory at a multiple of kAlignment as it is, any other through a staging buffer of the
  // calling thread. Retries short transfers and EINTR.
  // Requires: `offset` is a multiple of kAlignment, and transfers at the same time share no block of
  // kAlignment bytes. A write whose size is no multiple may overwrite the rest of its last block.
  void write(const DiskExtent& extent, Bytes offset, const void* data, Bytes size);
  void read(const DiskExtent& extent, Bytes offset, void* data, Bytes size);

  const std::string& folder() const {
    return folder_;
  }
  Bytes used_bytes() const; // in extents now
  Bytes peak_bytes() const; // highest used_bytes so far
  Bytes budget_bytes() const;
  Bytes free_bytes() const; // of the file system, now
  bool direct() const; // O_DIRECT is in use
  bool is_memory() const; // the folder is a tmpfs: "disk" is RAM

  // Tests: the n-th write from now on (counted from 1) fails with this errno; 0 clears.
  void fail_write_for_test(int nth, int code);
  void fail_read_for_test(int nth, int code);

 private:
  friend class DiskExtent;
  void give_back(Bytes offset, Bytes size) noexcept;

  struct Impl;
  std::string folder_;
  std::unique_ptr<Impl> impl_;
};

} // namespace torchlms
