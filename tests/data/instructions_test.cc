// SPDX-License-Identifier: Apache-2.0

// Instructions: tokens, masks and packing compared with naive definitions, and files that are bad.
#include "apogee/data/instructions.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "apogee/autograd/grad_mode.h"
#include "apogee/data/loader.h"
#include "apogee/data/tokenizer/byte_tokenizer.h"
#include "apogee/nn/losses.h"
#include "apogee/nn/models/gpt2.h"
#include "apogee/nn/models/llama.h"
#include "apogee/tensor/cpu/cpu_context.h"
#include "apogee/tests/support/files/temp_dir.h"
#include "apogee/tests/support/says.h"
#include "gmock/gmock-more-matchers.h"
#include "gtest/gtest.h"

namespace apogee::data {
namespace instructions_test {

using apogee::testing::Says;
using apogee::testing::TempDir;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using Ids = std::vector<int64_t>;

constexpr int32_t kEnd = 256, kBegin = 257;

// Bytes, and a token before each text.
class PrefixedBytes : public ByteTokenizer {
 public:
  std::vector<int32_t> prefix() const override { return {kBegin}; }
};

// Joins "ab" to one token.
class JoiningBytes : public ByteTokenizer {
 public:
  void Encode(std::string_view text, std::vector<int32_t>& ids) const override {
    for (size_t i = 0; i < text.size(); ++i) {
      const bool joined = text.substr(i, 2) == "ab";
      ids.push_back(joined ? 300 : static_cast<unsigned char>(text[i]));
      i += joined ? 1 : 0;
    }
  }
};

class InstructionsTest : public ::testing::Test {
 protected:
  absl::StatusOr<Instructions> Read(const std::string& text, InstructionOptions options = {}) {
    options.end_of_text = kEnd;
    return ReadInstructions({dir_.Write("train.jsonl", text)}, ByteTokenizer(), options);
  }
  // The message about a bad second line.
  std::string Problem(const std::string& line, const InstructionOptions& options = {}) {
    const std::string good = R"({"prompt": "a", "completion": "b"})";
    const auto read = Read(good + "\n" + line + "\n" + good + "\n", options);
    if (read.ok()) return "no error";
    EXPECT_EQ(read.status().code(), absl::StatusCode::kInvalidArgument);
    const std::string place = (dir_ / "train.jsonl") + ": line 2: ";
    EXPECT_THAT(Message(read.status()), ::testing::StartsWith(place));
    return Message(read.status()).substr(place.size());
  }

