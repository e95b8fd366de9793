// SPDX-License-Identifier: Apache-2.0

// The settings of 03_train_llama_hybrid and the command line that sets them.
#ifndef APOGEE_EXAMPLES_03_TRAIN_LLAMA_HYBRID_FLAGS_H_
#define APOGEE_EXAMPLES_03_TRAIN_LLAMA_HYBRID_FLAGS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "apogee/booster/run_config.h"
#include "apogee/data/text_corpus.h"
#include "apogee/examples/common/checkpoints.h"
#include "apogee/nn/models/llama.h"
#include "apogee/optim/options.h"
#include "apogee/plugins/hybrid_parallel.h"

struct Flags {
  std::vector<std::string> data;  // empty: the King James Bible
  std::string out;                // empty: no files
  std::string plan_svg;           // empty: no picture

  // Grouped queries: six heads share two key-value heads.
  apogee::nn::LlamaConfig model = {.vocab_size = apogee::data::TextCorpus::kVocabSize,
                                   .hidden_size = 192,
                                   .intermediate_size = 512,
                                   .num_hidden_layers = 4,
                                   .num_attention_heads = 6,
                                   .num_key_value_heads = 2,
                                   .max_position_embeddings = 128};

  int ranks = 4;
  apogee::TrainingOptions training = {.max_norm = 1.0};
  std::string precision = "auto";  // ParseFlags replaces auto and sets training.precision
  apogee::HybridParallelOptions parallel = {.tp_size = 2, .stage = 2};
  int threads = 0;  // 0: one per core
  int threads_per_rank = 1;

  int64_t steps = 600;
  int64_t batch = 8;  // per micro-batch, of all ranks together
  int64_t accumulate = 1;
  std::string optimizer = "adamw";
  double lr = 2e-3;
  apogee::optim::OptionMap optimizer_options;  // lr included
  uint64_t seed = 1;

  CheckpointFlags checkpoints;
  std::string trace;  // empty: none
  std::string device = "cpu";
  std::string comm = "auto";
  double timeout_seconds = 60;
  std::string flight_records;  // empty: none

  int64_t log_every = 100;
  std::string prompt = "In the beginning";
  int64_t sample = 400;  // bytes
};

// The settings that a checkpoint records and with which a resumed run is compared.
apogee::RunConfig RunConfigOf(const Flags& flags);

// Reads the command line and checks it. Returns nothing if training may start; otherwise the exit
// code: 0 after --help, 2 after an error, with one sentence on stderr. boost checks whether ranks
// and model fit, and lists everything that does not.
std::optional<int> ParseFlags(int argc, char** argv, Flags& flags);

#endif  // APOGEE_EXAMPLES_03_TRAIN_LLAMA_HYBRID_FLAGS_H_
