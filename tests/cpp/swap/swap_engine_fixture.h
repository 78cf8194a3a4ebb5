// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <latch>
#include <memory>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "swap/fake_device.h"
#include "swap/swap_engine.h"

// An engine on a fake device and a real disk, storages in any state, and a way to stop a copy midway.
namespace torchlms {

inline constexpr Bytes kSize = 10'000; // three chunks of the link, and no multiple of anything
inline constexpr Bytes kHeld = 10'240; // what the device holds for it
inline constexpr Bytes kOnDisk = 12'288;
inline constexpr int64_t kNoAgeing = int64_t{1} << 50;

// Keeps all threads of one direction busy, so that no copy there moves or ends, until released.
// Requires: a link with one credit, and nothing in flight in that direction.
class HeldLane {
 public:
  HeldLane(Link& link, Direction direction) {
    const auto hold = [gate = gate_](Bytes, Bytes) {
      gate->arrived.count_down();
      gate->opened.wait();
    };
    for (int thread = 0; thread < 2; ++thread) {
      link.submit(direction, TransferClass::kDemand, 1, hold, [](bool, std::exception_ptr) {});
    }
    gate_->arrived.wait();
  }
  ~HeldLane() {
    gate_->opened.count_down();
  }

 private:
  struct Gate {
    std::latch arrived{2};
    std::latch opened{1};
  };
  const std::shared_ptr<Gate> gate_ = std::make_shared<Gate>();
};

inline unsigned char byte_of(int seed, Bytes position) {
  return static_cast<unsigned char>(seed * 37 + position * 11 + position / 256);
}

inline void fill(const c10::Storage& storage, int seed) {
  auto* bytes = static_cast<unsigned char*>(storage.mutable_data());
  for (Bytes i = 0; i < static_cast<Bytes>(storage.nbytes()); ++i) {
    bytes[i] = byte_of(seed, i);
  }
}

inline bool is_filled(const c10::Storage& storage, int seed) {
  const auto* bytes = static_cast<const unsigned char*>(storage.data());
  Bytes num_right = 0;
  for (Bytes i = 0; i < static_cast<Bytes>(storage.nbytes()); ++i) {
    num_right += bytes[i] == byte_of(seed, i) ? 1 : 0;
  }
  return num_right == static_cast<Bytes>(storage.nbytes());
}

template <typename Condition>
bool eventually(Condition condition) {
  for (int i = 0; i < 20'000; ++i) {
    if (condition()) {
      return true;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return false;
}

class SwapEngineTest : public ::testing::Test {
 protected:
  SwapEngineTest() {
    restart({});
  }
  void TearDown() override {
    for (const StorageStatePtr& state : states_) {
      engine->discard(state);
    }
    EXPECT_TRUE(eventually([this] { return engine->store().used_bytes() == 0; }));
    engine.reset();
  }

  struct Limits {
    Bytes chunk_bytes = 4096;
    double link_bytes_per_s = 0;
    Bytes disk_bytes = Bytes{1} << 24;
  };
  void restart(Limits limits) {
    auto store = std::make_unique<DiskStore>(::testing::TempDir(), limits.disk_bytes);
    const Link::Options options{limits.chunk_bytes, /*credits=*/1, limits.link_bytes_per_s, kNoAgeing};
    engine = std::make_unique<SwapEngine>(device, std::move(store), options);
  }
  void allow(Bytes budget) {
    device.set_budget(budget, [this](Bytes needed) { return engine->reclaim(needed); }, nullptr);
  }

  c10::Storage allocate(int seed) {
    c10::Storage storage(
        c10::Storage::use_byte_size_t(),
        static_cast<size_t>(kSize),
        device.allocator()->allocate(static_cast<size_t>(kSize)),
        device.allocator(),
        /*resizable=*/true);
    fill(storage, seed);
    return storage;
  }
  StorageStatePtr adopt(c10::Storage storage, bool is_managed = true) {
    const Bytes held = device.block_of(storage.data()).bytes;
    states_.push_back(engine->adopt(std::move(storage), held, is_managed));
    return states_.back();
  }
  StorageStatePtr resident(int seed) {
    return adopt(allocate(seed));
  }
  std::vector<StorageStatePtr> residents(int count) {
    std::vector<StorageStatePtr> all;
    for (int seed = 0; seed < count; ++seed) {
      all.push_back(resident(seed));
    }
    return all;
  }
  StorageStatePtr swapped_out(int seed) {
    StorageStatePtr state = resident(seed);
    EXPECT_TRUE(engine->swap_out(state));
    engine->wait_swapped_out(state);
    EXPECT_EQ(engine->residency(state), Residency::kSwappedOut);
    return state;
  }
  void prefetch(const StorageStatePtr& state) {
    EXPECT_TRUE(engine->try_swap_in(state));
    EXPECT_TRUE(eventually([&] { return engine->residency(state) != Residency::kSwappingIn; }));
  }
  // In that state until `held` is reset.
  StorageStatePtr in_state(Residency residency, std::optional<HeldLane>& held) {
    if (residency == Residency::kSwappingOut) {
      StorageStatePtr state = resident(1);
      held.emplace(engine->link(), Direction::kOut);
      EXPECT_TRUE(engine->swap_out(state));
      return state;
    }
    StorageStatePtr state = residency == Residency::kDevice ? resident(1) : swapped_out(1);
    if (residency == Residency::kSwappingIn) {
      held.emplace(engine->link(), Direction::kIn);
      EXPECT_TRUE(engine->try_swap_in(state));
    }
    return state;
  }
  int code_of_error() {
    try {
      engine->rethrow_error();
    } catch (const DiskError& error) {
      return error.code();
    }
    return 0;
  }
  bool comes_back(const StorageStatePtr& state, int seed) {
    return is_filled(engine->acquire(state), seed);
  }
  Residency residency(const StorageStatePtr& state) {
    return engine->residency(state);
  }

  FakeDevice device;
  std::unique_ptr<SwapEngine> engine;

 private:
  std::vector<StorageStatePtr> states_;
};

} // namespace torchlms
