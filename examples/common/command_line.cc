// SPDX-License-Identifier: Apache-2.0

#include "apogee/examples/common/command_line.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <cstdio>
#include <limits>

#include "apogee/comm/launch.h"
#include "apogee/core/process/thread_team.h"
#include "apogee/core/status.h"
#include "apogee/core/text/text.h"

using apogee::Throw;
using apogee::ValueOrThrow;

namespace {

constexpr int kUsageError = 2;

void RefuseUnknown(const CLI::App& app, const std::string& word) {
  if (!word.starts_with("-")) Throw("unexpected argument \"", word, "\"; --help lists the flags");
  std::vector<std::string> known;
  for (const CLI::Option* option : app.get_options()) known.push_back(option->get_name());
  const std::string name = word.substr(0, word.find('='));
  const std::string nearest = apogee::NearestName(name, known);
  Throw("unknown flag ", name, nearest.empty() ? "" : " (did you mean " + nearest + "?)",
        "; --help lists the flags");
}

// "8 or 12": the multiples of `step` next to `value`.
std::string NearestMultiples(int64_t value, int64_t step) {
  const int64_t below = value / step * step;
  return (below > 0 ? std::to_string(below) + " or " : "") + std::to_string(below + step);
}

// The library lists problems on separate lines; joins them into one sentence.
std::string OneLine(std::string text) {
  for (size_t at = 0; (at = text.find('\n', at)) != std::string::npos;) {
    const size_t end = std::min(text.find_first_not_of(" \n", at), text.size());
    text.replace(at, end - at, at > 0 && text[at - 1] == ':' ? " " : "; ");
  }
  return text;
}

bool MultipliesBf16() {
#if defined(__x86_64__) && (defined(__GNUC__) || defined(__clang__))
  return __builtin_cpu_supports("avx512bf16") != 0;
#else
  return false;
#endif
}

}  // namespace

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

CLI::Validator Unsigned() {
  return CLI::Validator(
      [](const std::string& text) {
        uint64_t value = 0;
        const char* end = text.data() + text.size();
        const auto [reached, error] = std::from_chars(text.data(), end, value);
        if (error == std::errc() && reached == end) return std::string();
        return "needs a whole number from 0 to " +
               std::to_string(std::numeric_limits<uint64_t>::max()) + ", got " + text;
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

void PrepareApp(CLI::App& app) {
  app.option_defaults()->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
  app.set_help_flag("-h,--help", "Print this and stop");
  app.allow_extras();
}

std::optional<int> ParseCommandLine(CLI::App& app, int argc, char** argv,
                                    const std::function<void(std::vector<std::string>&)>& settle) {
  const std::string name = app.get_name();
  try {
    app.parse(argc, argv);
    std::vector<std::string> words = app.remaining();
    // Before checking flags together: a misspelt flag may be the cause of such an error.
    for (const std::string& word : words) {
      if (!word.starts_with("--") || word.find('.') == std::string::npos) RefuseUnknown(app, word);
    }
    settle(words);
    if (!words.empty()) RefuseUnknown(app, words.front());
  } catch (const CLI::CallForHelp&) {
    std::fputs(app.help().c_str(), stdout);
    return 0;
  } catch (const CLI::ParseError& error) {
    std::fprintf(stderr, "%s: %s; --help lists the flags\n", name.c_str(), error.what());
    return kUsageError;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s: %s\n", name.c_str(), OneLine(error.what()).c_str());
    return kUsageError;
  }
  return std::nullopt;
}

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

std::string SettlePrecision(const std::string& precision) {
  if (precision != "auto") return precision;
  return MultipliesBf16() ? "bf16" : "f32";
}

void CheckBatch(int64_t batch, int64_t parts, const std::string& reason) {
  if (batch % parts == 0) return;
  Throw("--batch ", batch, " does not divide among ", reason, "; use --batch ",
        NearestMultiples(batch, parts));
}

int DefaultRanks(int otherwise) {
  const auto processes = apogee::comm::StartedProcesses();
  // An error here is reported by launch.
  return processes.ok() && processes->size > 1 ? processes->size : otherwise;
}

int ThreadsPerRank(int threads, int ranks) {
  if (threads == 0) return apogee::ShareOfCores(ranks);
  if (threads < 1) Throw("--threads must be at least 1, got ", threads);
  const int each = std::max(1, threads / ranks);
  const absl::Status status = apogee::CheckNumThreads(each);
  if (!status.ok()) Throw("--threads ", threads, ": ", apogee::Message(status));
  return each;
}
