// SPDX-License-Identifier: Apache-2.0

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "apogee/booster/booster.h"
#include "apogee/driver/command_line.h"
#include "apogee/driver/model_flags.h"
#include "apogee/driver/plugin_flags.h"
#include "apogee/driver/program.h"
#include "apogee/driver/run_flags.h"
#include "apogee/driver/text_run.h"
#include "apogee/nn/layers.h"
#include "apogee/nn/losses.h"
#include "apogee/plugins/ddp.h"
#include "apogee/tests/support/files/temp_dir.h"
#include "apogee/tests/support/heavy_ball.h"
#include "gmock/gmock.h"

namespace apogee {
namespace driver_flags_test {

using ::apogee::driver::CommandLine;
using ::apogee::driver::ModelFlags;
using ::apogee::driver::ModelSizes;
using ::apogee::driver::PluginFlags;
using ::apogee::driver::Rank;
using ::apogee::driver::RunFlags;
using ::apogee::driver::TextRun;
using ::apogee::testing::TempDir;
using ::testing::HasSubstr;

// The arguments of main.
class Words {
 public:
  explicit Words(std::vector<std::string> words) : words_(std::move(words)) {
    words_.insert(words_.begin(), "program");
    for (std::string& word : words_) pointers_.push_back(word.data());
    pointers_.push_back(nullptr);
  }
  int argc() const { return static_cast<int>(words_.size()); }
  char** argv() { return pointers_.data(); }

 private:
  std::vector<std::string> words_;
  std::vector<char*> pointers_;
};

struct Sizes {
  int64_t layers = 2;
  double rate = 0.5;
  uint64_t seed = 7;
  std::string name = "a";
  bool fast = false;
  Precision precision = Precision::kF32;
  optim::OptionMap options;
};

// What the program says on stderr about these words; empty: they are good.
std::string Complaint(const std::vector<std::string>& text, Sizes& sizes) {
  CommandLine line("program", "Does something.");
  line.AddCount("--layers", sizes.layers, "Layers");
  line.AddNumber("--rate", sizes.rate, "Rate", 0, 1);
  line.AddSeed("--seed", sizes.seed, "Seed");
  line.AddText("--name", sizes.name, "Name", [](const std::string& name) {
    return name == "bad" ? InvalidArgument("is bad") : absl::OkStatus();
  });
  line.AddSwitch("--fast", sizes.fast, "Fast");
  line.AddChoice("--precision", sizes.precision, ParsePrecision, "Precision");
  line.AddOptions("optim", sizes.options);
  Words words(text);
  ::testing::internal::CaptureStderr();
  const std::optional<int> stop = line.Parse(words.argc(), words.argv(), [&] {
    if (sizes.layers == 5) Throw("no five\n  layers");
  });
  const std::string complaint = ::testing::internal::GetCapturedStderr();
  EXPECT_EQ(stop.has_value(), !complaint.empty());
  EXPECT_EQ(stop.value_or(2), 2);
  return complaint;
}

TEST(CommandLineTest, ReadsEachKind) {
  Sizes sizes;
  EXPECT_EQ(Complaint({"--layers", "3", "--rate=0.25", "--seed", "18446744073709551615", "--name",
                       "b", "--fast", "--precision", "bf16", "--optim.lr=1e-3", "--layers", "4"},
                      sizes),
            "");
  EXPECT_EQ(sizes.layers, 4) << "the last one counts";
  EXPECT_EQ(sizes.rate, 0.25);
  EXPECT_EQ(sizes.seed, 18446744073709551615U);
  EXPECT_EQ(sizes.name, "b");
  EXPECT_TRUE(sizes.fast);
  EXPECT_EQ(sizes.precision, Precision::kBf16);
  EXPECT_EQ(sizes.options, (optim::OptionMap{{"lr", "1e-3"}}));
}

TEST(CommandLineTest, RefusesInOneSentence) {
  const std::vector<std::pair<std::vector<std::string>, std::string>> cases = {
      {{"--layers", "0"}, "--layers: needs a whole number from 1 to 1e9, got 0"},
      {{"--layers", "2.5"}, "--layers: needs a whole number from 1 to 1e9, got 2.5"},
      {{"--rate", "1"}, "--rate: needs a number from 0 to below 1, got 1"},
      {{"--rate", "nan"}, "--rate: needs a number from 0 to below 1, got nan"},
      {{"--seed", "-1"}, "--seed: needs a whole number from 0 to 18446744073709551615, got -1"},
      {{"--name", "bad"}, "is bad"},
      {{"--precision", "bf61"},
       "--precision: unknown precision \"bf61\" (did you mean \"bf16\"?); known: f32"},
      {{"--layer", "3"}, "unknown flag --layer (did you mean --layers?)"},
      {{"layers"}, "unexpected argument \"layers\""},
      {{"--optin.lr=1"}, "unknown flag --optin.lr"},
      {{"--optim.lr"}, "option \"lr\": expected key=value"},
      {{"--layers", "5"}, "program: no five; layers\n"},
  };
  for (const auto& [words, message] : cases) {
    Sizes sizes;
    const std::string complaint = Complaint(words, sizes);
    EXPECT_THAT(complaint, HasSubstr(message)) << words[0];
    EXPECT_EQ(std::count(complaint.begin(), complaint.end(), '\n'), 1) << complaint;
  }
}

// A plugin of the user's program: DdpPlugin, and a count of its uses.
class CountingPlugin : public DdpPlugin {
 public:
  CountingPlugin(comm::GroupPtr group, const TrainingOptions& training, int* uses)
      : DdpPlugin(std::move(group), training) {
    ++*uses;
  }
};

// A model of the user's program: the logits of a byte depend on that byte alone.
class Bigram : public nn::Module {
 public:
  explicit Bigram(int64_t vocab_size)
      : table_(Register("table", std::make_shared<nn::Embedding>(vocab_size, vocab_size))) {}
  Tensor Forward(const Tensor& tokens) override { return (*table_)(tokens); }

