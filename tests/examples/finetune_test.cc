// SPDX-License-Identifier: Apache-2.0

// Runs 07_finetune on a small folder that 07_new_model makes: only completions are learned, every
// plugin has the losses of one rank, and the folder that is saved has the loss of the run.
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include "apogee/autograd/grad_mode.h"
#include "apogee/booster/pretrained.h"
#include "apogee/checkpoint/hf/hf_weights.h"
#include "apogee/data/tokenizer/load_tokenizer.h"
#include "apogee/driver/model_folder.h"
#include "apogee/tensor/cpu/cpu_context.h"
#include "apogee/tests/support/program.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"

namespace apogee {
namespace finetune_test {

namespace fs = std::filesystem;
using ::apogee::testing::ProgramResult;
using ::apogee::testing::ReadFile;
using ::apogee::testing::ReadRows;
using ::apogee::testing::RunProgram;
using ::apogee::testing::TempDir;
using ::testing::DoubleNear;
using ::testing::HasSubstr;
using ::testing::Pointwise;

constexpr double kTolerance = 1e-8;  // what is logged has 9 digits
const std::string kTraining =
    " --precision f64 --batch 6 --accumulate 3 --steps 5 --lr 1e-2 --block 32 --sample 4 --threads "
    "2";
constexpr size_t kTrained = 18;  // of the 20 samples; the rest is for validation

struct Sample {
  std::string prompt, completion;
};

std::vector<Sample> Samples() {
  std::vector<Sample> samples;
  for (int i = 0; i < 20; ++i) {
    samples.push_back({"What follows " + std::to_string(i * i) + "?", " " + std::to_string(i + 1)});
  }
  samples[3].prompt = "";               // learned from its beginning on
  samples[5].completion += " or more";  // samples have different numbers of targets
  return samples;
}

std::string JsonLine(const Sample& sample) {
  return nlohmann::json({{"prompt", sample.prompt}, {"completion", sample.completion}}).dump() +
         "\n";
}

// The texts that the model wrote.
std::vector<std::string> SamplesIn(const ProgramResult& result) {
  const std::string begin = "sample:\n";
  std::vector<std::string> samples;
  for (size_t at = 0; (at = result.out.find(begin, at)) != std::string::npos;) {
    at += begin.size();
    samples.push_back(result.out.substr(at, result.out.find('\n', at) - at));
  }
  return samples;
}

std::string Model(const std::string& dir) { return dir + "/model"; }

// The mean loss of the samples' targets, with a loop over logits of one sample at a time. `all`:
// the prompts' tokens are targets, too.
double LossOf(const std::string& folder, const std::vector<Sample>& samples, bool all = false) {
  const autograd::NoGradGuard no_grad;
  const nn::HfModel hf = ValueOrThrow(LoadPretrained(folder, CpuContext(), {.dtype = DType::kF64}));
  hf.module->Train(false);
  const auto tokenizer = ValueOrThrow(data::LoadTokenizer(folder + "/tokenizer.json"));
  double sum = 0;
  int64_t count = 0;
  for (const Sample& sample : samples) {
    std::vector<int32_t> ids;
    tokenizer->Encode(sample.prompt, ids);
    const size_t first = all || ids.empty() ? 1 : ids.size();
    tokenizer->Encode(sample.completion, ids);
    ids.push_back(*tokenizer->IdOf("<|endoftext|>"));
    const std::vector<int64_t> inputs(ids.begin(), ids.end() - 1);
    const std::vector<double> logits =
        (*hf.module)(Tensor::FromVector<int64_t>(inputs, {1, std::ssize(inputs)}, CpuContext()))
            .ToVector<double>();
    const auto vocab = static_cast<size_t>(hf.vocab_size);
    for (size_t t = first; t < ids.size(); ++t) {
      const double* row = logits.data() + (t - 1) * vocab;
      double total = 0;
      for (size_t v = 0; v < vocab; ++v) total += std::exp(row[v]);
      sum += std::log(total) - row[static_cast<size_t>(ids[t])];
      ++count;
    }
  }
  return sum / static_cast<double>(count);
}

class FinetuneTest : public ::testing::Test {
 protected:
  FinetuneTest() {
    driver::MakeNewModel("llama", start_);
    for (const Sample& sample : Samples()) lines_ += JsonLine(sample);
    data_ = dir_.Write("train.jsonl", lines_);
  }

