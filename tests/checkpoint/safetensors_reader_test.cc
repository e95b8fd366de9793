// SPDX-License-Identifier: Apache-2.0

// The strict reader: what it takes, and one test per thing it must refuse.
#include "apogee/checkpoint/format/safetensors_reader.h"

#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "apogee/tensor/cpu/cpu_context.h"
#include "apogee/tensor/ops/float8.h"
#include "apogee/tests/support/files/safetensors_file.h"

namespace apogee::checkpoint {
namespace safetensors_reader_test {

using ::testing::HasSubstr;

const std::string kPath = ::testing::TempDir() + "reader_test.safetensors";

absl::StatusOr<SafetensorsReader> OpenBytes(const std::string& bytes) {
  WriteBytes(kPath, bytes);
  return SafetensorsReader::Open(kPath);
}

std::string MessageOf(const std::string& bytes) {
  const auto file = OpenBytes(bytes);
  if (file.ok()) return "accepted";
  const std::string message(file.status().message());
  EXPECT_THAT(message, HasSubstr(kPath));
  return message;
}

// A header of one tensor "a" with these fields and `data_bytes` of data.
std::string OneTensor(const std::string& fields, size_t data_bytes) {
  return SafetensorsBytes(internal::Concat("{\"a\":{", fields, "}}"), std::string(data_bytes, 'x'));
}

TEST(SafetensorsReaderTest, ReadsTensorsAndMetadata) {
  SafetensorsFile file;
  file.Meta("format", "bare text");
  file.Meta("hyper", "{\"lr\": 0.1}");
  file.Add<float>("a", "F32", {2, 3}, {1, 2, 3, 4, 5, 6});
  file.Add<double>("scalar", "F64", {}, {0.5});
  file.Add<int64_t>("ids", "I64", {2}, {-7, 9});
  file.Add<uint8_t>("codes", "U8", {3}, {0, 128, 255});
  file.Add<float>("empty", "F32", {0, 4}, {});
  file.Add<uint8_t>("e4m3", "F8_E4M3", {2}, {0x7e, 0x81});
  file.Add<uint8_t>("e5m2", "F8_E5M2", {2}, {0x7b, 0x81});
  const auto read = OpenBytes(file.Bytes());
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->metadata().at("format"), "bare text");
  EXPECT_EQ(read->metadata().at("hyper"), "{\"lr\": 0.1}");
  const ContextPtr context = CpuContext();
  const Tensor a = *read->Load("a", context);
  EXPECT_EQ(a.shape(), Shape({2, 3}));
  EXPECT_EQ(a.ToVector<float>(), (std::vector<float>{1, 2, 3, 4, 5, 6}));
  EXPECT_EQ(read->Load("scalar", context)->Item(), 0.5);
  EXPECT_EQ(read->Load("ids", context)->ToVector<int64_t>(), (std::vector<int64_t>{-7, 9}));
  EXPECT_EQ(read->Load("codes", context)->dtype(), DType::kU8);
  EXPECT_EQ(read->Load("empty", context)->numel(), 0);
  EXPECT_EQ(ops::CastFromFloat8(*read->Load("e4m3", context), DType::kF32).ToVector<float>(),
            (std::vector<float>{448, -0x1p-9f}));
  EXPECT_EQ(ops::CastFromFloat8(*read->Load("e5m2", context), DType::kF32).ToVector<float>(),
            (std::vector<float>{57344, -0x1p-16f}));
  EXPECT_THAT(std::string(read->Load("b", context).status().message()),
              HasSubstr("no tensor \"b\""));
}

TEST(SafetensorsReaderTest, AcceptsPaddingAndAnyOrder) {
  EXPECT_EQ(MessageOf(SafetensorsBytes("{}", "")), "accepted");
  EXPECT_EQ(MessageOf(SafetensorsBytes(
                "{\"a\":{\"data_offsets\":[0,1],\"shape\":[1],\"dtype\":\"U8\"}}   ", "x")),
            "accepted");
  EXPECT_EQ(
      MessageOf(SafetensorsBytes("{\"b\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[1,2]},"
                                 "\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}",
                                 "xy")),
      "accepted");
}

TEST(SafetensorsReaderTest, RefusesBrokenLengths) {
  EXPECT_THAT(MessageOf(""), HasSubstr("has 0 bytes"));
  EXPECT_THAT(MessageOf("1234567"), HasSubstr("has 7 bytes"));
  EXPECT_THAT(MessageOf(SafetensorsBytes("{}", "", 3)), HasSubstr("header of 3 bytes"));
  EXPECT_THAT(MessageOf(SafetensorsBytes("{}", "", 100'000'001)), HasSubstr("is the limit"));
  EXPECT_THAT(MessageOf(std::string(8, '\xff') + "{}"), HasSubstr("is the limit"));
  EXPECT_THAT(MessageOf(std::string(8, '\0')), HasSubstr("one JSON object"));
}

TEST(SafetensorsReaderTest, RefusesTextThatIsNotOneObject) {
  for (const char* text :
       {"[]", "1", "null", "\"a\"", " {}", "{}\n", "{}{}", "{} x", "\xEF\xBB\xBF{}"}) {
    EXPECT_NE(MessageOf(SafetensorsBytes(text, "")), "accepted") << text;
  }
  EXPECT_THAT(MessageOf(SafetensorsBytes("{\"a\":}", "")), HasSubstr("byte 14: not valid JSON"));
  EXPECT_THAT(MessageOf(SafetensorsBytes("{\"a\xff\":{}}", "")), HasSubstr("not valid JSON"));
  EXPECT_THAT(MessageOf(SafetensorsBytes("{/* c */}", "")), HasSubstr("not valid JSON"));
  EXPECT_THAT(MessageOf(SafetensorsBytes("{\"a\":1}", "")),
              HasSubstr("\"a\" must be an object, got a number"));
  EXPECT_THAT(MessageOf(SafetensorsBytes("{\"a\":[[[[[]]]]]}", "")), HasSubstr("got a list"));
}

TEST(SafetensorsReaderTest, RefusesDeepNestingWithoutRecursion) {
  EXPECT_NE(MessageOf(SafetensorsBytes(
                internal::Concat("{\"a\":", std::string(5'000'000, '['), "}"), "")),
            "accepted");
}

TEST(SafetensorsReaderTest, RefusesDuplicates) {
  const std::string a = "\"a\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]}";
  EXPECT_THAT(MessageOf(SafetensorsBytes("{" + a + "," + a + "}", "")),
              HasSubstr("\"a\" is given twice"));
  EXPECT_THAT(MessageOf(OneTensor(
                  "\"dtype\":\"U8\",\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]", 0)),
              HasSubstr("field \"dtype\" twice"));
  EXPECT_THAT(MessageOf(SafetensorsBytes("{\"__metadata__\":{},\"__metadata__\":{}}", "")),
              HasSubstr("twice"));
  EXPECT_THAT(MessageOf(SafetensorsBytes("{\"__metadata__\":{\"k\":\"1\",\"k\":\"2\"}}", "")),
              HasSubstr("metadata \"k\" is given twice"));
}

TEST(SafetensorsReaderTest, RefusesNames) {
  const std::string fields = ":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]}}";
  EXPECT_THAT(MessageOf(SafetensorsBytes("{\"\"" + fields, "")), HasSubstr("empty"));
  EXPECT_THAT(MessageOf(SafetensorsBytes("{\"a\\u0000b\"" + fields, "")), HasSubstr("NUL"));
  EXPECT_THAT(MessageOf(SafetensorsBytes(
                  internal::Concat("{\"", std::string(1025, 'n'), "\"", fields), "")),
              HasSubstr("1024"));
}

TEST(SafetensorsReaderTest, RefusesFields) {
  EXPECT_THAT(MessageOf(OneTensor("\"dtype\":\"U8\",\"shape\":[0]", 0)),
              HasSubstr("needs dtype, shape and"));
  EXPECT_THAT(MessageOf(OneTensor("\"type\":\"U8\"", 0)), HasSubstr("unknown field \"type\""));
  EXPECT_THAT(MessageOf(OneTensor("\"dtype\":\"F33\",\"shape\":[0],\"data_offsets\":[0,0]", 0)),
              HasSubstr("unknown dtype \"F33\""));
  EXPECT_THAT(MessageOf(OneTensor("\"dtype\":1,\"shape\":[0],\"data_offsets\":[0,0]", 0)),
              HasSubstr("a number is not allowed in dtype"));
  EXPECT_THAT(MessageOf(SafetensorsBytes("{\"__metadata__\":{\"k\":1}}", "")),
              HasSubstr("metadata \"k\" must be a string"));
  EXPECT_THAT(MessageOf(SafetensorsBytes("{\"__metadata__\":[]}", "")),
              HasSubstr("must be an object"));
}

TEST(SafetensorsReaderTest, RefusesShapes) {
  const auto with_shape = [](const std::string& shape) {
    return MessageOf(
        OneTensor("\"dtype\":\"F32\",\"shape\":[" + shape + "],\"data_offsets\":[0,4]", 4));
  };
  EXPECT_EQ(with_shape("1"), "accepted");
  EXPECT_THAT(with_shape("-1"), HasSubstr("negative"));
  EXPECT_THAT(with_shape("1.0"), HasSubstr("not a whole one"));
  EXPECT_THAT(with_shape("1e0"), HasSubstr("not a whole one"));
  EXPECT_THAT(with_shape("9223372036854775808"), HasSubstr("above 2^63"));
  EXPECT_THAT(with_shape("99999999999999999999999"), HasSubstr("too large"));
  EXPECT_THAT(with_shape("4294967296,4294967296"), HasSubstr("overflows"));  // wraps to 0
  EXPECT_THAT(with_shape("4611686018427387904"), HasSubstr("overflows"));    // times 4 bytes wraps
  EXPECT_THAT(with_shape("1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1"), HasSubstr("more than 16"));
  EXPECT_THAT(with_shape("2"), HasSubstr("needs 8 bytes, data_offsets give 4"));
  EXPECT_THAT(with_shape("\"1\""), HasSubstr("a string is not allowed in shape"));
  EXPECT_THAT(with_shape("[1]"), HasSubstr("a list is not allowed in shape"));
}

TEST(SafetensorsReaderTest, RefusesOffsets) {
  const auto with_offsets = [](const std::string& offsets) {
    return MessageOf(OneTensor("\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":" + offsets, 4));
  };
  EXPECT_THAT(with_offsets("[4,0]"), HasSubstr("begin <= end"));
  EXPECT_THAT(with_offsets("[0]"), HasSubstr("two numbers"));
  EXPECT_THAT(with_offsets("[0,4,4]"), HasSubstr("two numbers"));
  EXPECT_THAT(with_offsets("[1,5]"), HasSubstr("after a hole"));
  EXPECT_THAT(with_offsets("4"), HasSubstr("not allowed"));
}

TEST(SafetensorsReaderTest, RefusesDataThatTheTensorsDoNotTile) {
  const std::string fields = "\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]";
  EXPECT_THAT(MessageOf(OneTensor(fields, 3)), HasSubstr("cut short?"));
  EXPECT_THAT(MessageOf(OneTensor(fields, 5)), HasSubstr("trailing bytes"));
  const auto two = [](const std::string& second) {
    return MessageOf(
        SafetensorsBytes("{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]},"
                         "\"b\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":" +
                             second + "}}",
                         std::string(8, 'x')));
  };
  EXPECT_EQ(two("[4,8]"), "accepted");
  EXPECT_THAT(two("[0,4]"), HasSubstr("inside the one before it"));
  EXPECT_THAT(two("[3,7]"), HasSubstr("inside the one before it"));
  EXPECT_THAT(two("[5,9]"), HasSubstr("after a hole"));
}

TEST(SafetensorsReaderTest, RefusesWhatIsNotAFile) {
  EXPECT_FALSE(SafetensorsReader::Open("/nonexistent/file.safetensors").ok());
  EXPECT_THAT(std::string(SafetensorsReader::Open(::testing::TempDir()).status().message()),
              HasSubstr("not a regular file"));
}

TEST(SafetensorsReaderTest, ListsButDoesNotLoadForeignDTypes) {
  const auto file =
      OpenBytes(OneTensor("\"dtype\":\"BOOL\",\"shape\":[1],\"data_offsets\":[0,1]", 1));
  ASSERT_TRUE(file.ok());
  EXPECT_THAT(std::string(file->Load("a", CpuContext()).status().message()),
              HasSubstr("dtype BOOL"));
}

TEST(SafetensorsReaderTest, NoticesAFileThatShrank) {
  SafetensorsFile file;
  file.Add<double>("a", "F64", {1000}, std::vector<double>(1000, 1.0));
  const auto read = OpenBytes(file.Bytes());
  ASSERT_TRUE(read.ok());
  std::filesystem::resize_file(kPath, 500);
  EXPECT_THAT(std::string(read->Load("a", CpuContext()).status().message()),
              HasSubstr("cut short meanwhile"));
}

// Every truncation and every changed byte of a small file is either refused or read as consistent
// sizes.
TEST(SafetensorsReaderTest, SurvivesDamage) {
  SafetensorsFile file;
  file.Meta("k", "v");
  file.Add<float>("a", "F32", {2, 1}, {1, 2});
  file.Add<uint8_t>("b", "U8", {3}, {1, 2, 3});
  const std::string good = file.Bytes();
  for (size_t length = 0; length < good.size(); ++length) {
    EXPECT_FALSE(OpenBytes(good.substr(0, length)).ok()) << length;
  }
  const ContextPtr context = CpuContext();
  for (size_t at = 0; at < good.size(); ++at) {
    for (const char damage : {'\0', '9', '"', '}', '\x80'}) {
      std::string bytes = good;
      bytes[at] = damage;
      const auto read = OpenBytes(bytes);
      if (!read.ok()) continue;
      for (const auto& [name, entry] : read->entries()) {
        const auto loaded = read->Load(name, context);
        EXPECT_TRUE(!loaded.ok() || loaded->bytes() == entry.end - entry.begin);
      }
    }
  }
}

}  // namespace safetensors_reader_test
}  // namespace apogee::checkpoint
