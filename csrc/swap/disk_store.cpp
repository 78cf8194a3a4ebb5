// SPDX-License-Identifier: BSD-3-Clause
#include "swap/disk_store.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <map>
#include <mutex>
#include <optional>
#include <system_error>
#include <utility>

#include "swap/disk_file.h"

namespace torchlms {
namespace {

static_assert(DiskStore::kAlignment == DiskFile::kBlockBytes);

// Extending the file waits for its direct I/O in flight (ext4), so it is done in large steps.
constexpr Bytes kGrowStepBytes = Bytes{64} << 20;

constexpr Bytes round_down(Bytes size) {
  return size / DiskStore::kAlignment * DiskStore::kAlignment;
}

std::string in_words(Bytes size) {
  const int shift = size >= (Bytes{1} << 30) ? 30 : size >= (Bytes{1} << 20) ? 20 : 10;
  const char* unit = shift == 30 ? "GiB" : shift == 20 ? "MiB" : "KiB";
  char text[32];
  std::snprintf(
      text,
      sizeof(text),
      "%.1f %s",
      static_cast<double>(size) / static_cast<double>(Bytes{1} << shift),
      unit);
  return text;
}

bool is_full(int code) {
  return code == ENOSPC || code == EDQUOT;
}

std::unique_ptr<DiskFile> make_file(const std::string& folder) {
  try {
    return std::make_unique<DiskFile>(folder);
  } catch (const std::system_error& error) {
    throw DiskError(
        error.code().value(),
        "cannot swap to disk: no file can be made in '" + folder + "': " + error.code().message());
  }
}

// An injected failure of one call, counted down by the calls themselves.
class Fault {
 public:
  void set(int nth, int code) {
    code_ = code;
    countdown_ = code == 0 ? 0 : nth;
  }
  // 0 or the errno with which this call is to fail.
  int next() {
    return countdown_ > 0 && countdown_.fetch_sub(1) == 1 ? code_.load() : 0;
  }

 private:
  std::atomic<int> countdown_ = 0;
  std::atomic<int> code_ = 0;
};

} // namespace

struct DiskStore::Impl {
  Impl(const std::string& path, Bytes budget_bytes)
      : folder(path),
        owner(::getpid()),
        file(make_file(path)),
        budget(round_down(budget_bytes > 0 ? budget_bytes : file->free_bytes() / 5 * 4)) {}

  std::optional<Bytes> take(Bytes size);
  void put(Bytes offset, Bytes size);
  int grow(Bytes size);
  [[noreturn]] void throw_not_allocated(int code, Bytes size) const;
  [[noreturn]] void throw_not_moved(int code, const char* verb, Bytes size) const;
  Bytes position_of(const DiskExtent& extent, Bytes offset, Bytes size) const;

  // Constant after construction.
  const std::string folder;
  const pid_t owner;
  const std::unique_ptr<DiskFile> file; // has its own synchronisation
  const Bytes budget;

  // Guarded by mutex. Free ranges by offset; no two touch. Used + free ranges = [0, file_end).
  mutable std::mutex mutex;
  std::map<Bytes, Bytes> free_ranges;
  Bytes file_end = 0;
  Bytes used = 0;
  Bytes peak = 0;