  TempDir dir_;
};

// Inputs, targets and starts of a sample.
std::vector<Ids> FieldsOf(const Dataset& dataset, int64_t index) {
  const std::vector<Field> fields = dataset.fields();
  std::vector<Ids> values;
  std::vector<std::byte*> data;
  for (const Field& field : fields) {
    values.emplace_back(static_cast<size_t>(field.shape.numel()), -7);
  }
  for (Ids& each : values) data.push_back(reinterpret_cast<std::byte*>(each.data()));
  dataset.FillFields(index, SampleMemory(fields, data));
  return values;
}

TEST_F(InstructionsTest, OnlyTheCompletionIsLearned) {
  const auto all = Read(
      "{\"prompt\": \"ab\", \"completion\": \"cd\"}\n"
      "{\"completion\": \"\\u0041\", \"prompt\": \"\"}\r\n"
      "{\"text\": \"xyz\"}\n"
      "{\"prompt\": \"p\", \"completion\": \"\"}",  // and no end of the last line
      {.block = 6});
  ASSERT_TRUE(all.ok()) << all.status();
  const auto samples = all->Samples(/*pack=*/false);
  ASSERT_EQ(samples->num_samples(), 4);
  const int64_t no = kIgnoredTarget;
  EXPECT_EQ(FieldsOf(*samples, 0),
            (std::vector<Ids>{{'a', 'b', 'c', 'd', kEnd, kEnd}, {no, 'c', 'd', kEnd, no, no}}));
  EXPECT_EQ(FieldsOf(*samples, 1),
            (std::vector<Ids>{{'A', kEnd, kEnd, kEnd, kEnd, kEnd}, {kEnd, no, no, no, no, no}}));
  EXPECT_EQ(FieldsOf(*samples, 2),
            (std::vector<Ids>{{'x', 'y', 'z', kEnd, kEnd, kEnd}, {'y', 'z', kEnd, no, no, no}}));
  EXPECT_EQ(FieldsOf(*samples, 3),
            (std::vector<Ids>{{'p', kEnd, kEnd, kEnd, kEnd, kEnd}, {kEnd, no, no, no, no, no}}));
  EXPECT_EQ(all->num_targets(), 3 + 1 + 3 + 1);
  EXPECT_THAT(all->notices, IsEmpty());
}

TEST_F(InstructionsTest, ThePrefixOfTheTokenizerIsPartOfThePrompt) {
  const std::string path =
      dir_.Write("train.jsonl", "{\"prompt\": \"a\", \"completion\": \"b\"}\n{\"text\": \"c\"}\n");
  const auto all = ReadInstructions({path}, PrefixedBytes(), {.block = 5, .end_of_text = kEnd});
  ASSERT_TRUE(all.ok()) << all.status();
  const auto samples = all->Samples(/*pack=*/false);
  const int64_t no = kIgnoredTarget;
  EXPECT_EQ(FieldsOf(*samples, 0),
            (std::vector<Ids>{{kBegin, 'a', 'b', kEnd, kEnd}, {no, 'b', kEnd, no, no}}));
  EXPECT_EQ(FieldsOf(*samples, 1),
            (std::vector<Ids>{{kBegin, 'c', kEnd, kEnd, kEnd}, {'c', kEnd, no, no, no}}));
}

// A text that is generated from the prompt begins with the tokens that were trained on.
TEST_F(InstructionsTest, PromptAndCompletionAreEncodedApart) {
  const std::string path =
      dir_.Write("train.jsonl", "{\"prompt\": \"aba\", \"completion\": \"bab\"}\n");
  const auto all = ReadInstructions({path}, JoiningBytes(), {.block = 8, .end_of_text = kEnd});
  ASSERT_TRUE(all.ok()) << all.status();
  EXPECT_EQ(FieldsOf(*all->Samples(false), 0)[0],
            (Ids{300, 'a', 'b', 300, kEnd, kEnd, kEnd, kEnd}));
  EXPECT_THAT(all->prompts, ElementsAre(2));
}

TEST_F(InstructionsTest, LongSamplesAreCutAndCounted) {
  const auto all = Read(
      "{\"prompt\": \"ab\", \"completion\": \"cdefg\"}\n"
      "{\"prompt\": \"abc\", \"completion\": \"d\", \"id\": 7, \"of\": {\"text\": [\"x\"]}}\n"
      "{\"text\": \"abc\", \"id\": null}\n"
      "{\"prompt\": \"abc\", \"completion\": \"\"}\n",
      {.block = 4});
  ASSERT_TRUE(all.ok()) << all.status();
  const int64_t no = kIgnoredTarget;
  const auto samples = all->Samples(false);
  EXPECT_EQ(FieldsOf(*samples, 0), (std::vector<Ids>{{'a', 'b', 'c', 'd'}, {no, 'c', 'd', no}}));
  EXPECT_EQ(FieldsOf(*samples, 1), (std::vector<Ids>{{'a', 'b', 'c', 'd'}, {no, no, 'd', no}}));
  EXPECT_EQ(FieldsOf(*samples, 2), (std::vector<Ids>{{'a', 'b', 'c', kEnd}, {'b', 'c', kEnd, no}}));
  EXPECT_THAT(all->notices,
              ElementsAre(EndsWith(": 2 of 4 samples have more than 4 tokens and were cut at their "
                                   "end"),
                          EndsWith(": only prompt, completion and text are used, not id, of")));
}

TEST_F(InstructionsTest, BadLinesAreRefusedWithTheirPlace) {
  const std::string form =
      "; a line is {\"prompt\": \"...\", \"completion\": \"...\"} or {\"text\": \"...\"}";
  EXPECT_EQ(Problem(R"({"prompt": "a"})"), "has a \"prompt\" and no \"completion\"" + form);
  EXPECT_EQ(Problem(R"({"completion": "a"})"), "has a \"completion\" and no \"prompt\"" + form);
  EXPECT_EQ(Problem("{}"), "has neither \"prompt\" and \"completion\" nor \"text\"" + form);
  EXPECT_EQ(Problem(R"({"Text": "a"})"),
            "has neither \"prompt\" and \"completion\" nor \"text\"" + form);
  EXPECT_EQ(Problem(R"({"text": "a", "prompt": "b"})"), "has \"text\" and \"prompt\"" + form);
  EXPECT_EQ(Problem(R"({"text": "a", "completion": "b"})"),
            "has \"text\" and \"completion\"" + form);
  EXPECT_EQ(Problem(""), "is empty; remove it");
  EXPECT_EQ(Problem("\r"), "is empty; remove it");
  EXPECT_EQ(Problem(R"({"text": ""})"), "its text is empty; remove the line");
  EXPECT_EQ(Problem(R"({"prompt": "", "completion": ""})"),
            "its prompt and its completion are empty; remove the line");
  const std::pair<const char*, const char*> values[] = {
      {"1", "a number"},     {"-1", "a number"},  {"1.5", "a number"},  {"null", "null"},
      {"true", "a boolean"}, {"{}", "an object"}, {"[\"a\"]", "a list"}};
  for (const auto& [value, kind] : values) {
    EXPECT_EQ(Problem("{\"prompt\": \"a\", \"completion\": " + std::string(value) + "}"),
              "the field \"completion\" is " + std::string(kind) + ", not a string");
  }
  EXPECT_EQ(Problem(R"({"text": "a", "text": "b"})"), "has the field \"text\" twice");
  EXPECT_EQ(Problem("[\"a\"]"), "is a list, not an object");
  EXPECT_EQ(Problem("\"a\""), "is a string, not an object");
  EXPECT_EQ(Problem("a"),
            "not valid JSON: expected a value, or a digit of a number at byte 1 of "
            "the line");
  EXPECT_THAT(Problem("{\"text\": \"a\"} {\"text\": \"b\"}"),
              HasSubstr("there is more after the value"));
  EXPECT_THAT(Problem("{\"text\": \"a"), HasSubstr("the text ends in a string"));
  EXPECT_EQ(Problem("{\"text\": \"a\xFF\"}"),
            "not valid JSON: a string is not UTF-8 at byte 12 of the line");
  EXPECT_EQ(Problem("{\"text\": \"\\ud800\"}"),
            "not valid JSON: half of a surrogate pair in a string at byte 16 of the line");
  EXPECT_EQ(Problem(R"({"prompt": "abcd", "completion": "e"})", {.block = 4}),
            "its prompt has 4 tokens, a sample has at most 4: nothing of it would be learned; take "
            "a larger block, or remove the line");
}

TEST_F(InstructionsTest, BadFilesAreRefused) {
  const auto problem = [&](const std::vector<std::string>& paths) {
    return Message(ReadInstructions(paths, ByteTokenizer(), {.end_of_text = kEnd}).status());
  };
  EXPECT_THAT(problem({dir_.Write("empty.jsonl", "")}),
              AllOf(HasSubstr("empty.jsonl: is empty; a line is {")));
  EXPECT_THAT(problem({dir_.Write("mark.jsonl", "\xEF\xBB\xBF{\"text\": \"a\"}")}),
              HasSubstr("mark.jsonl: line 1: begins with a byte order mark"));
  EXPECT_THAT(problem({dir_ / "none.jsonl"}), HasSubstr("none.jsonl"));
  EXPECT_THAT(problem({dir_.path()}), HasSubstr(dir_.path()));
  EXPECT_THAT(problem({}), HasSubstr("give at least one .jsonl file"));
  const std::string good = dir_.Write("good.jsonl", "{\"text\": \"a\"}\n");
  EXPECT_THAT(problem({good, dir_.Write("bad.jsonl", "{\"text\": \"a\"}\n{}\n")}),
              HasSubstr("bad.jsonl: line 2: "));
  EXPECT_THAT([&] { std::ignore = ReadInstructions({good}, ByteTokenizer(), {.block = 1}); },
              Says(HasSubstr("block must be at least 2, got 1")));
  EXPECT_THAT([&] { std::ignore = ReadInstructions({good}, ByteTokenizer(), {.end_of_text = -1}); },
              Says(HasSubstr("must be a token id, got -1")));
}

// Lines that end next to where the reader reads on, and the longest that are allowed.
TEST_F(InstructionsTest, LinesOfAnyLengthAreRead) {
  for (const int64_t length : {(1 << 20) - 14, (1 << 20) - 13, (1 << 20) - 12, (2 << 20) + 5}) {
    const std::string text(static_cast<size_t>(length), 'a');
    const std::string line = "{\"text\": \"" + text + "\"}\n";
    const auto all = Read(line + "{\"text\": \"b\"}\n", {.block = length + 1});
    ASSERT_TRUE(all.ok()) << all.status();
    EXPECT_EQ(all->num_targets(), length + 1) << "of the first line its length, of the other 1";
    const InstructionOptions exact{.block = 4, .max_line_bytes = length + 12};
    EXPECT_TRUE(Read(line, exact).ok());
    for (const std::string& rest : {std::string("\n"), std::string()}) {
      const auto longer =
          Read("{\"text\": \"a\"}\n " + line.substr(0, line.size() - 1) + rest, exact);
      EXPECT_EQ(longer.status().code(), absl::StatusCode::kResourceExhausted);
      EXPECT_THAT(Message(longer.status()), HasSubstr("train.jsonl: line 2: is longer than "));
    }
  }
}

TEST_F(InstructionsTest, PartsKeepTheirPrompts) {
  std::string lines;
  for (int i = 0; i < 7; ++i) {
    lines += "{\"prompt\": \"" + std::string(static_cast<size_t>(i), 'p') +
             "\", \"completion\": \"" + std::string(static_cast<size_t>(7 - i), 'c') + "\"}\n";
  }
  const Instructions all = ValueOrThrow(Read(lines, {.block = 9}));
  const auto samples = all.Samples(false);
  for (const auto& [first, count] : {std::pair{0, 7}, {0, 3}, {3, 4}, {6, 1}}) {
    const auto part = all.Part(first, count).Samples(false);
    ASSERT_EQ(part->num_samples(), count);
    for (int i = 0; i < count; ++i) {
      EXPECT_EQ(FieldsOf(*part, i), FieldsOf(*samples, first + i)) << first << " " << i;
    }
  }
  EXPECT_EQ(all.Part(0, 3).num_targets() + all.Part(3, 4).num_targets(), all.num_targets());
  EXPECT_THAT([&] { std::ignore = all.Part(5, 3); }, Says(HasSubstr("outside of [0, 7)")));
  EXPECT_THAT([&] { std::ignore = all.Part(5, 0); }, Says(HasSubstr("outside of [0, 7)")));
}

// The mean over all targets of a dataset.
double LossOf(nn::Module& model, const std::shared_ptr<const Dataset>& samples,
              const ContextPtr& context, int64_t* num_targets) {
  const autograd::NoGradGuard no_grad;
  Loader loader(samples, std::make_shared<SequentialSampler>(samples->num_samples()), context,
                {.batch = 2, .drop_last = false});
  double sum = 0;
  *num_targets = 0;
  for (const Batch& batch : loader) {
    const Tensor logits =
        batch.Has("starts")
            ? model({{"tokens", batch.inputs}, {"starts", batch["starts"]}}).at("logits")
            : model(batch.inputs);
    const int64_t count = nn::CountTargets(batch.targets);
    if (count == 0) continue;
    sum += nn::CrossEntropyLoss()(logits, batch.targets).Item() * static_cast<double>(count);
    *num_targets += count;
  }
  return sum / static_cast<double>(*num_targets);
}

TEST_F(InstructionsTest, PackedTheyGiveTheLossOfPaddedOnes) {
  std::string lines;
  for (int i = 0; i < 13; ++i) {
    lines += "{\"prompt\": \"" + std::string(static_cast<size_t>(i * 5 % 7), 'a' + i) +
             "\", \"completion\": \"" + std::string(static_cast<size_t>(1 + i * 3 % 8), 'A' + i) +
             "\"}\n";
  }
  const Instructions all = ValueOrThrow(Read(lines, {.block = 11}));
  EXPECT_EQ(all.notices.size(), 1u) << "some are cut";
  const auto padded = all.Samples(false), packed = all.Samples(true);
  EXPECT_EQ(padded->num_samples(), 13);
  EXPECT_LT(packed->num_samples(), 13);
  const ContextPtr context = CpuContext();
  nn::Gpt2 gpt2({.vocab_size = 257, .n_positions = 11, .n_embd = 8, .n_layer = 2, .n_head = 2});
  nn::Llama llama({.vocab_size = 257,
                   .hidden_size = 8,
                   .intermediate_size = 12,
                   .num_hidden_layers = 2,
                   .num_attention_heads = 2,
                   .num_key_value_heads = 1,
                   .max_position_embeddings = 11});
  for (nn::Module* model : {static_cast<nn::Module*>(&gpt2), static_cast<nn::Module*>(&llama)}) {
    model->Initialize(context, {.seed = 3});
    model->To(DType::kF64);
    model->Train(false);
    int64_t of_padded = 0, of_packed = 0;
    const double want = LossOf(*model, padded, context, &of_padded);
    const double got = LossOf(*model, packed, context, &of_packed);
    EXPECT_EQ(of_padded, all.num_targets());
    EXPECT_EQ(of_packed, all.num_targets());
    EXPECT_NEAR(got, want, 1e-12 * std::abs(want));
  }
}

}  // namespace instructions_test
}  // namespace apogee::data
