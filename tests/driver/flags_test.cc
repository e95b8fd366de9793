// SPDX-License-Identifier: Apache-2.0

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "apogee/booster/booster.h"
#include "apogee/driver/command_line.h"
#include "apogee/driver/plugin_flags.h"
#include "apogee/driver/program.h"
#include "apogee/driver/run_flags.h"
#include "apogee/driver/text_run.h"
#include "apogee/nn/losses.h"
#include "apogee/nn/models/gpt2.h"
#include "apogee/plugins/ddp.h"
#include "apogee/tests/support/files/temp_dir.h"
#include "apogee/tests/support/heavy_ball.h"
#include "gmock/gmock.h"

namespace apogee {
namespace driver_flags_test {

using ::apogee::driver::CommandLine;
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
  optim::OptionMap options;
};

// What the program says on stderr about these words; empty: they are good.
std::string Complaint(const std::vector<std::string>& text, Sizes& sizes) {
  CommandLine line("program", "Does something.");
  line.AddCount("--layers", sizes.layers, "Layers");
  line.AddNumber("--rate", sizes.rate, "Rate", 0, 1);
  line.AddSeed("--seed", sizes.seed, "Seed");
  line.AddText("--name", sizes.name, "Name", [](const std::string& name) {
    return name == "bad" ? std::string("is bad") : std::string();
  });
  line.AddSwitch("--fast", sizes.fast, "Fast");
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
                       "b", "--fast", "--optim.lr=1e-3", "--layers", "4"},
                      sizes),
            "");
  EXPECT_EQ(sizes.layers, 4) << "the last one counts";
  EXPECT_EQ(sizes.rate, 0.25);
  EXPECT_EQ(sizes.seed, 18446744073709551615U);
  EXPECT_EQ(sizes.name, "b");
  EXPECT_TRUE(sizes.fast);
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

// A program with an optimizer, a schedule and a plugin of its own, chosen by name on its command
// line. Returns its exit code.
int TrainOwn(const std::vector<std::string>& text, int* uses, std::vector<double>* rates) {
  RunFlags flags;
  PluginFlags plugin_flags;
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
  return driver::Run(words.argc(), words.argv(), flags,
                     {.name = "program",
                      .about = "Trains.",
                      .declare =
                          [&](CommandLine& line) {
                            flags.Declare(line);
                            plugin_flags.Declare(line);
                          },
                      .settle = [&](const CommandLine& line) { plugin_flags.Settle(line, flags); },
                      .train =
                          [&](const Rank& rank) {
                            const auto plugin = plugin_flags.Make(rank.world, flags);
                            nn::Gpt2 model({.vocab_size = 256,
                                            .n_positions = flags.block,
                                            .n_embd = 4,
                                            .n_layer = 1,
                                            .n_head = 1});
                            model.Initialize(rank.world.context(), {.seed = flags.seed});
                            const auto optimizer = flags.MakeOptimizer(model.Parameters());
                            optim::LrScheduler scheduler(*optimizer, flags.MakeSchedule());
                            Booster booster(*plugin);
                            TextRun run(rank, flags, booster, *plugin, plugin_flags.Settings({}));
                            Boosted boosted = booster.boost(
                                model, *optimizer,
                                {.criterion = nn::CrossEntropyLoss(), .scheduler = &scheduler});
                            if (!run.Start(boosted, scheduler, {"GPT-2", model.num_parameters()}))
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
                           "--optim.momentum=0.5", "--schedule", "halves"}) {
    words.push_back(word);
  }
  EXPECT_EQ(TrainOwn(words, &uses, &rates), 0);
  EXPECT_EQ(uses, 3) << "one to check the flags, one per rank";
  EXPECT_EQ(rates, (std::vector<double>{0.1, 0.05, 0.025}));

  words = common;
  words.insert(words.end(), {"--optimizer", "heavy_bal"});
  ::testing::internal::CaptureStderr();
  EXPECT_EQ(TrainOwn(words, &uses, &rates), 2);
  EXPECT_THAT(::testing::internal::GetCapturedStderr(), HasSubstr("did you mean \"heavy_ball\"?"));
  words = common;
  words.insert(words.end(), {"--plugin", "countin"});
  ::testing::internal::CaptureStderr();
  EXPECT_EQ(TrainOwn(words, &uses, &rates), 2);
  EXPECT_THAT(::testing::internal::GetCapturedStderr(), HasSubstr("did you mean \"counting\"?"));
}

}  // namespace driver_flags_test
}  // namespace apogee
