// SPDX-License-Identifier: Apache-2.0

// apogee generate on folders that the test writes, against loops of its own.
#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "apogee/tests/tools/language_model_folder.h"

namespace apogee::tools {
namespace language_model_test {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

TEST(GenerateCommandTest, GreedyBatchEqualsEachPromptAlone) {
  for (const bool llama : {true, false}) {
    const Folder folder(llama);
    const std::vector<std::string> prompts = {"And Abraham said unto", "the",
                                              "In the beginning of"};
    std::string arguments = "generate " + folder.path() + " --dtype f64 --max-new-tokens 9 --json";
    for (const std::string& prompt : prompts) arguments += " --prompt " + Quoted(prompt);
    const std::vector<Json> lines = Lines(Command(arguments));
    ASSERT_EQ(lines.size(), prompts.size());
    for (size_t i = 0; i < prompts.size(); ++i) {
      const Tokens prompt = folder.Encode(prompts[i]);
      const Tokens want = folder.Greedy(prompt, 9, llama ? Tokens{2} : Tokens{});
      EXPECT_EQ(lines[i]["prompt"], prompts[i]);
      EXPECT_EQ(lines[i]["prompt_tokens"].get<Tokens>(), prompt);
      EXPECT_EQ(lines[i]["tokens"].get<Tokens>(), want);
      EXPECT_EQ(lines[i]["stopped"], want.back() == 2 && llama);
      EXPECT_EQ(prompt[0] == 1, llama);  // <s>
    }
  }
}

TEST(GenerateCommandTest, TextOfPromptsAndFiles) {
  const Folder folder(true);
  const std::string prompt = "And the earth";
  folder.Write("prompt.txt", prompt + "\n");
  const std::string common = " --dtype f64 --max-new-tokens 5 --no-stop";
  const CommandResult one =
      Command("generate " + folder.path() + " --prompt " + Quoted(prompt) + common);
  EXPECT_EQ(one.code, 0);
  Tokens all = folder.Encode(prompt);
  const Tokens drawn = folder.Greedy(all, 5, {});
  all.insert(all.end(), drawn.begin(), drawn.end());
  EXPECT_EQ(one.out, folder.Decode(all) + "\n");
  const CommandResult two = Command("generate " + folder.path() + " --prompt " + Quoted(prompt) +
                                    " --prompt-file " + folder.path() + "/prompt.txt" + common);
  EXPECT_EQ(two.out, one.out + "---\n" + one.out);
}

TEST(GenerateCommandTest, StopTokensAndLengths) {
  const Folder folder(true);
  const Tokens prompt = folder.Encode("of the");
  const std::string base = "generate " + folder.path() + " --prompt 'of the' --dtype f64 --json";
  // As many as there are positions; the last token takes none.
  const auto fit = static_cast<int64_t>(kPositions - prompt.size() + 1);
  const Tokens free = folder.Greedy(prompt, fit, {});
  EXPECT_EQ(Lines(Command(base + " --no-stop"))[0]["tokens"].get<Tokens>(), free);
  // generation_config.json comes before config.json.
  const int64_t stop = free[free.size() / 2];
  folder.Write("generation_config.json", "{\"eos_token_id\": [719, " + std::to_string(stop) +
                                             "], \"do_sample\": true, \"temperature\": 0.6}");
  const Json stopped = Lines(Command(base))[0];
  EXPECT_EQ(stopped["tokens"].get<Tokens>(), folder.Greedy(prompt, fit, {719, stop}));
  EXPECT_EQ(stopped["stopped"], true);
  EXPECT_EQ(Lines(Command(base + " --no-stop"))[0]["tokens"].get<Tokens>(), free);
}

TEST(GenerateCommandTest, SamplingDependsOnTheSeed) {
  const Folder folder(false);
  const std::string base =
      "generate " + folder.path() + " --prompt the --temperature 1.5 --top-k 50 --top-p 0.9 --json";
  const std::string first = Command(base).out;
  EXPECT_EQ(Command(base + " --seed 1").out, first);
  EXPECT_NE(Command(base + " --seed 2").out, first);
  EXPECT_NE(Command(base + " --dtype bf16").code, 1);
}

// Windows of half the text, soft caps and scaled embeddings, by all that the two commands do.
const char* const kGemma2 = R"({"model_type": "gemma2", "vocab_size": 724, "hidden_size": 16,
  "intermediate_size": 20, "num_hidden_layers": 3, "num_attention_heads": 4,
  "num_key_value_heads": 2, "head_dim": 6, "max_position_embeddings": 24, "sliding_window": 9,
  "query_pre_attn_scalar": 5, "attn_logit_softcapping": 2.0, "final_logit_softcapping": 3.0,
  "eos_token_id": 2, "pad_token_id": 0})";

TEST(GenerateCommandTest, FolderOfAnotherFamily) {
  const Folder folder(true, kGemma2);
  const Tokens prompt = folder.Encode("And God said");
  const auto fit = static_cast<int64_t>(kPositions - prompt.size() + 1);
  const Json line = Lines(Command("generate " + folder.path() +
                                  " --prompt 'And God said' --dtype f64 --json --no-stop"))[0];
  EXPECT_EQ(line["tokens"].get<Tokens>(), folder.Greedy(prompt, fit, {}));
  folder.Write("a.txt", "In the beginning God created the heaven and the earth.");
  const Tokens text = folder.Encode("In the beginning God created the heaven and the earth.");
  const auto predicted = static_cast<int64_t>(text.size()) - 1;
  const Json r = Lines(Command("evaluate " + folder.path() + " --dtype f64 --json --data " +
                               folder.path() + "/a.txt"))[0];
  EXPECT_EQ(r["tokens"], predicted);
  const double mean = folder.Loss(text, kPositions, predicted) / static_cast<double>(predicted);
  EXPECT_NEAR(r["loss"].get<double>(), mean, 1e-10);
  EXPECT_NEAR(r["perplexity"].get<double>(), std::exp(mean), 1e-9 * std::exp(mean));
}