  ProgramResult TrainOn(const std::string& data, const std::string& flags) {
    data_ = data;
    return Train(flags);
  }
  // Three micro-batches of six samples are all that is trained on; `flags` come last and win.
  ProgramResult Train(const std::string& flags, const std::string& out = "out") {
    fs::remove_all(dir_ / out);
    return RunProgram(APOGEE_FINETUNE,
                      "--model " + start_ + " --data " + data_ + " --out " + (dir_ / out) +
                          kTraining + " " + flags,
                      dir_);
  }
  std::vector<double> Losses(const std::string& file, const std::string& out = "out") {
    std::vector<double> losses;
    for (const auto& row : ReadRows(dir_ / (out + "/" + file))) losses.push_back(row.at("loss"));
    return losses;
  }
  void ExpectRefused(const std::string& flags, const std::string& message, int exit_code = 1) {
    const ProgramResult result = Train(flags, "refused");
    EXPECT_EQ(result.exit_code, exit_code) << flags << "\n" << result.out << result.err;
    EXPECT_THAT(result.err, HasSubstr(message)) << flags;
    EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 1) << result.err;
    EXPECT_FALSE(fs::exists(Model(dir_ / "refused"))) << flags;
  }

  TempDir dir_;
  std::string start_ = dir_ / "start", lines_, data_;
};

TEST_F(FinetuneTest, LearnsCompletionsAndSavesAFolder) {
  const ProgramResult result = Train("");
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(result.err, "");
  const std::vector<Sample> all = Samples();
  const std::vector<Sample> trained(all.begin(), all.begin() + kTrained);
  const std::vector<Sample> rest(all.begin() + kTrained, all.end());

  const std::vector<double> losses = Losses("metrics.jsonl");
  ASSERT_EQ(losses.size(), 5u);
  EXPECT_NEAR(losses[0], LossOf(start_, trained), kTolerance);
  EXPECT_GT(std::abs(losses[0] - LossOf(start_, trained, /*all=*/true)), 1e-3);
  EXPECT_LT(losses[4], 0.8 * losses[0]);

  const std::string saved = Model(dir_ / "out");
  const std::vector<double> validation = Losses("validation.jsonl");
  ASSERT_EQ(validation.size(), 2u) << "before and after";
  EXPECT_NEAR(validation[0], LossOf(start_, rest), kTolerance);
  EXPECT_NEAR(validation[1], LossOf(saved, rest), kTolerance);
  EXPECT_LT(validation[1], validation[0]);

  for (const char* name : {"tokenizer.json", "tokenizer_config.json", "generation_config.json"}) {
    EXPECT_EQ(ReadFile(saved + "/" + name), ReadFile(start_ + "/" + name)) << name;
  }
  const auto config = nlohmann::json::parse(ReadFile(saved + "/config.json"));
  EXPECT_EQ(config["eos_token_id"], 256);
  EXPECT_EQ(config["bos_token_id"], 256);
  EXPECT_TRUE(config["pad_token_id"].is_null());
  EXPECT_EQ(config["dtype"], "float64");
  EXPECT_FALSE(fs::exists(saved + ".partial"));

  EXPECT_EQ(SamplesIn(result).size(), 4u) << "two prompts, before and after\n" << result.out;
}

TEST_F(FinetuneTest, EveryPluginHasTheLossesOfOneRank) {
  const ProgramResult one = Train("");
  ASSERT_EQ(one.exit_code, 0) << one.err;
  const std::vector<double> want = Losses("metrics.jsonl"), valid = Losses("validation.jsonl");
  const auto near = DoubleNear(kTolerance);
  const std::vector<Sample> all = Samples(), rest(all.begin() + kTrained, all.end());
  for (const std::string flags :
       {"--plugin single", "--plugin zero1", "--plugin zero2", "--plugin gemini", "--plugin hybrid",
        "--ranks 2", "--ranks 2 --plugin zero1", "--ranks 2 --plugin zero2",
        "--ranks 2 --plugin gemini", "--ranks 2 --plugin hybrid --tp-size 2",
        "--ranks 2 --plugin hybrid --plugin.pp_size=2 --plugin.num_microbatches=3",
        "--ranks 4 --plugin hybrid --tp-size 2 --plugin.pp_size=2 --plugin.num_microbatches=2"}) {
    const ProgramResult result = Train(flags, "other");
    ASSERT_EQ(result.exit_code, 0) << flags << result.err;
    EXPECT_THAT(Losses("metrics.jsonl", "other"), Pointwise(near, want)) << flags;
    EXPECT_THAT(Losses("validation.jsonl", "other"), Pointwise(near, valid)) << flags;
    EXPECT_NEAR(LossOf(Model(dir_ / "other"), rest), valid[1], kTolerance) << flags;
    EXPECT_EQ(SamplesIn(result), SamplesIn(one)) << flags;
  }
}

TEST_F(FinetuneTest, PackedSamplesDoNotSeeEachOther) {
  const std::vector<Sample> all = Samples(), rest(all.begin() + kTrained, all.end());
  for (const std::string flags : {"", "--ranks 2 --plugin hybrid --tp-size 2"}) {
    const ProgramResult result =
        Train("--pack --batch 2 --accumulate 1 --steps 2 --block 64 " + flags);
    ASSERT_EQ(result.exit_code, 0) << flags << result.err;
    const std::vector<double> validation = Losses("validation.jsonl");
    EXPECT_NEAR(validation.at(0), LossOf(start_, rest), kTolerance) << flags;
    EXPECT_NEAR(validation.at(1), LossOf(Model(dir_ / "out"), rest), kTolerance) << flags;
  }
}

TEST_F(FinetuneTest, ResumesAndSavesOnce) {
  ASSERT_EQ(Train("--save-every 2").exit_code, 0);
  const std::vector<double> want = Losses("validation.jsonl");
  const std::string saved = ReadFile(Model(dir_ / "out") + "/model.safetensors");
  // Done: nothing is left to do.
  const std::string again = " --model " + start_ + " --data " + data_ + " --out " + (dir_ / "out") +
                            kTraining + " --resume auto --save-every 2";
  ProgramResult result = RunProgram(APOGEE_FINETUNE, again, dir_);
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_TRUE(ReadFile(Model(dir_ / "out") + "/model.safetensors") == saved);
  // Ended after step 4, before the model was saved.
  fs::remove_all(Model(dir_ / "out"));
  fs::remove_all(dir_ / "out/checkpoints/step-00000005");
  result = RunProgram(APOGEE_FINETUNE, again, dir_);
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_TRUE(ReadFile(Model(dir_ / "out") + "/model.safetensors") == saved);
}

TEST_F(FinetuneTest, SavesTheMastersOfBf16) {
  const ProgramResult result = Train("--ranks 2 --plugin zero1 --precision bf16");
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const auto weights =
      ValueOrThrow(checkpoint::HfWeights::Open(checkpoint::RealFileSystem(), Model(dir_ / "out")));
  for (const auto& [name, place] : weights.tensors()) {
    EXPECT_EQ(place.entry->dtype, "F32") << name;
  }
  EXPECT_THAT(ReadFile(Model(dir_ / "out") + "/config.json"), HasSubstr("\"float32\""));
}

TEST_F(FinetuneTest, TrainsOnText) {
  std::string text;
  for (int i = 0; i < 60; ++i) text += "line " + std::to_string(i % 10) + " of the text\n";
  const ProgramResult result =
      TrainOn(dir_.Write("book.txt", text), "--steps 12 --prompt 'line 1 of'");
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const std::vector<double> losses = Losses("metrics.jsonl");
  ASSERT_EQ(losses.size(), 12u);
  EXPECT_LT(losses.back(), 0.7 * losses[0]);
  EXPECT_THAT(result.out, HasSubstr("line 1 of"));
  EXPECT_TRUE(fs::exists(Model(dir_ / "out") + "/model.safetensors"));
}

// The vocabulary of 320 has 63 ids without a token.
TEST_F(FinetuneTest, SamplesMayHaveIdsWithoutText) {
  const ProgramResult result = Train("--steps 1 --sample 200 --prompt 'a b' --end-of-text '!'");
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(SamplesIn(result).size(), 2u) << result.out;
}

TEST_F(FinetuneTest, EveryModelTypeHasASmallModel) {
  std::vector<std::string> types = driver::NewModelTypes();
  EXPECT_TRUE(std::ranges::is_sorted(types));
  for (const std::string& type : types) {
    const ProgramResult made =
        RunProgram(APOGEE_NEW_MODEL, "--model-type " + type + " --out " + (dir_ / type), dir_);
    ASSERT_EQ(made.exit_code, 0) << made.err;
    EXPECT_EQ(made.err, "") << type;
    EXPECT_NEAR(LossOf(dir_ / type, {{"a question", "an answer"}}), std::log(320.0), 0.6) << type;
  }
  types.insert(types.end(), {"bert", "vit"});  // they continue no texts
  EXPECT_THAT(types, ::testing::UnorderedElementsAreArray(nn::HfModelTypes()));

  const ProgramResult again = RunProgram(APOGEE_NEW_MODEL, "--out " + start_, dir_);
  EXPECT_EQ(again.exit_code, 1);
  EXPECT_THAT(again.err, HasSubstr("exists, and nothing is overwritten"));
  const ProgramResult typo =
      RunProgram(APOGEE_NEW_MODEL, "--model-type lama --out " + (dir_ / "x"), dir_);
  EXPECT_EQ(typo.exit_code, 1);
  EXPECT_THAT(typo.err, HasSubstr("unknown model type \"lama\" (did you mean \"llama\"?)"));
  EXPECT_EQ(RunProgram(APOGEE_NEW_MODEL, "", dir_).exit_code, 2);
}

TEST_F(FinetuneTest, SaysWhatIsWrongWithTheData) {
  const auto refused = [&](const std::string& text, const std::string& message) {
    data_ = dir_.Write("x.jsonl", text);
    ExpectRefused("", message);
  };
  refused("", "x.jsonl: is empty");
  refused(lines_ + "{\"prompt\": \"a\"}\n",
          "x.jsonl: line 21: has a \"prompt\" and no \"completion\"");
  refused("{\"question\": \"a\"}\n", "x.jsonl: line 1: has neither");
  refused(lines_ + "{\"prompt\": \"a\n", "x.jsonl: line 21: ");
  refused(JsonLine({std::string(40, 'a'), "b"}),
          "line 1: its prompt has 40 tokens, a sample has at most 32");
  refused(JsonLine({"a", "b"}), "has 1 sample; give at least 2");
  data_ = dir_ / "none.jsonl";
  ExpectRefused("", "none.jsonl");
}

TEST_F(FinetuneTest, SaysWhatIsWrongWithTheFolder) {
  ExpectRefused("--model " + (dir_ / "none"), "none does not exist; give the folder of a");
  ExpectRefused("--model " + (dir_ / "."), "has no config.json");
  ExpectRefused("--block 257", "--block 257 is longer than the 256 positions of " + start_);
  ExpectRefused("--model ''", "--model is needed", 2);

  const auto copy = [&](const std::string& name) {
    fs::copy(start_, dir_ / name);
    return "--model " + (dir_ / name);
  };
  const std::string no_tokenizer = copy("no_tokenizer");
  fs::remove(dir_ / "no_tokenizer/tokenizer.json");
  ExpectRefused(no_tokenizer, "has no tokenizer.json and no tokenizer.model");

  const std::string other = copy("other");
  fs::copy_file(std::string(APOGEE_GOLDEN) + "/tokenizers/gpt2/tokenizer.json",
                dir_ / "other/tokenizer.json", fs::copy_options::overwrite_existing);
  ExpectRefused(other, "has ids up to 520, but the model's vocabulary has 320");

  const std::string half = copy("half");
  const std::string weights = dir_ / "half/model.safetensors";
  fs::resize_file(weights, fs::file_size(weights) / 2);
  ExpectRefused(half, "half/model.safetensors");

  const std::string encoder = copy("encoder");
  dir_.Write("encoder/config.json",
             "{\"architectures\": [\"BertForMaskedLM\"], \"model_type\": \"bert\"}");
  ExpectRefused(encoder, "has a model of type bert, which does not continue texts");
}

TEST_F(FinetuneTest, AnAdapterUnderEveryLayout) {
  const std::string lora = "--lora-rank 3 --lora-alpha 5 ";
  for (const std::string kind : {"--quantize nf4 ", "--dora ", "--lora-dropout 0.1 "}) {
    ASSERT_EQ(Train(lora + kind, "one").exit_code, 0);
    const std::vector<double> want = Losses("metrics.jsonl", "one");
    ASSERT_EQ(want.size(), 5u);
    EXPECT_LT(want[4], want[0]);
    EXPECT_FALSE(fs::exists(Model(dir_ / "one")));
    for (const std::string layout :
         {"--ranks 2 --plugin gemini", "--ranks 2 --plugin hybrid --tp-size 2",
          "--ranks 4 --plugin hybrid --tp-size 2 --zero-stage 1"}) {
      const ProgramResult result = Train(lora + kind + layout, "more");
      ASSERT_EQ(result.exit_code, 0) << result.err;
      EXPECT_THAT(Losses("metrics.jsonl", "more"), Pointwise(DoubleNear(kTolerance), want))
          << kind << layout;
    }
  }
  // The folder goes on where it was.
  const ProgramResult next = Train("--lora-from " + (dir_ / "one/adapter"), "next");
  ASSERT_EQ(next.exit_code, 0) << next.err;
  EXPECT_NEAR(Losses("validation.jsonl", "next")[0], Losses("validation.jsonl", "one")[1],
              kTolerance);
  const ProgramResult in_codes =
      Train("--quantize int8 --lora-from " + (dir_ / "one/adapter"), "next");
  ASSERT_EQ(in_codes.exit_code, 0) << in_codes.err;
  ExpectRefused("--dora", "the options of an adapter need --lora-rank", 2);
  ExpectRefused("--quantize nf4", "a model in few bits is not trained itself", 2);
  ExpectRefused("--lora-rank 2 --quantize nf5", "must be none, nf4 or int8", 2);
  ExpectRefused("--lora-rank 2 --lora-from " + (dir_ / "one/adapter"),
                "the folder says the adapter's rank and options", 2);
}

TEST_F(FinetuneTest, OverwritesNothing) {
  fs::create_directories(Model(dir_ / "out"));
  const ProgramResult result = RunProgram(
      APOGEE_FINETUNE, "--model " + start_ + " --data " + data_ + " --out " + (dir_ / "out"), dir_);
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.err, HasSubstr("out/model exists, and nothing is overwritten"));
  EXPECT_FALSE(fs::exists(dir_ / "out/metrics.jsonl"));
}

// Runs a script that opens what 07_finetune saves with a library of Python's.
void ExpectOpensSaved([[maybe_unused]] const std::string& script,
                      [[maybe_unused]] const std::string& library) {
#ifdef APOGEE_BUILD_FOLDER
  const std::string command = "${PYTHON:-python3} " APOGEE_SCRIPTS "/" + script + " ";
  const int status = std::system((command + APOGEE_BUILD_FOLDER).c_str());
  ASSERT_TRUE(WIFEXITED(status));
  if (WEXITSTATUS(status) == 77) GTEST_SKIP() << "Python has no " << library;
  EXPECT_EQ(WEXITSTATUS(status), 0);
#else
  GTEST_SKIP() << "apogee evaluate is not built";
#endif
}

TEST(TransformersTest, OpensWhatWasSaved) {
  ExpectOpensSaved("check_transformers.py", "transformers");
}

TEST(PeftTest, OpensWhatWasSaved) { ExpectOpensSaved("check_peft.py", "peft"); }

}  // namespace finetune_test
}  // namespace apogee
