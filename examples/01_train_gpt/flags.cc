#include "flags.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "apogee/core/text.h"
#include "apogee/optim/lr_schedule_registry.h"
#include "apogee/optim/registry.h"
#include "apogee/plugins/ddp.h"
#include "apogee/plugins/low_level_zero.h"
#include "apogee/plugins/single_rank.h"
#include "apogee/tensor/cpu/cpu_context.h"

namespace {

using apogee::Message;
using apogee::Throw;
using apogee::ValueOrThrow;

constexpr int kUsageError = 2;

// A count on the command line: a whole number in [low, 1e9].
CLI::Validator Count(int64_t low) {
  return CLI::Validator(
      [low](const std::string& text) {
        int64_t value = 0;
        if (CLI::detail::lexical_cast(text, value) && value >= low && value <= 1'000'000'000) {
          return std::string();
        }
        return "needs a whole number from " + std::to_string(low) + " to 1e9, got " + text;
      },
      "");
}

CLI::Validator Between(double low, double high) {
  return CLI::Validator(
      [low, high](const std::string& text) {
        double value = 0;
        if (CLI::detail::lexical_cast(text, value) && value >= low && value < high)
          return std::string();
        return apogee::internal::Concat("needs a number from ", low, " to below ", high, ", got ",
                                        text);
      },
      "");
}

std::string Join(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : ", ") + name;
  return text;
}

void DeclareFlags(CLI::App& app, Flags& f) {
  const CLI::Validator count = Count(1);
  // Scripts append flags to a line of defaults: the last one counts. Paths of --data add up.
  app.option_defaults()->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
  app.set_help_flag("-h,--help", "Print this and stop");
  app.add_option("--data", f.data,
                 "Text files or directories; default: the King James Bible (Debian's bible-kjv)")
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  app.add_option("--out", f.out,
                 "Directory for metrics.jsonl, train.log and TensorBoard; default: none");

  const auto model = [&](const std::string& name, auto& value, const std::string& help) {
    return app.add_option(name, value, help)->group("Model")->capture_default_str();
  };
  model("--layers", f.model.n_layer, "Transformer blocks")->check(count);
  model("--heads", f.model.n_head, "Attention heads")->check(count);
  model("--dim", f.model.n_embd, "Width; a multiple of --heads")->check(count);
  model("--block", f.model.n_positions, "Bytes of context")->check(count);
  model("--dropout", f.model.dropout, "In [0, 1)")->check(Between(0, 1));

  const auto train = [&](const std::string& name, auto& value, const std::string& help) {
    return app.add_option(name, value, help)->group("Training")->capture_default_str();
  };
  train("--steps", f.steps, "Optimizer steps")->check(count);
  train("--batch", f.batch, "Samples per micro-batch, of all ranks together")->check(count);
  train("--accumulate", f.accumulate, "Micro-batches per step")->check(count);
  train("--precision", f.precision,
        "f32, bf16 or fp16 (with f32 masters; fp16 needs --plugin ddp), or f64");
  train("--optimizer", f.optimizer, Join(apogee::optim::OptimizerNames()));
  train("--lr", f.lr, "Learning rate, the highest of the schedule")->check(Between(0, HUGE_VAL));
  train("--schedule", f.schedule, Join(apogee::optim::LrScheduleNames()));
  train("--warmup", f.warmup, "Steps of warm-up; default: a tenth of --steps")->default_str("");
  train("--max-norm", f.max_norm, "Clip the gradients' global norm to this; 0: off")
      ->check(Between(0, HUGE_VAL));
  train("--seed", f.seed, "Of the weights, the order of the data, dropout and the sample");

  const auto ranks = [&](const std::string& name, auto& value, const std::string& help) {
    return app.add_option(name, value, help)->group("Ranks")->capture_default_str();
  };
  ranks("--ranks", f.ranks, "Ranks, threads of this process; --batch must divide among them")
      ->check(count);
  ranks(
      "--plugin", f.plugin,
      "single (one rank), ddp (gradients averaged over the ranks), zero1 (optimizer states sharded "
      "over them) or zero2 (gradients, too); default: single for one rank, else ddp")
      ->default_str("");
  app.add_flag("--reproducible", f.reproducible,
               "The same losses, bit for bit, for any --ranks; see README.md; implies --plugin ddp")
      ->group("Ranks");
  ranks("--threads", f.threads, "CPU threads, shared out over the ranks; default: one per core")
      ->default_str("");

  const auto report = [&](const std::string& name, auto& value, const std::string& help) {
    return app.add_option(name, value, help)->group("Report")->capture_default_str();
  };
  report("--log-every", f.log_every, "Steps between two lasting lines")->check(count);
  report("--prompt", f.prompt, "What the sample continues");
  report("--sample", f.sample, "Bytes to generate at the end")->check(Count(0));
  report("--temperature", f.temperature, "Of the sample; lower is safer")
      ->check(Between(0.01, 100));
  app.footer(
      "Options of an optimizer or schedule: --optim.KEY=VALUE, --sched.KEY=VALUE, for instance\n"
      "--optim.betas=0.9,0.95 --optim.weight_decay=0.1 --sched.eta_min=1e-4\n"
      "Exit code: 0 trained, 1 the run failed (data, loss, disk), 2 wrong usage.");
}

