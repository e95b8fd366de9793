// SPDX-License-Identifier: Apache-2.0

// --lora-rank and its options: lets the user of a program train adapters in place of the model.
//
//   driver::LoraFlags lora;
//   lora.Declare(line);
//   ... lora.Settle(line); ...                     // while the flags are checked
//   lora.Enable(booster, model);                   // on every rank, before the optimizer is made
#ifndef APOGEE_DRIVER_MODEL_FOLDER_LORA_FLAGS_H_
#define APOGEE_DRIVER_MODEL_FOLDER_LORA_FLAGS_H_

#include <string>
#include <vector>

#include "apogee/booster/booster.h"
#include "apogee/driver/command_line.h"

namespace apogee::driver {

struct LoraFlags {
  int64_t rank = 0;  // 0: no adapter, unless `from` is given
  double alpha = 0;  // Settle replaces 0 by twice the rank
  double dropout = 0;
  std::vector<std::string> targets;  // empty: all linear layers but the output
  bool dora = false;
  std::string from;               // a folder of an adapter to go on with
  std::string quantize = "none";  // or "nf4", "int8": of the base

  void Declare(CommandLine& line);
  // Throws Error for options without an adapter, and for those of a new one with `from`.
  void Settle(const CommandLine& line);
  bool is_on() const { return rank > 0 || !from.empty(); }
  // DoRA reads the weights before boost.
  bool needs_values() const { return dora || !from.empty(); }
  // Does nothing unless is_on(). Throws Error for what the model or the folder does not fit.
  void Enable(Booster& booster, nn::Module& model) const;
};

}  // namespace apogee::driver

#endif  // APOGEE_DRIVER_MODEL_FOLDER_LORA_FLAGS_H_
