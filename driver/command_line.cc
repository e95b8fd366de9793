// SPDX-License-Identifier: Apache-2.0

#include "apogee/driver/command_line.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <cstdio>
#include <limits>
#include <utility>

#include "apogee/core/status.h"
#include "apogee/core/text/text.h"

namespace apogee::driver {
namespace {

constexpr int kUsageError = 2;

void RefuseUnknown(const CLI::App& app, const std::string& word) {
  if (!word.starts_with("-")) Throw("unexpected argument \"", word, "\"; --help lists the flags");
  std::vector<std::string> known;
  for (const CLI::Option* option : app.get_options()) known.push_back(option->get_name());
  const std::string name = word.substr(0, word.find('='));
  const std::string nearest = NearestName(name, known);
  Throw("unknown flag ", name, nearest.empty() ? "" : " (did you mean " + nearest + "?)",
        "; --help lists the flags");
}

// The library lists problems on separate lines; joins them into one sentence.
std::string OneLine(std::string text) {
  for (size_t at = 0; (at = text.find('\n', at)) != std::string::npos;) {
    const size_t end = std::min(text.find_first_not_of(" \n", at), text.size());
    text.replace(at, end - at, at > 0 && text[at - 1] == ':' ? " " : "; ");
  }
  return text;
}

std::string CheckCount(const std::string& text, int64_t low) {
  int64_t value = 0;
  if (CLI::detail::lexical_cast(text, value) && value >= low && value <= 1'000'000'000) return "";
  return "needs a whole number from " + std::to_string(low) + " to 1e9, got " + text;
}

// A value of unsigned type would wrap around otherwise.
std::string CheckSeed(const std::string& text) {
  uint64_t value = 0;
  const char* end = text.data() + text.size();
  const auto [reached, error] = std::from_chars(text.data(), end, value);
  if (error == std::errc() && reached == end) return "";
  return "needs a whole number from 0 to " + std::to_string(std::numeric_limits<uint64_t>::max()) +
         ", got " + text;
}

// Moves "--<prefix>.key=value" words from `words` into `options`.
void TakeOptions(const std::string& prefix, std::vector<std::string>& words,
                 optim::OptionMap& options) {
  std::vector<std::string> pairs;
  const std::string start = "--" + prefix + ".";
  std::erase_if(words, [&](const std::string& word) {
    if (!word.starts_with(start)) return false;
    pairs.push_back(word.substr(start.size()));
    return true;
  });
  options = ValueOrThrow(optim::ParseOptions(pairs));
}

}  // namespace

struct CommandLine::Parser {
  explicit Parser(const std::string& name, const std::string& about) : app(about, name) {
    app.option_defaults()->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
    app.set_help_flag("-h,--help", "Print this and stop");
    app.allow_extras();
  }
  template <typename Value>
  CLI::Option* Add(const std::string& flag, Value& value, const std::string& help) {
    CLI::Option* option = app.add_option(flag, value, help)->capture_default_str();
    return group.empty() ? option : option->group(group);
  }

  CLI::App app;
  std::string group;
  std::vector<std::pair<std::string, optim::OptionMap*>> options;
};

CommandLine::CommandLine(const std::string& name, const std::string& about)
    : name_(name), parser_(std::make_unique<Parser>(name, about)) {}

CommandLine::~CommandLine() = default;

void CommandLine::Group(const std::string& heading) { parser_->group = heading; }

void CommandLine::Footer(const std::string& text) { parser_->app.footer(text); }

void CommandLine::AddText(const std::string& flag, std::string& value, const std::string& help,
                          std::function<absl::Status(const std::string&)> check) {
  CLI::Option* option = parser_->Add(flag, value, help);
  if (check) {
    option->check(
        [check = std::move(check)](const std::string& text) { return Message(check(text)); });
  }
}

void CommandLine::AddParsed(const std::string& flag, const std::string& shown,
                            const std::string& help,
                            std::function<absl::Status(const std::string&)> read) {
  CLI::Option* option = parser_->app.add_option_function<std::string>(
      flag,
      [flag, read = std::move(read)](const std::string& text) {
        const absl::Status status = read(text);
        if (!status.ok()) throw CLI::ValidationError(flag, Message(status));
      },
      help);
  option->default_str(shown);
  if (!parser_->group.empty()) option->group(parser_->group);
}

void CommandLine::AddTexts(const std::string& flag, std::vector<std::string>& values,
                           const std::string& help) {
  parser_->Add(flag, values, help)->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
}

void CommandLine::AddSwitch(const std::string& flag, bool& value, const std::string& help) {
  CLI::Option* option = parser_->app.add_flag(flag, value, help);
  if (!parser_->group.empty()) option->group(parser_->group);
}

void CommandLine::AddCount(const std::string& flag, int64_t& value, const std::string& help,
                           int64_t low) {
  parser_->Add(flag, value, help)->check([low](const std::string& text) {
    return CheckCount(text, low);
  });
}

void CommandLine::AddCount(const std::string& flag, int& value, const std::string& help,
                           int64_t low) {
  parser_->Add(flag, value, help)->check([low](const std::string& text) {
    return CheckCount(text, low);
  });
}

void CommandLine::AddSeed(const std::string& flag, uint64_t& value, const std::string& help) {
  parser_->Add(flag, value, help)->check(CheckSeed);
}

void CommandLine::AddNumber(const std::string& flag, double& value, const std::string& help,
                            double low, double high) {
  parser_->Add(flag, value, help)->check([low, high](const std::string& text) {
    double number = 0;
    if (CLI::detail::lexical_cast(text, number) && number >= low && number < high) {
      return std::string();
    }
    return internal::Concat("needs a number from ", low, " to below ", high, ", got ", text);
  });
}

void CommandLine::AddOptions(const std::string& prefix, optim::OptionMap& options) {
  parser_->options.emplace_back(prefix, &options);
}

void CommandLine::HideDefault(const std::string& flag) {
  parser_->app.get_option(flag)->default_str("");
}

std::optional<int> CommandLine::Parse(int argc, char** argv, const std::function<void()>& settle) {
  CLI::App& app = parser_->app;
  try {
    app.parse(argc, argv);
    std::vector<std::string> words = app.remaining();
    // Before checking flags together: a misspelt flag may be the cause of such an error.
    for (const std::string& word : words) {
      if (!word.starts_with("--") || word.find('.') == std::string::npos) RefuseUnknown(app, word);
    }
    for (const auto& [prefix, options] : parser_->options) TakeOptions(prefix, words, *options);
    settle();
    if (!words.empty()) RefuseUnknown(app, words.front());
  } catch (const CLI::CallForHelp&) {
    std::fputs(app.help().c_str(), stdout);
    return 0;
  } catch (const CLI::ParseError& error) {
    std::fprintf(stderr, "%s: %s; --help lists the flags\n", name_.c_str(), error.what());
    return kUsageError;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s: %s\n", name_.c_str(), OneLine(error.what()).c_str());
    return kUsageError;
  }
  return std::nullopt;
}

bool CommandLine::given(const std::string& flag) const { return parser_->app.count(flag) > 0; }

}  // namespace apogee::driver