// Moves "--<prefix>.key=value" words from `words` into `options`.
void TakeOptions(const std::string& prefix, std::vector<std::string>& words,
                 apogee::optim::OptionMap& options) {
  std::vector<std::string> pairs;
  const std::string start = "--" + prefix + ".";
  std::erase_if(words, [&](const std::string& word) {
    if (!word.starts_with(start)) return false;
    pairs.push_back(word.substr(start.size()));
    return true;
  });
  options = ValueOrThrow(apogee::optim::ParseOptions(pairs));
}

void RefuseUnknown(const CLI::App& app, const std::string& word) {
  if (!word.starts_with("-")) Throw("unexpected argument \"", word, "\"; --help lists the flags");
  std::vector<std::string> known;
  for (const CLI::Option* option : app.get_options()) known.push_back(option->get_name());
  const std::string name = word.substr(0, word.find('='));
  const std::string nearest = apogee::NearestName(name, known);
  Throw("unknown flag ", name, nearest.empty() ? "" : " (did you mean " + nearest + "?)",
        "; --help lists the flags");
}

// What --lr, --steps and --warmup say goes into the options that the optimizer and the schedule
// take.
void FillOptions(const CLI::App& app, Flags& flags) {
  flags.optimizer_options.try_emplace("lr", apogee::optim::FormatOption(flags.lr));
  const auto known = ValueOrThrow(apogee::optim::LrScheduleDefaults(flags.schedule));
  if (known.contains("total_steps")) {
    flags.schedule_options.try_emplace("total_steps", std::to_string(flags.steps));
  }
  if (app.count("--warmup") > 0) {
    if (!known.contains("warmup_steps")) {
      Throw("--warmup: the schedule ", flags.schedule, " has no warm-up; leave the flag out");
    }
    flags.schedule_options["warmup_steps"] = std::to_string(flags.warmup);
  } else if (known.contains("warmup_steps")) {
    flags.schedule_options.try_emplace("warmup_steps", std::to_string(flags.steps / 10));
  }
}

// "8 or 12", the multiples of `step` next to `value`.
std::string NearestMultiples(int64_t value, int64_t step) {
  const int64_t below = value / step * step;
  return (below > 0 ? std::to_string(below) + " or " : "") + std::to_string(below + step);
}

