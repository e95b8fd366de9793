// SPDX-License-Identifier: Apache-2.0

// Reading token files: ids and documents, and what is refused. The recorded files of
// tests/golden/datasets are replayed by golden_f32.
#include <fcntl.h>
#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <string>
#include <vector>

#include "apogee/core/process_memory.h"
#include "apogee/data/token_files/megatron_index.h"
#include "apogee/data/token_files/token_file.h"
#include "apogee/tests/support/files/temp_dir.h"
#include "apogee/tests/support/says.h"

namespace apogee::data {
namespace token_files_test {

using apogee::testing::Says;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

template <typename T>
std::string Bytes(const std::vector<T>& values) {
  std::string bytes(values.size() * sizeof(T), '\0');
  if (!values.empty()) std::memcpy(bytes.data(), values.data(), bytes.size());
  return bytes;
}

std::string Llmc(const std::vector<uint16_t>& ids) {
  std::vector<int32_t> header(256);
  header[0] = 20240520;
  header[1] = 1;
  header[2] = static_cast<int32_t>(ids.size());
  return Bytes(header) + Bytes(ids);
}

// A Megatron index of u16 ids.
std::string Index(const std::vector<int32_t>& lengths, const std::vector<int64_t>& offsets,
                  const std::vector<int64_t>& documents) {
  return std::string("MMIDIDX\0\0", 9) + Bytes<uint64_t>({1}) + '\x08' +
         Bytes<uint64_t>({lengths.size(), documents.size()}) + Bytes(lengths) + Bytes(offsets) +
         Bytes(documents);
}

class TokenFilesTest : public ::testing::Test {
 protected:
  static std::string OpenError(const std::string& path, const TokenFileOptions& options = {}) {
    const auto source = OpenTokenFile(path, options);
    return source.ok() ? "no error" : Message(source.status());
  }
  static std::vector<int32_t> ReadAll(const TokenSource& source) {
    std::vector<int32_t> ids(static_cast<size_t>(source.num_tokens()));
    source.Read(0, ids);
    return ids;
  }
  std::string WritePair(const std::string& index, const std::vector<uint16_t>& ids) {
    dir_.Write("m.bin", Bytes(ids));
    return dir_.Write("m.idx", index);
  }

