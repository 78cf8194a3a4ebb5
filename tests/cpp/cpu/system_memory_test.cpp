// SPDX-License-Identifier: BSD-3-Clause
#include "cpu/system_memory.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>
#include <string>

namespace torchlms {
namespace {

namespace fs = std::filesystem;

constexpr Bytes kGiB = 1 << 30;

// A made-up system of 16 GiB with 12 GiB available.
class SystemMemoryTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string name = (fs::temp_directory_path() / "system_memory_XXXXXX").string();
    ASSERT_NE(mkdtemp(name.data()), nullptr);
    root_ = name;
    write("proc/meminfo", "MemTotal:       16777216 kB\nMemAvailable:   12582912 kB\n");
  }
  void TearDown() override {
    fs::remove_all(root_);
  }

  void write(const std::string& file, const std::string& text) {
    const fs::path path = root_ / file;
    fs::create_directories(path.parent_path());
    std::ofstream(path) << text;
  }
  void mount_v1(const std::string& cgroup, const std::string& mount_root = "/") {
    write("proc/self/cgroup", "5:cpu,cpuacct:/x\n4:memory:" + cgroup + "\n0::/\n");
    write(
        "proc/self/mountinfo",
        "35 31 0:32 " + mount_root + " /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n");
  }
  void mount_v2(const std::string& cgroup) {
    write("proc/self/cgroup", "0::" + cgroup + "\n");
    write("proc/self/mountinfo", "35 31 0:32 / /sys/fs/cgroup rw shared:9 - cgroup2 cgroup2 rw\n");
  }
  void limit_v1(const std::string& folder, Bytes limit, Bytes used, Bytes droppable = 0) {
    const std::string base = "sys/fs/cgroup/memory" + folder;
    write(base + "/memory.limit_in_bytes", std::to_string(limit) + "\n");
    write(base + "/memory.usage_in_bytes", std::to_string(used) + "\n");
    write(base + "/memory.stat", "inactive_file 1\ntotal_inactive_file " + std::to_string(droppable) + "\n");
  }
  void limit_v2(const std::string& folder, const std::string& max, Bytes used) {
    write("sys/fs/cgroup" + folder + "/memory.max", max + "\n");
    write("sys/fs/cgroup" + folder + "/memory.current", std::to_string(used) + "\n");
  }

  fs::path root_;
};

TEST_F(SystemMemoryTest, WithoutACgroupItIsTheRam) {
  const SystemMemory memory(root_);
  EXPECT_EQ(memory.total_bytes(), 16 * kGiB);
  EXPECT_EQ(memory.available_bytes(), 12 * kGiB);
}

TEST_F(SystemMemoryTest, AV1LimitBoundsBoth) {
  mount_v1("/job");
  limit_v1("/job", 4 * kGiB, 1 * kGiB);
  const SystemMemory memory(root_);
  EXPECT_EQ(memory.total_bytes(), 4 * kGiB);
  EXPECT_EQ(memory.available_bytes(), 3 * kGiB);
}

TEST_F(SystemMemoryTest, AV1GroupWithoutALimitChangesNothing) {
  mount_v1("/job");
  limit_v1("/job", 9223372036854771712, 1 * kGiB);
  const SystemMemory memory(root_);
  EXPECT_EQ(memory.total_bytes(), 16 * kGiB);
  EXPECT_EQ(memory.available_bytes(), 12 * kGiB);
}

TEST_F(SystemMemoryTest, PageCacheThatCanBeDroppedIsHeadRoom) {
  mount_v1("/job");
  limit_v1("/job", 4 * kGiB, 3 * kGiB, 2 * kGiB);
  EXPECT_EQ(SystemMemory(root_).available_bytes(), 3 * kGiB);
}

TEST_F(SystemMemoryTest, ATighterParentWins) {
  mount_v1("/pod/job");
  limit_v1("/pod/job", 8 * kGiB, 1 * kGiB);
  limit_v1("/pod", 6 * kGiB, 4 * kGiB);
  const SystemMemory memory(root_);
  EXPECT_EQ(memory.total_bytes(), 6 * kGiB);
  EXPECT_EQ(memory.available_bytes(), 2 * kGiB);
}

TEST_F(SystemMemoryTest, AV2LimitIsFoundAboveAGroupWithoutOne) {
  mount_v2("/pod/job");
  limit_v2("/pod/job", "max", 1 * kGiB);
  limit_v2("/pod", std::to_string(5 * kGiB), 2 * kGiB);
  const SystemMemory memory(root_);
  EXPECT_EQ(memory.total_bytes(), 5 * kGiB);
  EXPECT_EQ(memory.available_bytes(), 3 * kGiB);
}

TEST_F(SystemMemoryTest, TheV2ThrottlingLimitCounts) {
  mount_v2("/job");
  limit_v2("/job", std::to_string(5 * kGiB), 1 * kGiB);
  write("sys/fs/cgroup/job/memory.high", std::to_string(3 * kGiB));
  EXPECT_EQ(SystemMemory(root_).total_bytes(), 3 * kGiB);
}

TEST_F(SystemMemoryTest, AContainersMountShowsItsOwnGroupAtTheTop) {
  mount_v1("/docker/abc", "/docker/abc");
  limit_v1("", 2 * kGiB, 1 * kGiB);
  EXPECT_EQ(SystemMemory(root_).total_bytes(), 2 * kGiB);
}

TEST_F(SystemMemoryTest, AGroupThatIsNotVisibleFallsBackToTheMountPoint) {
  mount_v1("/docker/abc");
  limit_v1("", 2 * kGiB, 1 * kGiB);
  EXPECT_EQ(SystemMemory(root_).total_bytes(), 2 * kGiB);
}

TEST_F(SystemMemoryTest, AGroupOverItsLimitHasNoHeadRoom) {
  mount_v1("/job");
  limit_v1("/job", 2 * kGiB, 3 * kGiB);
  EXPECT_EQ(SystemMemory(root_).available_bytes(), 0);
}

TEST_F(SystemMemoryTest, FollowsAChangeOfTheLimit) {
  mount_v1("/job");
  limit_v1("/job", 2 * kGiB, 1 * kGiB);
  const SystemMemory memory(root_);
  EXPECT_EQ(memory.total_bytes(), 2 * kGiB);
  limit_v1("/job", 3 * kGiB, 1 * kGiB);
  EXPECT_EQ(memory.total_bytes(), 3 * kGiB);
}

TEST(SystemMemory, TheRealSystemHasSomeAndNoMoreAvailableThanTotal) {
  const SystemMemory memory;
  EXPECT_GT(memory.available_bytes(), 0);
  EXPECT_GE(memory.total_bytes(), memory.available_bytes());
}

} // namespace
} // namespace torchlms
