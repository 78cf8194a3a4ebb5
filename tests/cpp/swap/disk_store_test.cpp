// SPDX-License-Identifier: BSD-3-Clause
#include "swap/disk_store.h"

#include <gtest/gtest.h>
#include <sys/mount.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <random>
#include <string>
#include <thread>
#include <vector>

namespace torchlms {
namespace {

namespace fs = std::filesystem;
using ::testing::IsSubstring;

constexpr Bytes kKiB = 1024;
constexpr Bytes kMiB = 1024 * kKiB;

class DiskStoreTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string name = (fs::temp_directory_path() / "disk_store_test-XXXXXX").string();
    ASSERT_NE(::mkdtemp(name.data()), nullptr);
    folder_ = name;
  }
  void TearDown() override {
    ::umount2(folder_.c_str(), MNT_DETACH); // fails where the test mounted nothing
    fs::remove_all(folder_);
  }

  std::string folder_;
};

// Memory whose start is `misalignment` bytes past a multiple of kAlignment.
class Memory {
 public:
  Memory(Bytes size, Bytes misalignment) : size_(size), misalignment_(misalignment) {
    const Bytes room =
        (size + misalignment + DiskStore::kAlignment) / DiskStore::kAlignment * DiskStore::kAlignment;
    block_.reset(static_cast<char*>(std::aligned_alloc(DiskStore::kAlignment, room)), &std::free);
  }
  char* data() {
    return block_.get() + misalignment_;
  }
  void fill(uint64_t seed) {
    std::mt19937_64 random(seed);
    std::generate_n(data(), size_, [&] { return static_cast<char>(random()); });
  }
  bool operator==(Memory& other) {
    return size_ == other.size_ && std::equal(data(), data() + size_, other.data());
  }

 private:
  Bytes size_;
  Bytes misalignment_;
  std::shared_ptr<char> block_;
};

DiskError error_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const DiskError& error) {
    return error;
  }
  ADD_FAILURE() << "no DiskError";
  return DiskError(0, "");
}

TEST_F(DiskStoreTest, LeavesNoFileInTheFolder) {
  DiskStore store(folder_, kMiB);
  const DiskExtent extent = store.allocate(kMiB);
  store.write(extent, 0, std::string(100, 'x').data(), 100);
  EXPECT_TRUE(fs::is_empty(folder_));
}

TEST_F(DiskStoreTest, ReadsBackWhatWasWrittenFromAnyMemoryInAnySize) {
  DiskStore store(folder_, 64 * kMiB);
  std::mt19937_64 random(1);
  for (int round = 0; round < 40; ++round) {
    const Bytes blocks = std::uniform_int_distribution<Bytes>(256, 768)(random);
    const Bytes tail = round % 2 == 0 ? 0 : std::uniform_int_distribution<Bytes>(1, 4095)(random);
    const Bytes size = blocks * DiskStore::kAlignment + tail;
    Memory written(size, round % 3 == 0 ? 0 : 64);
    Memory read(size, round % 4 == 0 ? 0 : 16);
    written.fill(static_cast<uint64_t>(round));
    const DiskExtent extent = store.allocate(size);
    store.write(extent, 0, written.data(), size);
    store.read(extent, 0, read.data(), size);
    ASSERT_TRUE(written == read) << "round " << round << ", " << size << " bytes";
  }
}

TEST_F(DiskStoreTest, ChunksWrittenApartAreReadAsOne) {
  DiskStore store(folder_, 8 * kMiB);
  const Bytes size = 2 * kMiB + 1234;
  Memory written(size, 0);
  Memory read(size, 0);
  written.fill(2);
  const DiskExtent extent = store.allocate(size);
  const Bytes chunk = 192 * kKiB;
  for (Bytes offset = (size - 1) / chunk * chunk; offset >= 0; offset -= chunk) {
    store.write(extent, offset, written.data() + offset, std::min(chunk, size - offset));
  }
  store.read(extent, 0, read.data(), size);
  EXPECT_TRUE(written == read);
}

TEST_F(DiskStoreTest, AnUnalignedTailLeavesTheNextExtentAlone) {
  DiskStore store(folder_, kMiB);
  const DiskExtent first = store.allocate(5000);
  const DiskExtent second = store.allocate(5000);
  Memory a(5000, 0);
  Memory b(5000, 8);
  Memory read(5000, 0);
  a.fill(3);
  b.fill(4);
  store.write(second, 0, b.data(), 5000);
  store.write(first, 0, a.data(), 5000);
  store.read(second, 0, read.data(), 5000);
  EXPECT_TRUE(b == read);
}

