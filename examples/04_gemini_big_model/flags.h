// SPDX-License-Identifier: Apache-2.0

// The settings of 04_gemini_big_model and the command line that sets them.
#ifndef APOGEE_EXAMPLES_04_GEMINI_BIG_MODEL_FLAGS_H_
#define APOGEE_EXAMPLES_04_GEMINI_BIG_MODEL_FLAGS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "apogee/data/text_corpus.h"
#include "apogee/nn/models/gpt2.h"
#include "apogee/optim/options.h"
#include "apogee/plugins/gemini.h"

struct Flags {
  std::vector<std::string> data;  // empty: the King James Bible
  std::string map_svg;            // empty: no picture
  std::string trace;              // empty: none
  std::string device = "cpu";
  std::string comm = "auto";
  double timeout_seconds = 60;
  std::string flight_records;  // empty: none

  apogee::nn::Gpt2Config model = {.vocab_size = apogee::data::TextCorpus::kVocabSize,
                                  .n_positions = 128,
                                  .n_embd = 256,
                                  .n_layer = 8,
                                  .n_head = 8};

  int ranks = 2;
  apogee::TrainingOptions training = {.max_norm = 1.0, .bucket_bytes = 1 << 20};
  std::string precision = "auto";  // ParseFlags replaces auto and sets training.precision
  apogee::GeminiOptions gemini = {};
  std::string placement = "auto";  // becomes gemini.placement.placement_policy
  // The budget of each rank's device, as a percentage of the bytes that one rank needs for the
  // whole model's data.
  double budget_percent = 25;
  int threads = 0;  // 0: one per core
  int threads_per_rank = 1;

  int64_t steps = 60;
  int64_t batch = 8;  // of all ranks together
  std::string optimizer = "adamw";
  double lr = 1e-3;
  apogee::optim::OptionMap optimizer_options;  // lr included
  uint64_t seed = 1;
  int64_t log_every = 10;
};

// Reads the command line and checks it. Returns nothing if training may start; otherwise the exit
// code: 0 after --help, 2 after an error, with one sentence on stderr.
std::optional<int> ParseFlags(int argc, char** argv, Flags& flags);

#endif  // APOGEE_EXAMPLES_04_GEMINI_BIG_MODEL_FLAGS_H_