 private:
  std::shared_ptr<nn::Embedding> table_;
};

// A program with a model, an optimizer, a schedule and a plugin of its own, chosen by name on its
// command line. Returns its exit code.
int TrainOwn(const std::vector<std::string>& text, int* uses, std::vector<double>* rates) {
  RunFlags flags;
  PluginFlags plugin_flags;
  ModelFlags model_flags;
  model_flags.registry.Add("bigram", [](const ModelSizes& sizes) -> std::unique_ptr<nn::Module> {
    return std::make_unique<Bigram>(sizes.vocab_size);
  });
  flags.optimizers.Add<HeavyBall>("heavy_ball", HeavyBallOptions{});
  flags.schedules.Add(
      "halves",
      [](const optim::ConstantOptions&) {
        return optim::LrSchedule{.lr = [](optim::ScheduleTime time, double base_lr) {
          return base_lr * std::pow(0.5, time.step);
        }};
      },
      optim::ConstantOptions{});
  plugin_flags.registry.Add(
      "counting",
      [uses](const comm::World& world, const TrainingOptions& training,
             const optim::OptionMap&) -> absl::StatusOr<std::unique_ptr<Plugin>> {
        return std::make_unique<CountingPlugin>(world.group(), training, uses);
      },
      {});
  flags.block = 4;
  Words words(text);
  return driver::Run(
      words.argc(), words.argv(), flags,
      {.name = "program",
       .about = "Trains.",
       .declare =
           [&](CommandLine& line) {
             flags.Declare(line);
             plugin_flags.Declare(line);
             model_flags.Declare(line);
           },
       .settle =
           [&](const CommandLine& line) {
             plugin_flags.Settle(line, flags);
             model_flags.Settle(flags.block);
           },
       .train =
           [&](const Rank& rank) {
             const auto plugin = plugin_flags.Make(rank.world, flags);
             const auto model = model_flags.Make(256);
             model->Initialize(rank.world.context(), {.seed = flags.seed});
             EXPECT_EQ(model->num_parameters(), 256 * 256);
             const auto optimizer = flags.MakeOptimizer(model->Parameters());
             optim::LrScheduler scheduler(*optimizer, flags.MakeSchedule());
             Booster booster(*plugin);
             TextRun run(rank, flags, booster, *plugin, plugin_flags.Settings({}));
             Boosted boosted =
                 booster.boost(*model, *optimizer,
                               {.criterion = nn::CrossEntropyLoss(), .scheduler = &scheduler});
             if (!run.Start(boosted, scheduler, {model_flags.name, model->num_parameters()}))
               return 0;
             for (auto& samples : run.samples()) {
               const Tensor loss =
                   boosted.criterion(boosted.model(samples.inputs), samples.targets);
               booster.backward(loss, boosted.optimizer);
               run.BeforeStep(loss.Item());
               if (rank.world.rank() == 0) rates->push_back(scheduler.last_lr()[0]);
               boosted.optimizer.step();
               boosted.optimizer.zero_grad();
               scheduler.step();
               if (run.AfterStep()) return run.exit_code();
             }
             return 0;
           }});
}

TEST(RunFlagsTest, NamesOfTheProgramAreKnown) {
  const TempDir dir;
  const std::string text = dir.Write("text", std::string(400, 'x') + std::string(400, 'y'));
  int uses = 0;
  std::vector<double> rates;
  const std::vector<std::string> common = {"--data", text,   "--steps", "3",           "--batch",
                                           "4",      "--lr", "0.1",     "--precision", "f64"};
  std::vector<std::string> words = common;
  for (const char* word : {"--ranks", "2", "--plugin", "counting", "--optimizer", "heavy_ball",
                           "--optim.momentum=0.5", "--schedule", "halves", "--model", "bigram"}) {
    words.push_back(word);
  }
  EXPECT_EQ(TrainOwn(words, &uses, &rates), 0);
  EXPECT_EQ(uses, 5) << "one to check the flags, one per rank, one per rank of the plan";
  EXPECT_EQ(rates, (std::vector<double>{0.1, 0.05, 0.025}));

  words = common;
  words.insert(words.end(),
               {"--plugin", "zero1", "--plugin.stage=2", "--model", "bigram", "--heads", "5"});
  EXPECT_EQ(TrainOwn(words, &uses, &rates), 0)
      << "--zero-stage is not of this plugin, nor --heads of this model";

  const std::vector<std::pair<std::vector<std::string>, std::string>> wrong = {
      {{"--optimizer", "heavy_bal"}, "did you mean \"heavy_ball\"?"},
      {{"--plugin", "countin"}, "did you mean \"counting\"?"},
      {{"--model", "bigran"}, "did you mean \"bigram\"?"},
      {{"--model", "llama", "--heads", "5"}, "--dim must be a multiple of --heads, got 192 and 5"},
      {{"--model", "llama", "--dropout", "0.5"}, "llama, which has no dropout"},
      {{"--plugin", "hybrid", "--plugin.tp_size=2"}, "has a flag of its own: use --tp-size"},
      {{"--plugin", "hybrid", "--plugin.stage=3"}, "has a flag of its own: use --zero-stage"},
  };
  for (const auto& [more, message] : wrong) {
    words = common;
    words.insert(words.end(), more.begin(), more.end());
    ::testing::internal::CaptureStderr();
    EXPECT_EQ(TrainOwn(words, &uses, &rates), 2);
    EXPECT_THAT(::testing::internal::GetCapturedStderr(), HasSubstr(message));
  }
}

}  // namespace driver_flags_test
}  // namespace apogee