  // Own synchronisation.
  Fault write_fault;
  Fault read_fault;
};

// First fit.
std::optional<Bytes> DiskStore::Impl::take(Bytes size) {
  const auto range = std::find_if(free_ranges.begin(), free_ranges.end(), [size](const auto& candidate) {
    return candidate.second >= size;
  });
  if (range == free_ranges.end()) {
    return std::nullopt;
  }
  const auto [offset, length] = *range;
  free_ranges.erase(range);
  if (length > size) {
    free_ranges.emplace(offset + size, length - size);
  }
  return offset;
}

void DiskStore::Impl::put(Bytes offset, Bytes size) {
  auto next = free_ranges.lower_bound(offset);
  if (next != free_ranges.begin()) {
    const auto previous = std::prev(next);
    if (previous->first + previous->second == offset) {
      offset = previous->first;
      size += previous->second;
      free_ranges.erase(previous);
    }
  }
  if (next != free_ranges.end() && offset + size == next->first) {
    size += next->second;
    next = free_ranges.erase(next);
  }
  free_ranges.emplace_hint(next, offset, size);
}

// Makes room for one extent of `size` bytes at the end of the file. 0 or an errno.
int DiskStore::Impl::grow(Bytes size) {
  Bytes tail = 0;
  if (!free_ranges.empty()) {
    const auto& [offset, length] = *free_ranges.rbegin();
    tail = offset + length == file_end ? length : 0;
  }
  const Bytes missing = size - tail;
  const Bytes disk_free = file->free_bytes();
  if (missing > budget - file_end || missing > disk_free) {
    return ENOSPC;
  }
  // Near a full disk take no more than needed: others may use the rest.
  const Bytes step = disk_free > 16 * kGrowStepBytes ? std::min(kGrowStepBytes, budget - file_end) : 0;
  const Bytes growth = std::max(missing, step);
  const int code = file->extend(file_end, growth);
  if (code == 0) {
    put(file_end, growth);
    file_end += growth;
  }
  return code;
}

// Requires: the mutex is held.
void DiskStore::Impl::throw_not_allocated(int code, Bytes size) const {
  if (!is_full(code)) {
    throw_not_moved(code, "reserving", size);
  }
  const Bytes free = std::min(budget - used, file_end - used + file->free_bytes());
  std::string text = "cannot swap to disk: " + folder + " is full: " + in_words(size) + " needed, " +
      in_words(free) + " free";
  if (size <= free) {
    Bytes largest = 0;
    for (const auto& [offset, length] : free_ranges) {
      largest = std::max(largest, length);
    }
    text += " in pieces of at most " + in_words(largest);
  }
  throw DiskError(code, text + " (disk_budget " + in_words(budget) + ")");
}

void DiskStore::Impl::throw_not_moved(int code, const char* verb, Bytes size) const {
  throw DiskError(
      code,
      "cannot swap to disk: " + std::string(verb) + " " + in_words(size) + " in " + folder + " failed: " +
          std::generic_category().message(code) + " (" + in_words(file->free_bytes()) + " free)");
}

Bytes DiskStore::Impl::position_of(const DiskExtent& extent, Bytes offset, Bytes size) const {
  const bool inside = offset >= 0 && offset <= extent.size() && size >= 0 && size <= extent.size() - offset;
  if (!inside || offset % kAlignment != 0) {
    throw DiskError(
        EINVAL,
        "cannot swap to disk: " + std::to_string(size) + " bytes at offset " + std::to_string(offset) +
            " do not fit an extent of " + std::to_string(extent.size()) + " bytes in " + folder);
  }
  return extent.offset() + offset;
}

DiskStore::DiskStore(std::string folder, Bytes budget_bytes)
    : folder_(std::move(folder)), impl_(std::make_unique<Impl>(folder_, budget_bytes)) {}

DiskStore::~DiskStore() = default;

DiskExtent DiskStore::allocate(Bytes size) {
  const std::lock_guard lock(impl_->mutex);
  if (size <= 0 || size > impl_->budget) { // before rounding up, which could overflow
    impl_->throw_not_allocated(size <= 0 ? EINVAL : ENOSPC, size);
  }
  const Bytes rounded = round_down(size + kAlignment - 1);
  std::optional<Bytes> offset = impl_->take(rounded);
  if (!offset) {
    const int code = impl_->grow(rounded);
    if (code != 0) {
      impl_->throw_not_allocated(code, rounded);
    }
    offset = impl_->take(rounded);
  }
  impl_->used += rounded;
  impl_->peak = std::max(impl_->peak, impl_->used);
  return DiskExtent(this, *offset, rounded);
}

void DiskStore::give_back(Bytes offset, Bytes size) noexcept {
  // A forked child shares the file but not the books, and the mutex may have been held at the fork.
  if (::getpid() != impl_->owner) {
    return;
  }
  const std::lock_guard lock(impl_->mutex);
  impl_->put(offset, size);
  impl_->used -= size;
}

void DiskStore::write(const DiskExtent& extent, Bytes offset, const void* data, Bytes size) {
  const Bytes position = impl_->position_of(extent, offset, size);
  int code = impl_->write_fault.next();
  if (code == 0) {
    code = impl_->file->write(position, data, size);
  }
  if (code != 0) {
    impl_->throw_not_moved(code, "writing", size);
  }
}

void DiskStore::read(const DiskExtent& extent, Bytes offset, void* data, Bytes size) {
  const Bytes position = impl_->position_of(extent, offset, size);
  int code = impl_->read_fault.next();
  if (code == 0) {
    code = impl_->file->read(position, data, size);
  }
  if (code != 0) {
    impl_->throw_not_moved(code, "reading", size);
  }
}

Bytes DiskStore::used_bytes() const {
  const std::lock_guard lock(impl_->mutex);
  return impl_->used;
}

Bytes DiskStore::peak_bytes() const {
  const std::lock_guard lock(impl_->mutex);
  return impl_->peak;
}

Bytes DiskStore::budget_bytes() const {
  return impl_->budget;
}

Bytes DiskStore::free_bytes() const {
  return impl_->file->free_bytes();
}

bool DiskStore::direct() const {
  return impl_->file->direct();
}

bool DiskStore::is_memory() const {
  return impl_->file->is_memory();
}

void DiskStore::fail_write_for_test(int nth, int code) {
  impl_->write_fault.set(nth, code);
}

void DiskStore::fail_read_for_test(int nth, int code) {
  impl_->read_fault.set(nth, code);
}

DiskExtent::DiskExtent(DiskExtent&& other) noexcept
    : store_(std::exchange(other.store_, nullptr)),
      offset_(other.offset_),
      size_(std::exchange(other.size_, 0)) {}

DiskExtent& DiskExtent::operator=(DiskExtent&& other) noexcept {
  // The destructor of `taken` gives back what this held.
  DiskExtent taken(std::move(other));
  std::swap(store_, taken.store_);
  std::swap(offset_, taken.offset_);
  std::swap(size_, taken.size_);
  return *this;
}

DiskExtent::~DiskExtent() {
  if (store_ != nullptr) {
    store_->give_back(offset_, size_);
  }
}

} // namespace torchlms
