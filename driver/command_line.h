// SPDX-License-Identifier: Apache-2.0

// Flags of a training program, with checks and messages of one sentence.
//
//   driver::CommandLine line("my_program", "Trains a model.");
//   line.Group("Model");
//   line.AddCount("--layers", config.n_layer, "Transformer blocks");
//   const std::optional<int> stop = line.Parse(argc, argv, [&] { ... check flags together ... });
//   if (stop) return *stop;
//
// The value that a variable has when its flag is added is the default, and --help shows it. If a
// flag is given several times the last one counts, so scripts can append to a line of defaults.
#ifndef APOGEE_DRIVER_COMMAND_LINE_H_
#define APOGEE_DRIVER_COMMAND_LINE_H_

#include <cmath>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "apogee/core/status.h"
#include "apogee/optim/options.h"

namespace apogee::driver {

// The variables must outlive the CommandLine.
class CommandLine {
 public:
  CommandLine(const std::string& name, const std::string& about);
  ~CommandLine();

  // --help lists the flags that follow under this heading.
  void Group(const std::string& heading);
  // The text below the flags in --help.
  void Footer(const std::string& text);

  // `check` returns an error for a wrong text.
  void AddText(const std::string& flag, std::string& value, const std::string& help,
               std::function<absl::Status(const std::string&)> check = nullptr);
  // A value of an enumeration. `parse` reads a text (absl::StatusOr<Enum>), Name(value) is it.
  template <typename Enum, typename Parse>
  void AddChoice(const std::string& flag, Enum& value, Parse parse, const std::string& help) {
    AddParsed(flag, Name(value), help, [&value, parse](const std::string& text) {
      APOGEE_ASSIGN_OR_RETURN(value, parse(text));
      return absl::OkStatus();
    });
  }
  // May be given several times, and takes several words.
  void AddTexts(const std::string& flag, std::vector<std::string>& values, const std::string& help);
  // A flag without a value.
  void AddSwitch(const std::string& flag, bool& value, const std::string& help);
  // A whole number from `low` to 1e9.
  void AddCount(const std::string& flag, int64_t& value, const std::string& help, int64_t low = 1);
  void AddCount(const std::string& flag, int& value, const std::string& help, int64_t low = 1);
  // A whole number from 0 to 2^64 - 1.
  void AddSeed(const std::string& flag, uint64_t& value, const std::string& help);
  // A number in [low, high).
  void AddNumber(const std::string& flag, double& value, const std::string& help, double low = 0,
                 double high = HUGE_VAL);
  // Words of the form --<prefix>.key=value.
  void AddOptions(const std::string& prefix, optim::OptionMap& options);
  // --help does not show the default of this flag, because the help text says it.
  void HideDefault(const std::string& flag);

  // Parses the words, then calls `settle`, which may throw Error. Returns nothing if the program
  // may continue; otherwise its exit code: 0 after --help, 2 after an error, with one sentence on
  // stderr.
  std::optional<int> Parse(int argc, char** argv, const std::function<void()>& settle);

  // Whether the command line has the flag. Valid after parsing, so in `settle`.
  bool given(const std::string& flag) const;
  const std::string& name() const { return name_; }

 private:
  struct Parser;
  void AddParsed(const std::string& flag, const std::string& shown, const std::string& help,
                 std::function<absl::Status(const std::string&)> read);

  std::string name_;
  std::unique_ptr<Parser> parser_;
};

}  // namespace apogee::driver

#endif  // APOGEE_DRIVER_COMMAND_LINE_H_
