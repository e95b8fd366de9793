// SPDX-License-Identifier: Apache-2.0

// Writing token files: what was written is read, in every format, and nothing half-written is left.
#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "apogee/data/token_files/resumable_writer.h"
#include "apogee/tests/support/files/temp_dir.h"

namespace apogee::data {
namespace token_writer_test {

namespace fs = std::filesystem;
using apogee::testing::ReadFile;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class TokenWriterTest : public ::testing::Test {
 protected:
  int NumFiles() const {
    int count = 0;
    for ([[maybe_unused]] const auto& entry : fs::directory_iterator(dir_.path())) ++count;
    return count;
  }
  apogee::testing::TempDir dir_;
};

TEST_F(TokenWriterTest, WhatIsWrittenIsRead) {
  for (const TokenFormat format :
       {TokenFormat::kLlmc, TokenFormat::kRawU16, TokenFormat::kRawU32, TokenFormat::kMegatron}) {
    for (const int64_t vocab_size : {int64_t{0}, int64_t{60000}}) {
      const std::string path =
          dir_ / std::string(Name(format)) + std::to_string(vocab_size) + ".bin";
      auto file = TokenFileWriter::Create(path, {.format = format, .vocab_size = vocab_size});
      ASSERT_TRUE(file.ok()) << file.status();
      std::vector<int32_t> ids;
      for (int i = 0; i < 20000; ++i) ids.push_back(i * 3 % 60000);
      ids[0] = ids[9000] = 59999;
      ASSERT_TRUE((*file)->Append(std::span(ids).first(9000)).ok());
      ASSERT_TRUE((*file)->EndDocument().ok());
      ASSERT_TRUE((*file)->Append(std::span(ids).subspan(9000)).ok());
      EXPECT_FALSE(fs::exists(path));
      ASSERT_TRUE((*file)->Finish().ok());
      TokenFileOptions options{.end_of_text = 59999, .vocab_size = 60000};
      if (format == TokenFormat::kRawU16 || format == TokenFormat::kRawU32) options.format = format;
      const auto source = OpenTokenFile(path, options);
      ASSERT_TRUE(source.ok()) << source.status();
      std::vector<int32_t> got(20000);
      (*source)->Read(0, got);
      EXPECT_EQ(got, ids) << Name(format);
      const int64_t behind = format == TokenFormat::kRawU16 || format == TokenFormat::kRawU32;
      EXPECT_EQ((*source)->DocumentBegins(2, 19998).front(), 9000 + behind) << Name(format);
    }
  }
  EXPECT_EQ(NumFiles(), 10);  // and no temporary ones
}

TEST_F(TokenWriterTest, NothingIsOverwrittenAndNothingIsLeft) {
  dir_.Write("a.bin", "mine");
  EXPECT_TRUE(absl::IsAlreadyExists(TokenFileWriter::Create(dir_ / "a.bin", {}).status()));
  dir_.Write("b.idx", "mine");
  EXPECT_TRUE(absl::IsAlreadyExists(
      TokenFileWriter::Create(dir_ / "b.bin", {.format = TokenFormat::kMegatron}).status()));
  {
    auto file = TokenFileWriter::Create(dir_ / "c.bin", {.vocab_size = 100});
    ASSERT_TRUE(file.ok());
    const std::vector<int32_t> ids = {1, 65536};
    EXPECT_THAT(Message((*file)->Append(ids)),
                HasSubstr("c.bin: token 1 is 65536, but u16 holds [0, 65535]"));
    const std::vector<int32_t> negative = {-1};
    EXPECT_TRUE(absl::IsOutOfRange((*file)->Append(negative)));
    // Two writers of one file would mix their bytes.
    EXPECT_THAT(Message(TokenFileWriter::Create(dir_ / "c.bin", {}).status()),
                HasSubstr("another process writes it"));
  }
  {
    // Somebody else took the name meanwhile.
    auto file = TokenFileWriter::Create(dir_ / "d.bin", {});
    dir_.Write("d.bin", "mine");
    EXPECT_TRUE(absl::IsAlreadyExists((*file)->Finish()));
  }
  {
    auto file = TokenFileWriter::Create(dir_ / "e.bin", {.format = TokenFormat::kMegatron});
    dir_.Write("e.idx", "mine");
    EXPECT_TRUE(absl::IsAlreadyExists((*file)->Finish()));
  }
  for (const char* name : {"a.bin", "b.idx", "d.bin", "e.idx"}) {
    EXPECT_EQ(ReadFile(dir_ / name), "mine");
  }
  EXPECT_EQ(NumFiles(), 4);
}

TEST_F(TokenWriterTest, AFullDiskLeavesNothing) {
  rlimit before{};
  getrlimit(RLIMIT_FSIZE, &before);
  const rlimit small{100000, before.rlim_max};
  {
    auto file = TokenFileWriter::Create(dir_ / "a.bin", {.format = TokenFormat::kRawU32});
    const std::vector<int32_t> ids(70000, 1);
    setrlimit(RLIMIT_FSIZE, &small);
    const absl::Status appended = (*file)->Append(ids);
    setrlimit(RLIMIT_FSIZE, &before);
    EXPECT_TRUE(absl::IsResourceExhausted(appended)) << appended;
  }
  EXPECT_EQ(NumFiles(), 0);
}

// A process that was killed leaves the temporary file, with more in it than it noted.
TEST_F(TokenWriterTest, AnotherProcessContinues) {
  for (const TokenFormat format : {TokenFormat::kLlmc, TokenFormat::kMegatron}) {
    const std::string whole = dir_ / (std::string("whole_") + Name(format) + ".bin");
    const std::string cut = dir_ / (std::string("cut_") + Name(format) + ".bin");
    const std::vector<int32_t> ids = {1, 2, 3, 4, 5};
    TokenWriterState state;
    const auto fill = [&](ResumableWriter& file, bool kill) {
      EXPECT_TRUE(file.Append(ids).ok() && file.EndDocument().ok() && file.Append(ids).ok());
      state = file.state();
      for (int i = 0; kill && i < 5; ++i) {
        EXPECT_TRUE(file.Append(ids).ok() && file.EndDocument().ok() && file.Sync().ok());
      }
    };
    const auto finish = [&](ResumableWriter& file) {
      EXPECT_TRUE(file.Append(ids).ok() && file.EndDocument().ok() && file.Finish().ok());
    };
    {
      const auto file = ResumableWriter::Open(whole, format, TokenType::kU16, {});
      fill(**file, false);
      finish(**file);
    }
    {
      const auto file = ResumableWriter::Open(cut, format, TokenType::kU16, {});
      ASSERT_TRUE(file.ok()) << file.status();
      fill(**file, true);
      for (const auto& entry : fs::directory_iterator(dir_.path())) {
        const std::string name = entry.path().filename().string();
        if (name.starts_with(".tmp-")) fs::copy(entry, dir_ / ("kept" + name));
      }
    }
    for (const auto& entry : fs::directory_iterator(dir_.path())) {
      const std::string name = entry.path().filename().string();
      if (name.starts_with("kept")) fs::rename(entry, dir_ / name.substr(4));
    }
    const auto file = ResumableWriter::Open(cut, format, TokenType::kU16, state);
    ASSERT_TRUE(file.ok()) << file.status();
    EXPECT_EQ(state.open_tokens, 5);
    finish(**file);
    EXPECT_EQ(ReadFile(whole), ReadFile(cut));
    EXPECT_EQ(ReadFile(fs::path(whole).replace_extension(".idx")),
              ReadFile(fs::path(cut).replace_extension(".idx")));
  }
  // Less than was noted cannot be continued.
  dir_.Write(".tmp-x.bin", "short");
  EXPECT_THAT(Message(ResumableWriter::Open(dir_ / "x.bin", TokenFormat::kRawU16, TokenType::kU16,
                                            {.num_tokens = 10})
                          .status()),
              HasSubstr(".tmp-x.bin: has 5 bytes, but 20 were written before"));
}

}  // namespace token_writer_test
}  // namespace apogee::data
