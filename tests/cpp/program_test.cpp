// SPDX-License-Identifier: BSD-3-Clause
#include "program.h"

#include <gtest/gtest.h>

#include <utility>
#include <vector>

#include "plan/hand_trace.h"

namespace torchlms {
namespace {

constexpr StorageId kFirst = 0;
constexpr StorageId kSecond = 1;
constexpr StorageId kThird = 2;
constexpr int32_t kNumOps = 3;
constexpr int32_t kNumUnpacks = 3;

// The plan for three_layers() that keeps all but what is added. See its picture for the events.
class HandPlan {
 public:
  HandPlan() {
    plan_.actions.resize(3);
  }
  HandPlan& swap(StorageId storage, EventId release, EventId swap_in) {
    plan_.actions[storage] = {ActionKind::kSwap, Tier::kDisk, /*swap_out=*/0, release, swap_in};
    plan_.swap_in_order.push_back(storage);
    return *this;
  }
  Program program(std::vector<uint64_t> geometry = {1, 2, 3}, bool has_room = false) {
    return Program(three_layers(), plan_, std::move(geometry), /*entry_bytes=*/10, has_room);
  }

 private:
  Plan plan_;
};

std::vector<StorageId> storages(Program::Ids ids) {
  std::vector<StorageId> all;
  for (const auto& [count, storage] : ids) {
    all.push_back(storage);
  }
  return all;
}

using Storages = std::vector<StorageId>;

// All of them, by the number of ops or unpacks at which they are due.
std::vector<Storages> op_releases(const Program& program) {
  std::vector<Storages> all;
  for (int32_t op = 0; op < kNumOps; ++op) {
    all.push_back(storages(program.releases_before_op(op)));
  }
  return all;
}

std::vector<Storages> unpack_releases(const Program& program) {
  std::vector<Storages> all;
  for (int32_t unpack = 0; unpack < kNumUnpacks; ++unpack) {
    all.push_back(storages(program.releases_at_unpack(unpack)));
  }
  return all;
}

std::vector<Storages> swap_ins(const Program& program) {
  std::vector<Storages> all;
  for (int32_t num_unpacks = 0; num_unpacks <= kNumUnpacks; ++num_unpacks) {
    all.push_back(storages(program.swap_ins_after(num_unpacks)));
  }
  return all;
}

const std::vector<Storages> kNever(3);

TEST(ProgramTest, KnowsTheStorageOfEachUnpackAndOfNoMore) {
  const Program program = HandPlan().program();
  EXPECT_EQ(program.unpacked(0), kThird);
  EXPECT_EQ(program.unpacked(1), kSecond);
  EXPECT_EQ(program.unpacked(2), kFirst);
  EXPECT_EQ(program.unpacked(3), kNone);
}

TEST(ProgramTest, SwapsWhatThePlanSaysAndNothingElse) {
  const Program program = HandPlan().swap(kSecond, 8, 9).program();
  EXPECT_FALSE(program.swaps(kFirst));
  EXPECT_TRUE(program.swaps(kSecond));
}

TEST(ProgramTest, AReleaseInForwardIsDueBeforeTheNextOp) {
  // Event 4 is the death of the first storage, between the second and the third op.
  const Program program = HandPlan().swap(kFirst, 4, 9).program();
  EXPECT_EQ(op_releases(program), (std::vector<Storages>{{}, {}, {kFirst}}));
  EXPECT_EQ(unpack_releases(program), kNever);
}

TEST(ProgramTest, AReleaseAtAnOpIsDueBeforeTheOpAfterIt) {
  const Program program = HandPlan().swap(kFirst, 3, 9).program();
  EXPECT_EQ(op_releases(program), (std::vector<Storages>{{}, {}, {kFirst}}));
}

TEST(ProgramTest, AReleaseAfterTheLastOpIsDueBeforeTheFirstUnpack) {
  const Program program = HandPlan().swap(kFirst, 6, 9).swap(kSecond, 8, 9).program();
  EXPECT_EQ(op_releases(program), kNever);
  EXPECT_EQ(unpack_releases(program), (std::vector<Storages>{{kFirst, kSecond}, {}, {}}));
}

TEST(ProgramTest, AReleaseInBackwardIsDueAtTheUnpackBeforeIt) {
  // Events 9 and 11 are unpacks, event 10 a free.
  const Program program =
      HandPlan().swap(kFirst, 9, 11).swap(kSecond, 10, kNone).swap(kThird, 11, 11).program();
  EXPECT_EQ(op_releases(program), kNever);
  EXPECT_EQ(unpack_releases(program), (std::vector<Storages>{{kFirst, kSecond}, {kThird}, {}}));
}

TEST(ProgramTest, ASwapWithoutAReleaseIsNeverWaitedFor) {
  const Program program = HandPlan().swap(kFirst, kNone, 9).program();
  EXPECT_EQ(op_releases(program), kNever);
  EXPECT_EQ(unpack_releases(program), kNever);
}

TEST(ProgramTest, APrefetchIsIssuedAfterTheUnpackOfThePlan) {
  const Program program = HandPlan().swap(kSecond, 8, 9).swap(kFirst, 8, 11).program();
  EXPECT_EQ(swap_ins(program), (std::vector<Storages>{{}, {kSecond}, {kFirst}, {}}));
}

TEST(ProgramTest, APrefetchAtTheEndOfForwardIsIssuedBeforeAnyUnpack) {
  const Program program = HandPlan().swap(kThird, 8, 8).program();
  EXPECT_EQ(swap_ins(program), (std::vector<Storages>{{kThird}, {}, {}, {}}));
}

TEST(ProgramTest, PrefetchesOfOnePlaceKeepTheOrderOfThePlan) {
  const Program program = HandPlan().swap(kSecond, 8, 9).swap(kThird, 8, 8).swap(kFirst, 8, 9).program();
  EXPECT_EQ(swap_ins(program), (std::vector<Storages>{{kThird}, {kSecond, kFirst}, {}, {}}));
}

TEST(ProgramTest, ASwapInAnywhereElseIsOnDemand) {
  // Event 10 frees the third storage, event 1 is an op.
  const Program program = HandPlan().swap(kSecond, 8, 10).swap(kFirst, 8, 1).swap(kThird, 8, kNone).program();
  EXPECT_EQ(swap_ins(program), std::vector<Storages>(4));
}

TEST(ProgramTest, OnlyWatchesWhenNothingMovesAndThereIsRoomAndTheOpsAreKnown) {
  EXPECT_TRUE(HandPlan().program({1, 2, 3}, /*has_room=*/true).only_watches());
  EXPECT_FALSE(HandPlan().program({1, 2, 3}, /*has_room=*/false).only_watches());
  EXPECT_FALSE(HandPlan().program({}, /*has_room=*/true).only_watches());
  EXPECT_FALSE(HandPlan().swap(kFirst, 4, 9).program({1, 2, 3}, /*has_room=*/true).only_watches());
}

} // namespace
} // namespace torchlms
