// SPDX-License-Identifier: Apache-2.0

#include "apogee/core/text/text.h"

#include "gtest/gtest.h"

namespace apogee {
namespace text_test {

const std::vector<std::string> kOptimizers = {"adam", "adamw", "adafactor", "came", "lamb", "sgd"};

TEST(NearestName, FindsTypos) {
  EXPECT_EQ(NearestName("adamv", kOptimizers), "adamw");
  EXPECT_EQ(NearestName("adafacter", kOptimizers), "adafactor");
  EXPECT_EQ(NearestName("lam", kOptimizers), "lamb");
  EXPECT_EQ(NearestName("sgd", kOptimizers), "sgd");
}

TEST(NearestName, GivesNothingWhenNothingIsNear) {
  EXPECT_EQ(NearestName("shampoo", kOptimizers), "");
  EXPECT_EQ(NearestName("", kOptimizers), "");
  EXPECT_EQ(NearestName("adam", {}), "");
}

TEST(UnknownName, ListsTheKnownOnes) {
  EXPECT_EQ(UnknownName("optimizer", "adamv", {"adam", "adamw", "sgd"}),
            "unknown optimizer \"adamv\" (did you mean \"adamw\"?); known: adam, adamw, sgd");
  EXPECT_EQ(UnknownName("optimizer", "xyz", {"adam"}), "unknown optimizer \"xyz\"; known: adam");
}

TEST(Format, Bytes) {
  EXPECT_EQ(FormatBytes(0), "0 B");
  EXPECT_EQ(FormatBytes(512), "512 B");
  EXPECT_EQ(FormatBytes(1536), "1.5 KiB");
  EXPECT_EQ(FormatBytes(12 << 20), "12.0 MiB");
  EXPECT_EQ(FormatBytes(int64_t{3} << 41), "6.0 TiB");
}

TEST(Format, Thousands) {
  EXPECT_EQ(FormatThousands(0), "0");
  EXPECT_EQ(FormatThousands(999), "999");
  EXPECT_EQ(FormatThousands(1335), "1,335");
  EXPECT_EQ(FormatThousands(1000000), "1,000,000");
  EXPECT_EQ(FormatThousands(-999), "-999");
  EXPECT_EQ(FormatThousands(-1234567), "-1,234,567");
}

}  // namespace text_test
}  // namespace apogee
