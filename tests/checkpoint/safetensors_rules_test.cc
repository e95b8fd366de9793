// SPDX-License-Identifier: Apache-2.0

// The reader of safetensors headers takes exactly what a second implementation of the rules takes,
// and finds the same in it; that one also reads what our writer writes.
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>

#include "apogee/checkpoint/format/safetensors_header.h"
#include "apogee/checkpoint/format/tensor_file.h"
#include "apogee/tests/support/files/crash_file_system.h"
#include "apogee/tests/support/files/mutate_text.h"
#include "apogee/tests/support/files/plain_safetensors.h"
#include "apogee/tests/support/files/temp_dir.h"

namespace apogee::checkpoint {
namespace safetensors_rules_test {

using apogee::testing::CrashFileSystem;
using apogee::testing::MutatedText;
using apogee::testing::PlainHeader;
using apogee::testing::PlainSafetensorsHeader;
using apogee::testing::ReadFile;

struct Count {
  int accepted = 0, refused = 0;
};

void Compare(const std::string& json, int64_t data_bytes, Count& count) {
  const std::optional<PlainHeader> want = PlainSafetensorsHeader(json, data_bytes);
  const auto got = ParseSafetensorsHeader(json, {.path = "f", .data_bytes = data_bytes});
  ++(want ? count.accepted : count.refused);
  ASSERT_EQ(got.ok(), want.has_value())
      << json << "\nof " << data_bytes << " bytes: " << got.status();
  if (!want) return;
  PlainHeader same{.tensors = {}, .metadata = got->metadata};
  for (const auto& [name, entry] : got->entries) {
    same.tensors[name] = {entry.dtype, entry.shape, entry.begin, entry.end};
  }
  ASSERT_EQ(same.tensors, want->tensors) << json;
  ASSERT_EQ(same.metadata, want->metadata) << json;
}

std::vector<std::pair<std::string, int64_t>> Headers() {
  std::vector<std::pair<std::string, int64_t>> headers = {
      {"{}", 0},
      {"{}    ", 0},
      {R"({"a":{"dtype":"U8","shape":[],"data_offsets":[0,1]}})", 1},
      {R"({"__metadata__":{},"a":{"shape":[0,9223372036854775807],"dtype":"F64",)"
       R"("data_offsets":[0,0]}})",
       0},
      {"{ \"\\u00e4\\ud83d\\ude00\\\"\\\\\" : {\t\"data_offsets\":[0,8] ,\n\"dtype\":\"F16\",\r"
       "\"shape\":[ 2 , 1,2 ] } }",
       8},
      {"{\"\xC3\xA4\xF0\x9F\x98\x80\":{\"dtype\":\"I16\",\"shape\":[3],\"data_offsets\":[2,8]},"
       "\"b\":{\"dtype\":\"BOOL\",\"shape\":[2],\"data_offsets\":[0,2]},"
       "\"__metadata__\":{\"k\":\"v\\n\",\"\":\"\"}}",
       8},
      {R"({"x":{"dtype":"F32","shape":[1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,3],"data_offsets":[0,12]},)"
       R"("y":{"dtype":"F8_E4M3","shape":[4],"data_offsets":[12,16]}} )",
       16}};
  for (const auto& file : std::filesystem::directory_iterator(APOGEE_HEADER_SEEDS)) {
    const std::string seed = ReadFile(file.path().string());
    const auto byte = [&](size_t i) { return static_cast<unsigned char>(seed[i]); };
    headers.emplace_back(seed.substr(2), byte(0) | byte(1) << 8);
  }
  return headers;
}

TEST(SafetensorsRulesTest, TheSameOfEveryMutatedHeader) {
  const std::vector<std::string> tokens = {" ",
                                           "\n",
                                           "null",
                                           "true",
                                           "-0",
                                           "0",
                                           "1e0",
                                           "1.0",
                                           "00",
                                           "\"\"",
                                           "\"a\":",
                                           "{}",
                                           "[]",
                                           "[[[[",
                                           "\\u0000",
                                           "\\ud800",
                                           "\\x",
                                           "\xff",
                                           "\xC0\x80",
                                           "\xED\xA0\x80",
                                           "\xF4\x90\x80\x80",
                                           "\xE0\xA0\x80",
                                           "\x7f",
                                           "\x01",
                                           "9223372036854775808",
                                           "4294967296,4294967296",
                                           ",",
                                           ":",
                                           "}",
                                           "\"dtype\":\"U8\",",
                                           "\"__metadata__\":{},",
                                           "\"F32\"",
                                           "\xEF\xBB\xBF",
                                           "//",
                                           "\\u0041",
                                           "\\/"};
  std::mt19937_64 random(7);
  Count count;
  for (const auto& [json, data_bytes] : Headers()) {
    Compare(json, data_bytes, count);
    EXPECT_EQ(count.refused, 0) << json;
  }
  for (const auto& [json, data_bytes] : Headers()) {
    for (int i = 0; i < 4000; ++i) {
      Compare(MutatedText(json, tokens, random), data_bytes, count);
      if (HasFatalFailure()) return;
    }
    // Every byte left out, and every prefix.
    for (size_t i = 0; i < json.size(); ++i) {
      Compare(json.substr(0, i), data_bytes, count);
      Compare(json.substr(0, i) + json.substr(i + 1), data_bytes, count);
      if (HasFatalFailure()) return;
    }
  }
  EXPECT_GT(count.accepted, 1000);
  EXPECT_GT(count.refused, 20'000);
}

TEST(SafetensorsRulesTest, ReadsWhatOurWriterWrites) {
  std::mt19937_64 random(3);
  const std::vector<std::string> dtypes = {"F64", "F32", "BF16", "F16", "I64", "I32", "U8", "I8"};
  for (int round = 0; round < 200; ++round) {
    std::vector<FileEntry> entries;
    std::vector<std::vector<std::byte>> data;
    for (size_t i = random() % 6; i > 0; --i) {
      FileEntry entry{.name = "t\"\\\xC3\xA4\n" + std::to_string(i),
                      .dtype = dtypes[random() % dtypes.size()],
                      .shape = {},
                      .data = {}};
      int64_t bytes = SafetensorsDTypeSize(entry.dtype);
      for (size_t dim = random() % 4; dim > 0; --dim) {
        entry.shape.push_back(static_cast<int64_t>(random() % 5));
        bytes *= entry.shape.back();
      }
      data.emplace_back(static_cast<size_t>(bytes), static_cast<std::byte>(i));
      entries.push_back(entry);
    }
    for (size_t i = 0; i < entries.size(); ++i) entries[i].data = data[i];
    CrashFileSystem files;
    ASSERT_TRUE(WriteSafetensors(files, "f", entries, {{"format", "pt"}}).ok());
    const auto file = *files.Open("f");
    std::string bytes(static_cast<size_t>(file->size()), '\0');
    ASSERT_TRUE(file->Read(0, std::as_writable_bytes(std::span(bytes))).ok());
    uint64_t length = 0;
    std::memcpy(&length, bytes.data(), 8);
    ASSERT_LE(length, bytes.size() - 8);
    const size_t start = 8 + static_cast<size_t>(length);
    EXPECT_EQ(start % 8, 0u);
    const auto header = PlainSafetensorsHeader(bytes.substr(8, static_cast<size_t>(length)),
                                               static_cast<int64_t>(bytes.size() - start));
    ASSERT_TRUE(header.has_value()) << bytes;
    EXPECT_EQ(header->metadata.at("format"), "pt");
    ASSERT_EQ(header->tensors.size(), entries.size());
    for (size_t i = 0; i < entries.size(); ++i) {
      const auto& [dtype, shape, begin, end] = header->tensors.at(entries[i].name);
      EXPECT_EQ(dtype, entries[i].dtype);
      EXPECT_EQ(shape, entries[i].shape);
      ASSERT_EQ(end - begin, static_cast<int64_t>(data[i].size()));
      if (begin == end) continue;
      EXPECT_EQ(std::memcmp(bytes.data() + start + begin, data[i].data(), data[i].size()), 0);
    }
  }
}

}  // namespace safetensors_rules_test
}  // namespace apogee::checkpoint
