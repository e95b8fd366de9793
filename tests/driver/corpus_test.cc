// SPDX-License-Identifier: Apache-2.0

// driver::LoadCorpus: the same text as bytes, through a tokenizer, and as a token file.
#include "apogee/driver/corpus.h"

#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "apogee/data/token_files/token_file.h"
#include "apogee/driver/text_run.h"
#include "apogee/nn/losses.h"
#include "apogee/nn/models/gpt2.h"
#include "apogee/optim/momentum/sgd.h"
#include "apogee/plugins/single_rank.h"
#include "apogee/tensor/cpu/cpu_context.h"
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
  EXPECT_EQ(ValidationBytes(corpus, 32), 32);
  EXPECT_STREQ(corpus.unit, "bytes");
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
  const int64_t num_tokens = corpus.validation->num_tokens();
  EXPECT_EQ(ValidationBytes(corpus, num_tokens), static_cast<int64_t>(validation.size()));
  EXPECT_STREQ(corpus.unit, "tokens");
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
  EXPECT_EQ(ValidationBytes(corpus, corpus.validation->num_tokens()),
            static_cast<int64_t>(Text(corpus, *corpus.validation).size()));

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

// A model that was made for another tokenizer.
TEST_F(CorpusTest, AModelWithFewerIdsIsRefused) {
  RunFlags flags;
  flags.data = {path_};
  flags.block = 16;
  flags.batch = 4;
  flags.steps = 1;
  const Corpus corpus = ValueOrThrow(LoadCorpus(flags));
  const auto start = [&](int64_t vocab_size) {
    const comm::World world(0, 1, CpuContext(), nullptr);
    nn::Gpt2 model(
        {.vocab_size = vocab_size, .n_positions = 16, .n_embd = 8, .n_layer = 1, .n_head = 1});
    model.Initialize(world.context(), {.seed = 1});
    optim::Sgd optimizer(model.Parameters(), {});
    optim::LrScheduler scheduler(optimizer, ValueOrThrow(optim::MakeLrSchedule("constant", {})));
    SingleRankPlugin plugin(TrainingOptions{});
    Booster booster(plugin);
    const ProcessMemory memory;
    TextRun run({world, corpus, memory}, flags, booster, plugin);
    const Boosted boosted = booster.boost(
        model, optimizer, {.criterion = nn::CrossEntropyLoss(), .scheduler = &scheduler});
    return run.Start(boosted, scheduler, {"GPT-2", model.num_parameters()});
  };
  EXPECT_THAT(
      [&] { start(255); },
      Says(HasSubstr("(bytes, 256 tokens) has ids up to 255, but the model's vocabulary has "
                     "255")));
  EXPECT_TRUE(start(256));
}

}  // namespace corpus_test
}  // namespace apogee::driver