TEST_F(DiskStoreTest, ConcurrentWritersAndReadersKeepTheirBytesApart) {
  DiskStore store(folder_, 64 * kMiB);
  std::vector<std::thread> threads;
  for (unsigned seed = 0; seed < 4; ++seed) {
    threads.emplace_back([&store, seed] {
      std::mt19937_64 random(seed);
      for (int round = 0; round < 20; ++round) {
        const Bytes size = std::uniform_int_distribution<Bytes>(1, kMiB)(random);
        Memory written(size, round % 2 * 64);
        Memory read(size, 0);
        written.fill(random());
        const DiskExtent extent = store.allocate(size);
        store.write(extent, 0, written.data(), size);
        store.read(extent, 0, read.data(), size);
        EXPECT_TRUE(written == read);
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  EXPECT_EQ(store.used_bytes(), 0);
}

TEST_F(DiskStoreTest, FreedNeighboursBecomeOneRange) {
  DiskStore store(folder_, 4 * kMiB);
  std::vector<DiskExtent> extents;
  for (int i = 0; i < 4; ++i) {
    extents.push_back(store.allocate(kMiB));
  }
  const Bytes offset = extents[1].offset();
  extents[1] = DiskExtent();
  extents[3] = DiskExtent();
  extents[2] = DiskExtent(); // joins both sides
  EXPECT_EQ(store.allocate(3 * kMiB).offset(), offset);
}

TEST_F(DiskStoreTest, CountsUsedAndPeakBytesInWholeBlocks) {
  DiskStore store(folder_, 4 * kMiB);
  DiskExtent extent = store.allocate(1);
  EXPECT_EQ(extent.size(), DiskStore::kAlignment);
  {
    const DiskExtent other = store.allocate(DiskStore::kAlignment + 1);
    EXPECT_EQ(store.used_bytes(), 3 * DiskStore::kAlignment);
  }
  EXPECT_EQ(store.used_bytes(), DiskStore::kAlignment);
  EXPECT_EQ(store.peak_bytes(), 3 * DiskStore::kAlignment);
  DiskExtent moved = std::move(extent);
  EXPECT_FALSE(extent);
  EXPECT_EQ(store.used_bytes(), DiskStore::kAlignment);
}

TEST_F(DiskStoreTest, AnAllocationBeyondTheBudgetNamesPathAndBytes) {
  DiskStore store(folder_, 3 * kMiB);
  DiskExtent kept = store.allocate(kMiB);
  const DiskError error = error_of([&] { store.allocate(12 * kMiB); });
  EXPECT_EQ(error.code(), ENOSPC);
  EXPECT_EQ(
      error.what(),
      "cannot swap to disk: " + folder_ + " is full: 12.0 MiB needed, 2.0 MiB free (disk_budget 3.0 MiB)");
  EXPECT_EQ(store.allocate(2 * kMiB).size(), 2 * kMiB);
}

TEST_F(DiskStoreTest, ABudgetThatIsFreeInPiecesOnlySaysSo) {
  DiskStore store(folder_, 3 * kMiB);
  DiskExtent first = store.allocate(kMiB);
  const DiskExtent second = store.allocate(kMiB);
  first = DiskExtent();
  const DiskError error = error_of([&] { store.allocate(2 * kMiB); });
  EXPECT_PRED_FORMAT2(IsSubstring, "2.0 MiB needed, 2.0 MiB free in pieces of at most 1.0 MiB", error.what());
}

TEST_F(DiskStoreTest, ABudgetOfZeroIsMostOfWhatIsFree) {
  const DiskStore store(folder_, 0);
  EXPECT_GT(store.budget_bytes(), 0);
  EXPECT_LT(store.budget_bytes(), store.free_bytes());
}

TEST_F(DiskStoreTest, RefusesMoreThanTheFileSystemHasFree) {
  DiskStore store(folder_, Bytes{1} << 60);
  const DiskError error = error_of([&] { store.allocate(Bytes{1} << 59); });
  EXPECT_EQ(error.code(), ENOSPC);
  EXPECT_PRED_FORMAT2(IsSubstring, folder_ + " is full", error.what());
}

TEST_F(DiskStoreTest, AFullFileSystemFailsTheAllocationAndKeepsTheRest) {
  if (::mount("tmpfs", folder_.c_str(), "tmpfs", 0, "size=4m") != 0) {
    GTEST_SKIP() << "mounting a small file system needs privileges";
  }
  DiskStore store(folder_, Bytes{1} << 30);
  EXPECT_TRUE(store.is_memory());
  Memory written(3 * kMiB, 0);
  Memory read(3 * kMiB, 0);
  written.fill(5);
  const DiskExtent extent = store.allocate(3 * kMiB);
  store.write(extent, 0, written.data(), 3 * kMiB);
  const DiskError error = error_of([&] { store.allocate(2 * kMiB); });
  EXPECT_EQ(error.code(), ENOSPC);
  EXPECT_PRED_FORMAT2(IsSubstring, "2.0 MiB needed, 1.0 MiB free (disk_budget 1.0 GiB)", error.what());
  store.read(extent, 0, read.data(), 3 * kMiB);
  EXPECT_TRUE(written == read);
}

TEST_F(DiskStoreTest, AFileSystemWithoutDirectIoOrPreallocationIsUsedBuffered) {
  if (::mount("ramfs", folder_.c_str(), "ramfs", 0, nullptr) != 0) {
    GTEST_SKIP() << "mounting a file system needs privileges";
  }
  DiskStore store(folder_, 4 * kMiB);
  EXPECT_FALSE(store.direct());
  const Bytes size = kMiB + 100;
  Memory written(size, 64);
  Memory read(size, 0);
  written.fill(8);
  const DiskExtent extent = store.allocate(size);
  store.read(extent, 0, read.data(), size); // never written, yet inside the file
  store.write(extent, 0, written.data(), size);
  store.read(extent, 0, read.data(), size);
  EXPECT_TRUE(written == read);
}

TEST_F(DiskStoreTest, AMissingFolderIsAnErrorThatNamesIt) {
  const DiskError error = error_of([&] { DiskStore(folder_ + "/none", kMiB); });
  EXPECT_EQ(error.code(), ENOENT);
  EXPECT_PRED_FORMAT2(IsSubstring, folder_ + "/none': No such file or directory", error.what());
}

TEST_F(DiskStoreTest, AFileInPlaceOfTheFolderIsAnError) {
  const DiskError error = error_of([] { DiskStore("/dev/null", kMiB); });
  EXPECT_EQ(error.code(), ENOTDIR);
  EXPECT_PRED_FORMAT2(IsSubstring, "/dev/null': Not a directory", error.what());
}

TEST_F(DiskStoreTest, AReadOnlyFolderIsAnError) {
  fs::permissions(
      folder_,
      fs::perms::owner_read | fs::perms::owner_exec | fs::perms::others_read | fs::perms::others_exec);
  const bool privileged = ::geteuid() == 0;
  if (privileged) {
    ASSERT_EQ(::seteuid(65534), 0); // permissions do not bind root
  }
  const DiskError error = error_of([&] { DiskStore(folder_, kMiB); });
  if (privileged) {
    ASSERT_EQ(::seteuid(0), 0);
  }
  EXPECT_EQ(error.code(), EACCES);
  EXPECT_PRED_FORMAT2(IsSubstring, folder_ + "': Permission denied", error.what());
}

TEST_F(DiskStoreTest, AnInjectedWriteFailureLeavesTheStoreUsable) {
  DiskStore store(folder_, 4 * kMiB);
  const DiskExtent extent = store.allocate(kMiB);
  Memory written(kMiB, 0);
  Memory read(kMiB, 0);
  written.fill(6);
  store.fail_write_for_test(2, ENOSPC);
  store.write(extent, 0, written.data(), kMiB);
  const DiskError error = error_of([&] { store.write(extent, 0, written.data(), kMiB); });
  EXPECT_EQ(error.code(), ENOSPC);
  EXPECT_PRED_FORMAT2(
      IsSubstring, "writing 1.0 MiB in " + folder_ + " failed: No space left on device (", error.what());
  store.write(extent, 0, written.data(), kMiB);
  store.read(extent, 0, read.data(), kMiB);
  EXPECT_TRUE(written == read);
}

TEST_F(DiskStoreTest, AnInjectedReadFailureHappensOnceAndCanBeCleared) {
  DiskStore store(folder_, 4 * kMiB);
  const DiskExtent extent = store.allocate(kMiB);
  Memory memory(kMiB, 0);
  store.fail_read_for_test(1, EIO);
  EXPECT_EQ(error_of([&] { store.read(extent, 0, memory.data(), kMiB); }).code(), EIO);
  store.read(extent, 0, memory.data(), kMiB);
  store.fail_read_for_test(1, EIO);
  store.fail_read_for_test(0, 0);
  store.read(extent, 0, memory.data(), kMiB);
}

TEST_F(DiskStoreTest, TransfersOutsideTheExtentAreRefused) {
  DiskStore store(folder_, kMiB);
  const DiskExtent extent = store.allocate(8192);
  Memory memory(16384, 0);
  EXPECT_EQ(error_of([&] { store.write(extent, 4096, memory.data(), 8192); }).code(), EINVAL);
  EXPECT_EQ(error_of([&] { store.read(extent, -4096, memory.data(), 4096); }).code(), EINVAL);
  EXPECT_EQ(error_of([&] { store.read(extent, 100, memory.data(), 100); }).code(), EINVAL);
  EXPECT_EQ(error_of([&] { store.allocate(0); }).code(), EINVAL);
}

TEST_F(DiskStoreTest, AForkedChildMayDropEverythingWithoutHarm) {
  auto store = std::make_unique<DiskStore>(folder_, 4 * kMiB);
  Memory written(kMiB, 0);
  Memory read(kMiB, 0);
  written.fill(7);
  DiskExtent extent = store->allocate(kMiB);
  store->write(extent, 0, written.data(), kMiB);
  const pid_t child = ::fork();
  if (child == 0) {
    extent = DiskExtent();
    store.reset();
    ::_exit(0);
  }
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(store->used_bytes(), kMiB);
  store->read(extent, 0, read.data(), kMiB);
  EXPECT_TRUE(written == read);
}

} // namespace
} // namespace torchlms
