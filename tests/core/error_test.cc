// SPDX-License-Identifier: Apache-2.0

// Messages read as if their parts had been written to one std::ostringstream.
#include "apogee/core/error.h"

#include <atomic>
#include <cstdint>
#include <limits>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include "apogee/core/log.h"
#include "apogee/core/shape.h"
#include "apogee/core/status.h"
#include "gtest/gtest.h"

namespace apogee {
namespace {

template <typename... Parts>
void ExpectAsStreamed(const Parts&... parts) {
  std::ostringstream out;
  static_cast<void>((out << ... << parts));
  const std::string expected = out.str();
  EXPECT_EQ(internal::Concat(parts...), expected);
  try {
    Throw(parts...);
  } catch (const Error& error) {
    EXPECT_EQ(error.what(), std::string(expected.c_str()));
  }
  try {
    APOGEE_CHECK(sizeof...(parts) > 100, parts...);
    ADD_FAILURE() << "nothing was thrown";
  } catch (const Error& error) {
    EXPECT_EQ(error.what(), std::string(expected.c_str()));
  }
  const auto expect_status = [&](const absl::Status& status, absl::StatusCode code) {
    EXPECT_EQ(status.code(), code);
    EXPECT_EQ(Message(status), expected);
  };
  expect_status(InvalidArgument(parts...), absl::StatusCode::kInvalidArgument);
  expect_status(NotFound(parts...), absl::StatusCode::kNotFound);
  expect_status(DataLoss(parts...), absl::StatusCode::kDataLoss);
}

template <typename T>
void ExpectLimitsAsStreamed() {
  using Limits = std::numeric_limits<T>;
  ExpectAsStreamed("<", Limits::min(), ",", Limits::max(), ",", Limits::lowest(), ",", T{65}, ">");
}

enum Unscoped { kThree = 3 };

TEST(Message, Integers) {
  ExpectLimitsAsStreamed<short>();
  ExpectLimitsAsStreamed<unsigned short>();
  ExpectLimitsAsStreamed<int>();
  ExpectLimitsAsStreamed<unsigned>();
  ExpectLimitsAsStreamed<long>();
  ExpectLimitsAsStreamed<unsigned long>();
  ExpectLimitsAsStreamed<long long>();
  ExpectLimitsAsStreamed<unsigned long long>();
  ExpectAsStreamed(true, false, kThree, std::vector<bool>{true}[0], std::atomic<int>(-4));
  EXPECT_EQ(internal::Concat(std::numeric_limits<int64_t>::min()), "-9223372036854775808");
}

TEST(Message, OneByteIntegersAreCharacters) {
  ExpectAsStreamed('a', '\n', static_cast<signed char>(98), static_cast<unsigned char>(200),
                   uint8_t{65}, int8_t{-1}, '\0', 'z');
}

TEST(Message, Reals) {
  using Limits = std::numeric_limits<double>;
  for (const double value : {0.0,
                             -0.0,
                             1.0,
                             -1.5,
                             0.1,
                             1e-7,
                             1e300,
                             -1e-300,
                             123456.0,
                             1234567.0,
                             1e16,
                             2.0 / 3,
                             99999.95,
                             999999.5,
                             Limits::denorm_min(),
                             Limits::max(),
                             Limits::infinity(),
                             -Limits::infinity(),
                             Limits::quiet_NaN(),
                             -Limits::quiet_NaN()}) {
    ExpectAsStreamed(value, " and ", static_cast<float>(value));
  }
  EXPECT_EQ(internal::Concat(1e-7, ' ', -0.0, ' ', 1234567.0), "1e-07 -0 1.23457e+06");
}

TEST(Message, Texts) {
  const std::string text("with a\0zero", 11);
  char buffer[8] = "abc";
  char* const mutable_text = buffer;
  const char* const constant = "def";
  ExpectAsStreamed("literal", text, std::string_view(text), std::string("temporary"), buffer,
                   mutable_text, constant, "", std::string(), std::string_view(), "end");
  ExpectAsStreamed("ends at\0 its first zero");
  ExpectAsStreamed(std::string(100000, 'x'), "y");
  ExpectAsStreamed();
}

TEST(Message, OtherStreamableTypes) {
  const Shape shape{2, 3};
  ExpectAsStreamed("got ", shape, " and ", Shape{}, ", ", absl::StatusCode::kNotFound);
  EXPECT_EQ(internal::Concat(shape, " ", Shape{4}), "[2, 3] [4]");
}

TEST(Message, PartsOfACheckThatHoldsAreNotEvaluated) {
  int calls = 0;
  APOGEE_CHECK(calls == 0, "never ", ++calls);
  EXPECT_EQ(calls, 0);
}

TEST(Message, StatusOfAnErrorIsThrown) {
  EXPECT_THROW(OkOrThrow(NotFound("no ", 3)), Error);
  EXPECT_EQ(ValueOrThrow(absl::StatusOr<int>(3)), 3);
}

}  // namespace
}  // namespace apogee
