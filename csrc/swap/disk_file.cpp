// SPDX-License-Identifier: BSD-3-Clause
#include "swap/disk_file.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/statfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>
#include <system_error>

namespace torchlms {
namespace {

// Note [Disk coherence]
// The kernel keeps O_DIRECT and the page cache of one file coherent only as long as they do not
// overlap in time, and a page cache full of swapped bytes would take the very memory that swapping is
// to free. So a file never mixes the two: whether it is direct is settled once, by a trial write, and
// then holds for its one descriptor. Unaligned memory and tails stay direct by going through a staging
// buffer in whole blocks: that is why a write may overwrite the rest of its last block.

constexpr Bytes kStagingBytes = Bytes{1} << 20;
constexpr Bytes kUnknownFreeBytes = Bytes{1} << 50;

constexpr Bytes round_down(Bytes size) {
  return size / DiskFile::kBlockBytes * DiskFile::kBlockBytes;
}

constexpr Bytes round_up(Bytes size) {
  return round_down(size + DiskFile::kBlockBytes - 1);
}

struct Free {
  void operator()(void* memory) const {
    std::free(memory);
  }
};
using AlignedBuffer = std::unique_ptr<char, Free>;

AlignedBuffer make_aligned(Bytes size) {
  AlignedBuffer buffer(
      static_cast<char*>(std::aligned_alloc(DiskFile::kBlockBytes, static_cast<size_t>(size))));
  if (!buffer) {
    throw std::bad_alloc();
  }
  return buffer;
}

char* staging_buffer() {
  thread_local AlignedBuffer buffer;
  if (!buffer) {
    buffer = make_aligned(kStagingBytes);
  }
  return buffer.get();
}

int open_private_file(const std::string& folder) {
  // O_EXCL: nobody can link the file into a folder later.
  int fd = ::open(folder.c_str(), O_TMPFILE | O_EXCL | O_RDWR | O_CLOEXEC, 0600);
  if (fd < 0 && (errno == EOPNOTSUPP || errno == EISDIR)) {
    std::string path = folder + "/torchlms-XXXXXX";
    fd = ::mkostemp(path.data(), O_CLOEXEC);
    if (fd >= 0) {
      ::unlink(path.c_str());
    }
  }
  if (fd < 0) {
    throw std::system_error(errno, std::generic_category());
  }
  return fd;
}

// Some file systems accept the flag and refuse the transfer, hence the trial.
bool try_direct(int fd) {
  const AlignedBuffer block = make_aligned(DiskFile::kBlockBytes);
  std::memset(block.get(), 0, DiskFile::kBlockBytes);
  const int flags = ::fcntl(fd, F_GETFL);
  if (::fcntl(fd, F_SETFL, flags | O_DIRECT) != 0) {
    return false;
  }
  if (::pwrite(fd, block.get(), DiskFile::kBlockBytes, 0) == DiskFile::kBlockBytes) {
    return true;
  }
  ::fcntl(fd, F_SETFL, flags);
  return false;
}

} // namespace

DiskFile::DiskFile(const std::string& folder) : fd_(open_private_file(folder)), direct_(try_direct(fd_)) {}

DiskFile::~DiskFile() {
  ::close(fd_);
}

int DiskFile::extend(Bytes offset, Bytes size) {
  int result = 0;
  do {
    result = ::fallocate(fd_, 0, offset, size);
  } while (result != 0 && errno == EINTR);
  if (result != 0 && errno == EOPNOTSUPP) {
    // Without preallocation a full disk shows at the write instead.
    result = ::ftruncate(fd_, offset + size);
  }
  return result == 0 ? 0 : errno;
}

int DiskFile::write(Bytes position, const void* data, Bytes size) {
  int code = 0;
  const char* from = static_cast<const char*>(data);
  for (Bytes moved = 0; code == 0 && size > 0; from += moved, position += moved, size -= moved) {
    moved = unstaged_bytes(from, size);
    if (moved > 0) {
      code = transfer(::pwrite, from, moved, position);
    } else {
      moved = std::min(size, kStagingBytes);
      char* block = staging_buffer();
      std::memcpy(block, from, static_cast<size_t>(moved));
      std::memset(block + moved, 0, static_cast<size_t>(round_up(moved) - moved));
      code = transfer(::pwrite, static_cast<const char*>(block), round_up(moved), position);
    }
  }
  return code;
}

int DiskFile::read(Bytes position, void* data, Bytes size) {
  int code = 0;
  char* to = static_cast<char*>(data);
  for (Bytes moved = 0; code == 0 && size > 0; to += moved, position += moved, size -= moved) {
    moved = unstaged_bytes(to, size);
    if (moved > 0) {
      code = transfer(::pread, to, moved, position);
    } else {
      moved = std::min(size, kStagingBytes);
      char* block = staging_buffer();
      code = transfer(::pread, block, round_up(moved), position);
      std::memcpy(to, block, code == 0 ? static_cast<size_t>(moved) : 0);
    }
  }
  return code;
}

bool DiskFile::is_memory() const {
  struct statfs status{};
  return ::fstatfs(fd_, &status) == 0 && (status.f_type == TMPFS_MAGIC || status.f_type == RAMFS_MAGIC);
}

Bytes DiskFile::free_bytes() const {
  struct statfs status{};
  if (::fstatfs(fd_, &status) != 0) {
    return 0;
  }
  if (status.f_blocks == 0) {
    return kUnknownFreeBytes; // ramfs and some FUSE file systems do not count
  }
  return static_cast<Bytes>(status.f_bavail) * static_cast<Bytes>(status.f_bsize);
}

// Repeats `io` (pread, pwrite) until all is moved.
template <typename Io, typename Pointer>
int DiskFile::transfer(Io io, Pointer data, Bytes size, Bytes position) const {
  while (size > 0) {
    Bytes moved = io(fd_, data, static_cast<size_t>(size), position);
    if (moved < 0 && errno == EINTR) {
      continue;
    }
    if (moved < 0) {
      return errno;
    }
    // A direct transfer that stopped inside a block repeats that block: the rest would be unaligned.
    moved = direct_ ? round_down(moved) : moved;
    if (moved == 0) {
      return EIO;
    }
    data += moved;
    size -= moved;
    position += moved;
  }
  return 0;
}

// How many bytes at `data` may go to or from the file without staging.
Bytes DiskFile::unstaged_bytes(const void* data, Bytes size) const {
  if (!direct_) {
    return size;
  }
  return reinterpret_cast<uintptr_t>(data) % kBlockBytes == 0 ? round_down(size) : 0;
}

} // namespace torchlms
