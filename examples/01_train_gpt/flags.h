// SPDX-License-Identifier: Apache-2.0

// The settings of 01_train_gpt and the command line that sets them.
#ifndef APOGEE_EXAMPLES_01_TRAIN_GPT_FLAGS_H_
#define APOGEE_EXAMPLES_01_TRAIN_GPT_FLAGS_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "apogee/booster/run_config.h"
#include "apogee/comm/launch.h"
#include "apogee/data/text_corpus.h"
#include "apogee/examples/common/checkpoints.h"
#include "apogee/nn/models/gpt2.h"
#include "apogee/optim/options.h"
#include "apogee/plugins/plugin.h"

struct Flags {
  std::vector<std::string> data;  // empty: the King James Bible
  std::string out;                // empty: no files

  apogee::nn::Gpt2Config model = {.vocab_size = apogee::data::TextCorpus::kVocabSize,
                                  .n_positions = 128,
                                  .n_embd = 192,
                                  .n_layer = 4,
                                  .n_head = 6};

  int64_t steps = 1200;
  int64_t batch = 8;  // per micro-batch, of all ranks together
  int64_t accumulate = 1;
  std::string optimizer = "adamw";
  double lr = 2e-3;
  apogee::optim::OptionMap optimizer_options;  // lr included
  std::string schedule = "cosine";
  int64_t warmup = -1;  // negative: a tenth of the steps, if the schedule has one
  apogee::optim::OptionMap schedule_options;  // total_steps and warmup_steps included
  std::string precision = "f32";              // ParseFlags replaces auto
  double max_norm = 1.0;
  uint64_t seed = 1;

  int ranks = 1;
  std::string plugin;  // ParseFlags replaces "" by single or ddp
  bool reproducible = false;
  bool cuda_graphs = false;
  int tp_size = 1, zero_stage = 0;  // only for --plugin hybrid
  int threads = 0;                  // 0: one per core
  int threads_per_rank = 1;

  CheckpointFlags checkpoints;
  std::string trace;  // empty: none
  std::string device = "cpu";
  std::string comm = "auto";
  double timeout_seconds = 60;
  std::string flight_records;  // empty: none

  int64_t log_every = 100;
  std::string prompt = "In the beginning";
  int64_t sample = 400;  // bytes
  double temperature = 0.8;
};

// Reads the command line and checks every setting, so that later errors come from the run and not
// from its usage. Returns nothing if training may start; otherwise the exit code: 0 after --help, 2
// after an error, with one sentence on stderr.
std::optional<int> ParseFlags(int argc, char** argv, Flags& flags);

// The settings that a checkpoint records and with which a resumed run is compared.
apogee::RunConfig RunConfigOf(const Flags& flags);

// The plugin that --plugin names. Throws Error for settings that it does not support.
std::unique_ptr<apogee::Plugin> MakePlugin(const Flags& flags, const apogee::comm::World& world);

#endif  // APOGEE_EXAMPLES_01_TRAIN_GPT_FLAGS_H_