  apogee::testing::TempDir dir_;
};

TEST_F(TokenFilesTest, EveryPartOfAFile) {
  std::vector<uint16_t> ids;
  for (int i = 0; i < 40000; ++i) ids.push_back(static_cast<uint16_t>(i * 7919));
  const auto source = OpenTokenFile(dir_.Write("a.bin", Llmc(ids)));
  ASSERT_TRUE(source.ok()) << source.status();
  ASSERT_EQ((*source)->num_tokens(), 40000);
  for (const auto& [first, length] : {std::pair(0, 40000), {0, 1}, {39999, 1}, {123, 33001}}) {
    std::vector<int32_t> got(static_cast<size_t>(length));
    (*source)->Read(first, got);
    EXPECT_TRUE(std::equal(got.begin(), got.end(), ids.begin() + first)) << first;
  }
  std::vector<int32_t> two(2);
  EXPECT_THAT([&] { (*source)->Read(39999, two); }, Says(HasSubstr("[39999, 39999 + 2)")));
  EXPECT_THAT([&] { (*source)->Read(-1, two); }, Says(HasSubstr("are outside of")));
  EXPECT_THAT([&] { (*source)->DocumentBegins(0, 40001); }, Says(HasSubstr("outside")));
}

TEST_F(TokenFilesTest, DocumentsBeginAtOrBehindTheEndOfText) {
  const std::vector<uint16_t> ids = {9, 1, 2, 9, 9, 3};
  const auto llmc = OpenTokenFile(dir_.Write("a.bin", Llmc(ids)), {.end_of_text = 9});
  EXPECT_THAT((*llmc)->DocumentBegins(0, 6), ElementsAre(0, 3, 4));
  EXPECT_THAT((*llmc)->DocumentBegins(4, 2), ElementsAre(4));
  const std::string raw = dir_.Write("raw.bin", Bytes(ids));
  const auto raws = OpenTokenFile(raw, {.format = TokenFormat::kRawU16, .end_of_text = 9});
  EXPECT_THAT((*raws)->DocumentBegins(0, 6), ElementsAre(0, 1, 4, 5));
  EXPECT_THAT((*raws)->DocumentBegins(4, 1), ElementsAre(4));
  EXPECT_THAT((*raws)->DocumentBegins(2, 2), ElementsAre());
  const auto whole = OpenTokenFile(raw, {.format = TokenFormat::kRawU16});
  EXPECT_THAT((*whole)->DocumentBegins(0, 6), ElementsAre(0));
}

// Sequences in another order than in the file, with a gap, empty ones, and more than one block of
// the index; against positions computed one by one.
TEST_F(TokenFilesTest, MegatronSequencesLieAnywhere) {
  std::vector<uint16_t> file(3000), expected;
  for (size_t i = 0; i < file.size(); ++i) file[i] = static_cast<uint16_t>(i * 31);
  std::vector<int32_t> lengths;
  std::vector<int64_t> offsets, documents = {0}, begins;
  for (int s = 0; s < 700; ++s) {
    const int length = s % 5;
    const int64_t first = s == 3 ? 2997 : (s * 1237) % 2990;
    lengths.push_back(length);
    offsets.push_back(2 * first);
    if (s % 3 == 0) {
      documents.push_back(s);
      const auto here = static_cast<int64_t>(expected.size());
      if (begins.empty() || begins.back() != here) begins.push_back(here);
    }
    expected.insert(expected.end(), file.begin() + first, file.begin() + first + length);
  }
  documents.erase(documents.begin());
  documents.push_back(700);
  const auto source = OpenTokenFile(WritePair(Index(lengths, offsets, documents), file));
  ASSERT_TRUE(source.ok()) << source.status();
  const std::vector<int32_t> ids = ReadAll(**source);
  EXPECT_TRUE(std::equal(ids.begin(), ids.end(), expected.begin(), expected.end()));
  EXPECT_EQ((*source)->DocumentBegins(0, (*source)->num_tokens()), begins);
  for (int64_t first = 0; first + 50 <= (*source)->num_tokens(); first += 97) {
    std::vector<int64_t> here;
    for (const int64_t begin : begins) {
      if (begin >= first && begin < first + 50) here.push_back(begin);
    }
    EXPECT_EQ((*source)->DocumentBegins(first, 50), here) << first;
    std::vector<int32_t> part(50);
    (*source)->Read(first, part);
    EXPECT_TRUE(std::equal(part.begin(), part.end(), expected.begin() + first)) << first;
  }
}

TEST_F(TokenFilesTest, MegatronPairsThatDoNotBelongTogether) {
  const std::vector<uint16_t> ids = {1, 2, 3, 4};
  EXPECT_THAT(OpenError(WritePair(Index({3}, {0}, {0, 1}), ids)),
              HasSubstr("m.bin: has 8 bytes, but the sequences of"));
  EXPECT_THAT(OpenError(WritePair(Index({1, 4}, {0, 2}, {0, 2}), ids)),
              HasSubstr("m.idx: sequence 1 has 4 ids of u16 from byte 2 on, but"));
  EXPECT_THAT(OpenError(WritePair(Index({2, 2}, {0, 4}, {0, 1}), ids)),
              HasSubstr("the last document index is 1, it must be the number of sequences, 2"));
  EXPECT_THAT(OpenError(dir_ / "m.txt", {.format = TokenFormat::kMegatron}),
              HasSubstr("NAME.idx and NAME.bin"));
}

TEST_F(TokenFilesTest, SeveralFilesAreOneSource) {
  dir_.Write("s_2.bin", Llmc({7, 8}));
  dir_.Write("s_1.bin", Llmc({1, 50256, 2}));
  dir_.Write("s_0.bin", Llmc({}));
  const auto source = OpenTokenFile(dir_ / "s_*.bin");
  ASSERT_TRUE(source.ok()) << source.status();
  EXPECT_THAT(ReadAll(**source), ElementsAre(1, 50256, 2, 7, 8));
  EXPECT_THAT((*source)->DocumentBegins(0, 5), ElementsAre(0, 1, 3));
  EXPECT_THAT((*source)->DocumentBegins(2, 3), ElementsAre(3));
  EXPECT_THAT((*source)->PlaceOf(4), HasSubstr("s_2.bin: token 1"));
  EXPECT_THAT(OpenError(dir_ / "t_*.bin"), HasSubstr("no file matches"));
  // A pattern that matches both files of a pair means the pair once.
  WritePair(Index({2}, {0}, {0, 1}), {5, 6});
  const auto pair = OpenTokenFile(dir_ / "m.*");
  ASSERT_TRUE(pair.ok()) << pair.status();
  EXPECT_THAT(ReadAll(**pair), ElementsAre(5, 6));
  const auto mixed = OpenTokenFiles({dir_ / "s_1.bin", dir_ / "m.idx"});
  EXPECT_THAT(Message(mixed.status()), HasSubstr("m.bin: is megatron (u16), but"));
}

TEST_F(TokenFilesTest, IdsOutsideOfTheVocabulary) {
  const std::string path = dir_.Write("a.bin", Llmc({4, 10, 3}));
  const auto source = OpenTokenFile(path, {.vocab_size = 10});
  ASSERT_TRUE(source.ok());
  std::vector<int32_t> ids(1);
  (*source)->Read(2, ids);
  EXPECT_THAT([&] { ReadAll(**source); }, Says(HasSubstr("a.bin: token 1 is 10; ids must be in")));
  EXPECT_TRUE(CheckTokenIds(**OpenTokenFile(path), 11).ok());
  EXPECT_THAT(Message(CheckTokenIds(**OpenTokenFile(path), 10)),
              HasSubstr("a.bin: token 1 is 10; ids must be in [0, 10)"));
  // Ids that an int32 cannot hold, and negative ones.
  const std::string raw = dir_.Write("raw.bin", Bytes<uint32_t>({1, 0x80000000u}));
  const auto wide = OpenTokenFile(raw, {.format = TokenFormat::kRawU32});
  EXPECT_THAT([&] { ReadAll(**wide); }, Says(HasSubstr("token 1 is 2147483648; ids must be")));
  dir_.Write("m.bin", Bytes<int64_t>({5, -1, int64_t{1} << 40}));
  std::string index = Index({3}, {0}, {0, 1});
  index[17] = 5;  // i64
  const auto i64 = OpenTokenFile(dir_.Write("m.idx", index));
  ASSERT_TRUE(i64.ok()) << i64.status();
  EXPECT_THAT([&] { ReadAll(**i64); }, Says(HasSubstr("token 1 is -1")));
  (*i64)->Read(0, ids);
  EXPECT_EQ(ids[0], 5);
  EXPECT_THAT([&] { (*i64)->Read(2, ids); }, Says(HasSubstr("token 2 is 1099511627776")));
}

TEST_F(TokenFilesTest, AFileThatShrinksIsAnError) {
  const std::string path = dir_.Write("a.bin", Llmc(std::vector<uint16_t>(5000, 3)));
  const auto source = OpenTokenFile(path);
  std::filesystem::resize_file(path, 2000);
  std::vector<int32_t> ids(4000);
  EXPECT_THAT([&] { (*source)->Read(0, ids); }, Says(HasSubstr("a.bin: byte 2000: the file ends")));
  EXPECT_THAT([&] { (*source)->DocumentBegins(0, 5000); }, Says(HasSubstr("the file ends there")));
  EXPECT_THAT(Message(CheckTokenIds(**source, 10)), HasSubstr("the file ends there"));
  const std::string index = WritePair(Index({2, 2}, {0, 4}, {0, 1, 2}), {1, 2, 3, 4});
  const auto pair = OpenTokenFile(index);
  std::filesystem::resize_file(index, 40);
  EXPECT_THAT([&] { (*pair)->DocumentBegins(0, 4); }, Says(HasSubstr("m.idx: byte")));
}

TEST_F(TokenFilesTest, WhatCannotBeRecognised) {
  EXPECT_THAT(OpenError(dir_.Write("a.bin", "some text")), HasSubstr("raw_u16 or raw_u32"));
  EXPECT_THAT(OpenError(dir_ / "no.bin"), HasSubstr("no.bin: cannot open"));
  EXPECT_THAT(OpenError(dir_.path()), HasSubstr("is a folder, not a regular file"));
  EXPECT_THAT(OpenError(dir_.Write("e.bin", ""), {.format = TokenFormat::kRawU16}),
              HasSubstr("e.bin: is empty"));
  EXPECT_THAT(OpenError(dir_ / "a.bin", {.vocab_size = -5}), HasSubstr("vocab_size is -5"));
  EXPECT_THAT(Message(ParseTokenFormat("lmc").status()), HasSubstr("did you mean \"llmc\"?"));
}

// A file of 10 GB opens at once and takes no memory. Positions beyond 2^32 bytes are found.
TEST_F(TokenFilesTest, HugeFiles) {
  const std::string path = dir_ / "huge.bin";
  const int fd = open(path.c_str(), O_WRONLY | O_CREAT, 0666);
  constexpr off_t kBytes = 10'000'000'000;
  const std::vector<uint16_t> ids = {1, 2, 3};
  ASSERT_EQ(pwrite(fd, ids.data(), 6, kBytes - 6), 6);
  close(fd);
  const int64_t before = ReadProcessMemory()->resident_bytes;
  const auto source = OpenTokenFile(path, {.format = TokenFormat::kRawU16});
  ASSERT_TRUE(source.ok()) << source.status();
  std::vector<int32_t> got(4);
  (*source)->Read((*source)->num_tokens() - 4, got);
  EXPECT_THAT(got, ElementsAre(0, 1, 2, 3));
  EXPECT_LT(ReadProcessMemory()->resident_bytes - before, int64_t{4} << 20);
}

}  // namespace token_files_test
}  // namespace apogee::data
