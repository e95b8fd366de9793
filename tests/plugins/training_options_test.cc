// SPDX-License-Identifier: Apache-2.0

// The texts of the plugins' options, and one value of TrainingOptions for every plugin.
#include "apogee/plugins/training_options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "apogee/plugins/ddp.h"
#include "apogee/plugins/gemini.h"
#include "apogee/plugins/low_level_zero.h"
#include "apogee/plugins/single_rank.h"

namespace apogee {
namespace training_options_test {

using ::testing::HasSubstr;

TEST(TrainingOptionsTest, APrecisionIsReadFromItsName) {
  for (const Precision precision :
       {Precision::kF32, Precision::kBf16, Precision::kFp16, Precision::kF64}) {
    EXPECT_EQ(ValueOrThrow(ParsePrecision(Name(precision))), precision);
  }
  EXPECT_EQ(ValueOrThrow(ParsePrecision("fp32")), Precision::kF32);
  EXPECT_EQ(ValueOrThrow(ParsePrecision("f16")), Precision::kFp16);
  EXPECT_STREQ(Name(Precision::kFp16), "fp16");
}

TEST(TrainingOptionsTest, AnUnknownPrecisionHasASuggestion) {
  for (const char* text : {"", "f61", "BF16"}) {
    const absl::Status status = ParsePrecision(text).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << text;
    EXPECT_THAT(Message(status), HasSubstr(std::string("unknown precision \"") + text + "\""));
    EXPECT_THAT(Message(status), HasSubstr("known: f32, bf16, fp16, f64"));
  }
  EXPECT_THAT(Message(ParsePrecision("bf61").status()), HasSubstr("did you mean \"bf16\"?"));
  for (const char* text : {"fp8", "f8_e4m3", "f8_e5m2"}) {
    EXPECT_THAT(Message(ParsePrecision(text).status()),
                HasSubstr("no training in 8-bit floats, which only store tensors"));
    EXPECT_THAT(Message(ParsePrecision(text).status()), HasSubstr("use bf16"));
  }
}

TEST(TrainingOptionsTest, ANumberThatIsNoPrecisionThrows) {
  EXPECT_THROW(Name(static_cast<Precision>(9)), Error);
  EXPECT_THROW(DTypeOf(static_cast<Precision>(9)), Error);
}

TEST(TrainingOptionsTest, APlacementPolicyIsReadFromItsName) {
  for (const PlacementPolicy policy : {PlacementPolicy::kStatic, PlacementPolicy::kAuto}) {
    EXPECT_EQ(ValueOrThrow(ParsePlacementPolicy(Name(policy))), policy);
  }
  EXPECT_THAT(Message(ParsePlacementPolicy("dynamic").status()),
              HasSubstr("unknown placement_policy \"dynamic\""));
}

TEST(TrainingOptionsTest, OneValueFitsEveryPlugin) {
  const TrainingOptions training{
      .precision = Precision::kBf16, .max_norm = 1, .bucket_bytes = 1000};
  EXPECT_NO_THROW(SingleRankPlugin{training});
  EXPECT_NO_THROW(DdpPlugin(nullptr, training));
  EXPECT_NO_THROW(LowLevelZeroPlugin(nullptr, training));
  EXPECT_NO_THROW(GeminiPlugin(nullptr, training));
}

}  // namespace training_options_test
}  // namespace apogee
