// SPDX-License-Identifier: Apache-2.0

// The settings of 05_train_3d and the command line that sets them.
#ifndef APOGEE_EXAMPLES_05_TRAIN_3D_FLAGS_H_
#define APOGEE_EXAMPLES_05_TRAIN_3D_FLAGS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "apogee/data/text_corpus.h"
#include "apogee/nn/models/llama.h"
#include "apogee/optim/options.h"
#include "apogee/plugins/hybrid_parallel.h"

struct Flags {
  std::vector<std::string> data;  // empty: the King James Bible
  std::string out;                // empty: no files

  apogee::nn::LlamaConfig model = {.vocab_size = apogee::data::TextCorpus::kVocabSize,
                                   .hidden_size = 128,
                                   .intermediate_size = 344,
                                   .num_hidden_layers = 6,
                                   .num_attention_heads = 4,
                                   .num_key_value_heads = 2,
                                   .max_position_embeddings = 64};

  int ranks = 8;
  apogee::TrainingOptions training = {};
  std::string precision = "f32";  // ParseFlags replaces auto and sets training.precision
  apogee::HybridParallelOptions parallel = {.tp_size = 2, .pp_size = 2, .stage = 1};
  std::string schedule = "1f1b";  // becomes parallel.schedule
  int microbatches = 4;           // becomes parallel.num_microbatches if there is a pipeline
  int threads = 0;                // 0: one per core
  int threads_per_rank = 1;

  int64_t steps = 200;
  int64_t batch = 16;  // samples per step, of all ranks together
  std::string optimizer = "adamw";
  double lr = 2e-3;
  apogee::optim::OptionMap optimizer_options;  // lr included
  uint64_t seed = 1;
  int64_t log_every = 20;
  std::string trace;  // empty: none
  std::string device = "cpu";
  std::string comm = "auto";
  double timeout_seconds = 60;
  std::string flight_records;  // empty: none
};

// Reads the command line and checks it. Returns nothing if training may start; otherwise the exit
// code: 0 after --help, 2 after an error, with one sentence on stderr. boost checks whether ranks
// and model fit, and lists everything that does not.
std::optional<int> ParseFlags(int argc, char** argv, Flags& flags);

#endif  // APOGEE_EXAMPLES_05_TRAIN_3D_FLAGS_H_