TEST(GenerateCommandTest, FoldersThatCannot) {
  const Folder bert(true, R"({"model_type": "bert", "vocab_size": 724, "hidden_size": 16,
    "intermediate_size": 20, "num_hidden_layers": 1, "num_attention_heads": 4,
    "max_position_embeddings": 24})");
  bert.Write("a.txt", "the");
  for (const std::string& arguments :
       {"generate " + bert.path() + " --prompt the",
        "evaluate " + bert.path() + " --data " + bert.path() + "/a.txt"}) {
    const CommandResult result = Command(arguments);
    EXPECT_EQ(result.code, 2) << result.out;
    EXPECT_THAT(result.out, HasSubstr("a bert is no causal language model"));
  }
  const Folder half(false);
  const std::string weights = half.path() + "/model.safetensors";
  fs::resize_file(weights, fs::file_size(weights) / 2);
  const CommandResult damaged = Command("generate " + half.path() + " --prompt the");
  EXPECT_EQ(damaged.code, 1) << damaged.out;
  EXPECT_THAT(damaged.out, HasSubstr("model.safetensors"));
}

TEST(GenerateCommandTest, BadFlags) {
  const Folder folder(false);
  folder.Write("a.txt", "the earth");
  const auto expect = [](const std::string& arguments, const std::string& message) {
    const CommandResult result = Command(arguments);
    EXPECT_EQ(result.code, 2) << arguments << "\n" << result.out;
    EXPECT_THAT(result.out, HasSubstr(message)) << arguments;
  };
  const std::string generate = "generate " + folder.path() + " --prompt the ";
  expect("generate --prompt the", "dir is required");
  expect("generate " + folder.path() + "/none --prompt the", "none");
  expect(generate + "--beams 4", "--beams");
  expect(generate + "--max-new-tokens -2", "--max-new-tokens");
  expect(generate + "--temperature warm", "--temperature");
  expect(generate + "--temperature 1 --top-k -1", "top_k must be positive");
  expect(generate + "--temperature 1 --top-p 1.5", "top_p must be in (0, 1]");
  expect(generate + "--temperature nan", "temperature must be");
  expect(generate + "--threads 0", "--threads");
  expect(generate + "--device abacus", "abacus");
  const std::string evaluate = "evaluate " + folder.path() + " --data " + folder.path() + "/a.txt ";
  expect("evaluate " + folder.path(), "--data is required");
  expect(evaluate + "--block 0", "--block");
  expect(evaluate + "--batch 0", "--batch");
  expect(evaluate + "--limit-tokens 0", "--limit-tokens");
  expect(evaluate + "--token-format raw_u64", "raw_u64");
}

TEST(GenerateCommandTest, BadInput) {
  const Folder folder(false);
  const auto expect = [&](const std::string& arguments, const auto& message) {
    const CommandResult result = Command("generate " + folder.path() + " " + arguments);
    EXPECT_EQ(result.code, 2) << result.out;
    EXPECT_THAT(result.out, message);
  };
  expect("", HasSubstr("give --prompt or --prompt-file"));
  expect("--prompt ''", AllOf(HasSubstr("apogee generate: "), HasSubstr("prompt is empty")));
  expect("--prompt-file " + folder.path() + "/none.txt", HasSubstr("none.txt"));
  expect("--prompt '!' --max-new-tokens 25",
         HasSubstr("--max-new-tokens 25 is more than the 24 that fit: the model has 24 positions, "
                   "the longest prompt 1 tokens"));
  expect("--prompt '" + std::string(25, '!') + "'", HasSubstr("25 tokens, the model has 24"));
  expect("--prompt the --top-k 5", HasSubstr("no effect at temperature 0"));
  expect("--prompt the --temperature -1", HasSubstr("temperature must be"));
  expect("--prompt the --dtype f16", HasSubstr("f16"));
  expect("--prompt the --tokenizer " + TokenizerPath("llama2"),
         AllOf(HasSubstr("has ids up to 719"), HasSubstr("vocabulary has 521")));
  fs::remove(folder.path() + "/tokenizer.json");
  expect("--prompt the", AllOf(HasSubstr("has no tokenizer.json"), HasSubstr("--tokenizer")));
  // The tokenizer of bytes fits every larger vocabulary, whose other ids stand for no text.
  EXPECT_EQ(Command("generate " + folder.path() + " --prompt the --tokenizer byte").code, 0);
  folder.Write("generation_config.json", "{\"eos_token_id\": \"x\"}");
  expect("--prompt the --tokenizer byte", HasSubstr("generation_config.json: \"eos_token_id\""));
  folder.Write("config.json", "{\"model_type\": \"gpt3\"}");
  expect("--prompt the --tokenizer byte", HasSubstr("gpt3"));
  fs::remove(folder.path() + "/config.json");
  expect("--prompt the --tokenizer byte", HasSubstr("config.json"));
}

}  // namespace language_model_test
}  // namespace apogee::tools