// Who runs the loop: fills in the defaults that depend on each other.
void SettleRanks(Flags& flags) {
  if (flags.plugin.empty()) {
    flags.plugin = flags.ranks > 1 || flags.reproducible ? "ddp" : "single";
  }
  const std::vector<std::string> plugins = {"ddp", "single", "zero1", "zero2"};
  if (std::ranges::find(plugins, flags.plugin) == plugins.end()) {
    Throw("--plugin: ", apogee::UnknownName("plugin", flags.plugin, plugins));
  }
  if (flags.reproducible && flags.plugin != "ddp") {
    Throw("--reproducible has no effect with --plugin ", flags.plugin, "; use --plugin ddp");
  }
  if (flags.plugin == "single") {
    if (flags.ranks > 1) {
      Throw("--plugin single runs one rank, got --ranks ", flags.ranks, "; use --plugin ddp");
    }
    if (flags.precision == "fp16") {
      Throw("--precision fp16 needs a loss scale, which --plugin ddp has; add that flag");
    }
  }
  if (flags.reproducible && flags.model.dropout > 0) {
    Throw("--reproducible needs --dropout 0, got ", flags.model.dropout,
          ": which mask a sample gets depends on the number of ranks and micro-batches");
  }
  if (flags.batch % flags.ranks != 0) {
    Throw("--batch ", flags.batch, " does not divide among --ranks ", flags.ranks, "; use --batch ",
          NearestMultiples(flags.batch, flags.ranks));
  }
  if (flags.threads == 0) flags.threads = static_cast<int>(std::thread::hardware_concurrency());
  if (flags.threads < 1) Throw("--threads must be at least 1, got ", flags.threads);
  flags.threads_per_rank = std::max(1, flags.threads / flags.ranks);
}

// Makes a small one of everything: each says best what it does not take.
void CheckSettings(const Flags& flags) {
  MakePlugin(flags, nullptr);
  ValueOrThrow(apogee::optim::MakeLrSchedule(flags.schedule, flags.schedule_options));
  const auto weight = std::make_shared<apogee::autograd::Parameter>(
      "weight", apogee::Tensor::Zeros({1}, apogee::DType::kF32, apogee::CpuContext()));
  ValueOrThrow(apogee::optim::MakeOptimizer(flags.optimizer, {weight}, flags.optimizer_options));
  if (flags.model.n_embd % flags.model.n_head != 0) {
    Throw("--dim must be a multiple of --heads, got ", flags.model.n_embd, " and ",
          flags.model.n_head);
  }
  if (flags.prompt.empty()) Throw("--prompt must not be empty: the sample continues it");
}

// The library lists problems on lines of their own; here they make one sentence.
std::string OneLine(std::string text) {
  for (size_t at = 0; (at = text.find('\n', at)) != std::string::npos;) {
    const size_t end = std::min(text.find_first_not_of(" \n", at), text.size());
    text.replace(at, end - at, " ");
  }
  return text;
}

}  // namespace

std::unique_ptr<apogee::Plugin> MakePlugin(const Flags& flags, apogee::comm::GroupPtr group) {
  if (flags.plugin == "ddp") {
    return std::make_unique<apogee::DdpPlugin>(
        std::move(group), apogee::DdpOptions{.precision = flags.precision,
                                             .max_norm = flags.max_norm,
                                             .reproducible = flags.reproducible});
  }
  if (flags.plugin == "zero1" || flags.plugin == "zero2") {
    return std::make_unique<apogee::LowLevelZeroPlugin>(
        std::move(group), apogee::LowLevelZeroOptions{.stage = flags.plugin == "zero1" ? 1 : 2,
                                                      .precision = flags.precision,
                                                      .max_norm = flags.max_norm});
  }
  return std::make_unique<apogee::SingleRankPlugin>(
      apogee::SingleRankOptions{.precision = flags.precision, .max_norm = flags.max_norm});
}

std::optional<int> ParseFlags(int argc, char** argv, Flags& flags) {
  CLI::App app("Trains a GPT on text, byte by byte, and lets it write some.", "01_train_gpt");
  DeclareFlags(app, flags);
  app.allow_extras();
  try {
    app.parse(argc, argv);
    std::vector<std::string> words = app.remaining();
    TakeOptions("optim", words, flags.optimizer_options);
    TakeOptions("sched", words, flags.schedule_options);
    if (!words.empty()) RefuseUnknown(app, words.front());
    SettleRanks(flags);
    FillOptions(app, flags);
    CheckSettings(flags);
  } catch (const CLI::CallForHelp&) {
    std::fputs(app.help().c_str(), stdout);
    return 0;
  } catch (const CLI::ParseError& error) {
    std::fprintf(stderr, "01_train_gpt: %s; --help lists the flags\n", error.what());
    return kUsageError;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "01_train_gpt: %s\n", OneLine(error.what()).c_str());
    return kUsageError;
  }
  return std::nullopt;
}
