// SPDX-License-Identifier: Apache-2.0

// apogee evaluate on folders that the test writes, against loops of its own.
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

const char* const kText =
    "In the beginning God created the heaven and the earth.\nAnd the earth was without form, and "
    "void; and darkness was upon the face of the deep. And the Spirit of God moved.\n";

TEST(EvaluateCommandTest, TextInWindows) {
  for (const bool llama : {true, false}) {
    const Folder folder(llama);
    folder.Write("text/a.txt", kText);
    const Tokens tokens = folder.Encode(kText);
    const int64_t all = std::ssize(tokens) - 1;
    const std::string base =
        "evaluate " + folder.path() + " --dtype f64 --json --data " + folder.path();
    for (const std::string batch : {" --batch 1", " --batch 3", ""}) {
      for (const int64_t block : {kPositions, int64_t{7}}) {
        const Json r =
            Lines(Command(base + "/text/a.txt --block " + std::to_string(block) + batch))[0];
        const double sum = folder.Loss(tokens, block, all);
        EXPECT_NEAR(r["loss"].get<double>(), sum / static_cast<double>(all), 1e-10);
        EXPECT_NEAR(r["perplexity"].get<double>() / std::exp(r["loss"].get<double>()), 1, 1e-12);
        EXPECT_EQ(r["tokens"], all);
        EXPECT_EQ(r["windows"], (all + block - 1) / block);
        // Without <s> the first token is not predicted.
        const int64_t first = llama ? 0 : std::ssize(folder.Decode({tokens[0]}));
        const auto bytes = static_cast<int64_t>(std::string(kText).size()) - first;
        EXPECT_EQ(r["bytes"], bytes);
        EXPECT_NEAR(r["nats_per_byte"].get<double>(), sum / static_cast<double>(bytes), 1e-10);
      }
    }
    const Json folder_of_text = Lines(Command(base + "/text"))[0];
    EXPECT_EQ(folder_of_text["block"], kPositions);
    EXPECT_EQ(folder_of_text["tokens"], all);
    const Json limited = Lines(Command(base + "/text --limit-tokens 40 --block 16"))[0];
    EXPECT_NEAR(limited["loss"].get<double>(), folder.Loss(tokens, 16, 40) / 40, 1e-10);
    EXPECT_EQ(limited["windows"], 3);
    EXPECT_EQ(limited["bytes"],
              std::ssize(folder.Decode(Tokens(tokens.begin() + 1, tokens.begin() + 41))));
    EXPECT_THAT(Command("evaluate " + folder.path() + " --data " + folder.path() + "/text").out,
                AllOf(HasSubstr("loss "), HasSubstr(" nats per token, perplexity "),
                      HasSubstr(" of at most 24\n"), HasSubstr(" nats per byte (")));
  }
}

TEST(EvaluateCommandTest, TokenFilesOfEveryFormat) {
  const Folder folder(false);
  const std::string text = folder.path() + "/a.txt";
  folder.Write("a.txt", kText);
  std::map<std::string, double> losses;
  for (const std::string format : {"llmc", "megatron", "raw_u16"}) {
    fs::create_directory(folder.path() + "/" + format);
    const std::string output = folder.path() + "/" + format + "/tokens.bin";
    const CommandResult made = Command("data tokenize --tokenizer " + folder.path() +
                                       "/tokenizer.json --end-of-text none "
                                       "--format " +
                                       format + " --output " + output + " " + text);
    ASSERT_EQ(made.code, 0) << made.out;
    const std::string raw = format == "raw_u16" ? " --token-format raw_u16" : "";
    const std::string base = "evaluate " + folder.path() + " --dtype f64 --json" + raw + " --data ";
    losses[format] = Lines(Command(base + output))[0]["loss"].get<double>();
    // A folder; of a pair only one file counts.
    const Json whole = Lines(Command(base + folder.path() + "/" + format))[0];
    EXPECT_EQ(whole["loss"].get<double>(), losses[format]);
    EXPECT_FALSE(whole.contains("bytes"));
  }
  const Json r =
      Lines(Command("evaluate " + folder.path() + " --dtype f64 --json --data " + text))[0];
  for (const auto& [format, loss] : losses) EXPECT_EQ(loss, r["loss"].get<double>()) << format;
}

TEST(EvaluateCommandTest, BadInput) {
  const Folder folder(false);
  folder.Write("a.txt", kText);
  folder.Write("one.txt", "!");
  folder.Write("mixed/a.txt", kText);
  folder.Write("mixed/a.bin", kText);
  const auto expect = [&](const std::string& data, const auto& message) {
    const CommandResult result =
        Command("evaluate " + folder.path() + " --data " + folder.path() + data);
    EXPECT_EQ(result.code, 2) << result.out;
    EXPECT_THAT(result.out, message);
  };
  expect("/none.txt", HasSubstr("none.txt"));
  expect("/one.txt", HasSubstr("has 1 tokens; at least 2 are needed"));
  expect("/mixed", HasSubstr("some of the files are token files"));
  expect("/a.txt --block 25", HasSubstr("--block 25 is more than the 24 positions"));
  expect("/a.txt --token-format raw_u16", HasSubstr("is for token files"));
  expect("/a.txt --tokenizer " + TokenizerPath("llama2"),
         AllOf(HasSubstr("has ids up to 719"), HasSubstr("vocabulary has 521")));
  fs::remove(folder.path() + "/tokenizer.json");
  expect("/a.txt", HasSubstr("has no tokenizer.json"));
  // Ids that the model lacks, in a file that names no tokenizer.
  const std::string output = folder.path() + "/large.bin";
  ASSERT_EQ(Command("data tokenize --tokenizer " + TokenizerPath("llama2") + " --output " + output +
                    " --end-of-text none " + folder.path() + "/a.txt")
                .code,
            0);
  expect("/large.bin", AllOf(HasSubstr("large.bin"), HasSubstr("521")));
}

}  // namespace language_model_test
}  // namespace apogee::tools
