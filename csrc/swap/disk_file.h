// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <string>

#include "trace/types.h"

namespace torchlms {

// One unlinked private file (O_TMPFILE, mode 0600, else mkstemp and unlink), read and written by
// position, with O_DIRECT where the file system allows it. See Note [Disk coherence].
//
// Thread-safe: transfers at the same time must share no block of kBlockBytes. Owns its descriptor,
// which is closed on exec. Calls return 0 or an errno; the constructor throws std::system_error.
class DiskFile {
 public:
  static constexpr Bytes kBlockBytes = 4096;

  explicit DiskFile(const std::string& folder);
  ~DiskFile();
  DiskFile(const DiskFile&) = delete;
  DiskFile& operator=(const DiskFile&) = delete;

  // Makes the file longer, from `offset` = its length so far, and takes the space from the disk.
  int extend(Bytes offset, Bytes size);

  // Requires: `position` is a multiple of kBlockBytes. A write whose size is no multiple may overwrite
  // the rest of its last block; a read beyond the end of the file is EIO.
  int write(Bytes position, const void* data, Bytes size);
  int read(Bytes position, void* data, Bytes size);

  bool direct() const {
    return direct_;
  }
  bool is_memory() const; // on a tmpfs
  Bytes free_bytes() const; // of the file system, for unprivileged users

 private:
  template <typename Io, typename Pointer>
  int transfer(Io io, Pointer data, Bytes size, Bytes position) const;
  Bytes unstaged_bytes(const void* data, Bytes size) const;

  // Constant after construction.
  const int fd_;
  const bool direct_;
};

} // namespace torchlms
