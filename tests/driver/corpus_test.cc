// SPDX-License-Identifier: Apache-2.0

// driver::LoadCorpus: the same text as bytes, through a tokenizer, and as a token file.
#include "apogee/driver/corpus.h"

#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "apogee/data/token_files/token_file.h"
#include "apogee/tests/support/files/temp_dir.h"
#include "apogee/tests/support/says.h"

namespace apogee::driver {
namespace corpus_test {

using apogee::testing::Says;
using ::testing::HasSubstr;
using ::testing::StartsWith;

std::vector<int32_t> All(const data::TokenSource& source) {
  std::vector<int32_t> tokens(static_cast<size_t>(source.num_tokens()));
  source.Read(0, tokens);
  return tokens;
}

std::string Text(const Corpus& corpus, const data::TokenSource& part) {
  return corpus.tokenizer->Decode(All(part));
}

class CorpusTest : public ::testing::Test {
 protected:
  CorpusTest() {
    for (int i = 0; i < 200; ++i) {
      text_ += "line " + std::to_string(i * i) + " of the text, which is longer\n";
    }
    path_ = dir_.Write("text.txt", text_);
  }
  static std::string Problem(const DataFlags& flags) {
    const auto corpus = LoadCorpus(flags);
    return corpus.ok() ? "no error" : Message(corpus.status());
  }

  apogee::testing::TempDir dir_;
  std::string text_, path_;
};

TEST_F(CorpusTest, BytesAreCutAtNineTenths) {
  const Corpus corpus = ValueOrThrow(LoadCorpus({.data = {path_}, .block = 16}));
  const size_t cut = text_.size() * 9 / 10;
  EXPECT_EQ(Text(corpus, *corpus.train), text_.substr(0, cut));
  EXPECT_EQ(Text(corpus, *corpus.validation), text_.substr(cut));
  EXPECT_EQ(corpus.validation_bytes, corpus.validation->num_tokens());
  EXPECT_EQ(corpus.tokenizer->vocab_size(), 256);
  EXPECT_THAT(corpus.fingerprint, StartsWith(std::to_string(cut) + " bytes of text (crc "));
  EXPECT_EQ(corpus.tokenizer_json, "");
}

TEST_F(CorpusTest, ATrainedTokenizerGetsWholeLines) {
  const DataFlags flags{.data = {path_}, .train_tokenizer = 300, .block = 16};
  const Corpus corpus = ValueOrThrow(LoadCorpus(flags));
  EXPECT_EQ(corpus.tokenizer->vocab_size(), 300);
  const std::string train = Text(corpus, *corpus.train);
  const std::string validation = Text(corpus, *corpus.validation);
  EXPECT_EQ(train + validation, text_);
  EXPECT_EQ(train.back(), '\n');
  EXPECT_EQ(corpus.validation_bytes, static_cast<int64_t>(validation.size()));
  EXPECT_LT(corpus.train->num_tokens() * 3, static_cast<int64_t>(train.size()) * 2);

  // The file that the run leaves behind gives the same tokens.
  const std::string json = dir_.Write("tokenizer.json", corpus.tokenizer_json);
  const Corpus again = ValueOrThrow(LoadCorpus({.data = {path_}, .tokenizer = json, .block = 16}));
  EXPECT_EQ(All(*again.train), All(*corpus.train));
  EXPECT_EQ(again.fingerprint, corpus.fingerprint);
}

TEST_F(CorpusTest, TokenFilesHaveTheirLastTenthForValidation) {
  const Corpus text =
      ValueOrThrow(LoadCorpus({.data = {path_}, .train_tokenizer = 300, .block = 16}));
  const std::string json = dir_.Write("tokenizer.json", text.tokenizer_json);
  std::vector<int32_t> ids = All(*text.train);
  const std::vector<int32_t> rest = All(*text.validation);
  ids.insert(ids.end(), rest.begin(), rest.end());
  const std::string file = dir_ / "corpus.bin";
  const auto writer = ValueOrThrow(data::TokenFileWriter::Create(file, {.vocab_size = 300}));
  OkOrThrow(writer->Append(ids));
  OkOrThrow(writer->Finish());

  const Corpus corpus = ValueOrThrow(LoadCorpus({.data = {file}, .tokenizer = json, .block = 16}));
  const size_t cut = ids.size() * 9 / 10;
  EXPECT_EQ(All(*corpus.train), std::vector<int32_t>(ids.begin(), ids.begin() + cut));
  EXPECT_EQ(All(*corpus.validation), std::vector<int32_t>(ids.begin() + cut, ids.end()));
  EXPECT_EQ(corpus.validation_bytes, static_cast<int64_t>(Text(corpus, *corpus.validation).size()));

  EXPECT_THAT(Problem({.data = {file}}), HasSubstr("say with --tokenizer"));
  EXPECT_THAT(Problem({.data = {file, path_}, .tokenizer = json}), HasSubstr("give one kind"));
}

TEST_F(CorpusTest, WhatDoesNotFitIsRefused) {
  EXPECT_THAT(Problem({.data = {path_}, .token_format = "raw_u16"}),
              HasSubstr("is for token files"));
  EXPECT_THAT(Problem({.data = {path_}, .train_tokenizer = 300, .block = 400}),
              HasSubstr("tokens for validation, but a block of 400 needs 401"));
  const DataFlags both{.data = {path_}, .tokenizer = "tokenizer.json", .train_tokenizer = 300};
  EXPECT_THAT([&] { both.Settle(); }, Says(HasSubstr("leave --tokenizer out")));
  const DataFlags tokens{.data = {"a.bin"}, .train_tokenizer = 300};
  EXPECT_THAT([&] { tokens.Settle(); }, Says(HasSubstr("needs text")));
}

}  // namespace corpus_test
}  // namespace apogee::driver
