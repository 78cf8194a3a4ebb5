// SPDX-License-Identifier: BSD-3-Clause
#include "plan/choices.h"

#include <gtest/gtest.h>

#include "hand_trace.h"
#include "op_trace.h"

namespace torchlms {
namespace {

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

TEST(Choices, SayWhatIsHeldAndWhenAStorageMayBeAway) {
  const std::string json = choices_json(three_layers());
  EXPECT_TRUE(has(json, R"("forward_end":9)")) << json;
  EXPECT_TRUE(has(json, R"("kept_bytes":[10,110,110,210,210,210,310,310,310,310,310,210,210,110,110])"))
      << json;
  EXPECT_TRUE(has(json, R"("kept_after_bytes":[110,110,210,210,210,310,310,310,310,310,210,210,110,110,0])"))
      << json;
  EXPECT_TRUE(
      has(json,
          R"({"storage":0,"size_bytes":100,"dead":4,"first_unpack":13,"freed":14,"is_held_longer":true,)"
          R"("may_swap":true,"gap_last":12,"demand":""})"))
      << json;
  // Nothing can be away between events 8 and 9.
  EXPECT_FALSE(has(json, R"("storage":2)")) << json;
  EXPECT_TRUE(has(json, R"("regions":[])")) << json;
}

TEST(Choices, SayWhatMayBeRebuiltFromWhatInTheOrderOfItsOps) {
  Trace trace = layers(4, 100000);
  trace.ops[2].demand = Demand::kRecompute;
  const std::string json = choices_json(trace);
  EXPECT_TRUE(
      has(json,
          R"("regions":[{"storage":1,"replay_us":10,"extra_bytes":100000,"leaves":[0]},)"
          R"({"storage":2,"replay_us":10,"extra_bytes":100000,"leaves":[1]},)"
          R"({"storage":3,"replay_us":10,"extra_bytes":100000,"leaves":[2]}])"))
      << json;
  EXPECT_TRUE(has(json, R"("demand":"recompute")")) << json;
}

TEST(Choices, OfATraceWithoutEventsThereAreNone) {
  EXPECT_TRUE(
      has(choices_json(Trace()), R"("kept_bytes":[],"kept_after_bytes":[],"storages":[],"regions":[])"));
}

} // namespace
} // namespace torchlms
