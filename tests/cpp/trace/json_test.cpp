// SPDX-License-Identifier: BSD-3-Clause
#include "trace/json.h"

#include <limits>

#include <gtest/gtest.h>

namespace torchlms {
namespace {

TEST(JsonWriter, PutsCommasBetweenItemsOfNestedValues) {
  JsonWriter json;
  json.begin_object().field("a", 1).key("b").begin_array().value(2).begin_object().end_object().value("x");
  json.end_array().key("c").begin_array().end_array().field("d", true).end_object();
  EXPECT_EQ(json.take(), R"({"a":1,"b":[2,{},"x"],"c":[],"d":true})");
}

TEST(JsonWriter, EscapesQuotesBackslashesAndControlCharacters) {
  JsonWriter json;
  json.value(std::string("say \"a\\b\"\n\x01é"));
  EXPECT_EQ(json.take(), "\"say \\\"a\\\\b\\\"\\u000a\\u0001é\"");
}

TEST(JsonWriter, AValueThatEndsLikeAnOpenBracketStillGetsItsComma) {
  JsonWriter json;
  json.begin_array().value("[").value(":").value("{").end_array();
  EXPECT_EQ(json.take(), R"(["[",":","{"])");
}

TEST(JsonWriter, WritesNumbersThatReadBackExactlyAndNoneThatJsonLacks) {
  JsonWriter json;
  json.begin_array().value(0.1).value(int64_t{-9007199254740993}).value(1e300);
  json.value(std::numeric_limits<double>::infinity())
      .value(std::numeric_limits<double>::quiet_NaN())
      .end_array();
  EXPECT_EQ(json.take(), "[0.1,-9007199254740993,1e+300,null,null]");
}

TEST(JsonWriter, WritesAllBitsOfASignature) {
  JsonWriter json;
  json.begin_array().hex(0).hex(0xfedcba9876543210u).end_array();
  EXPECT_EQ(json.take(), R"(["0000000000000000","fedcba9876543210"])");
}

} // namespace
} // namespace torchlms
