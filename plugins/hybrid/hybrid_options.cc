// SPDX-License-Identifier: Apache-2.0

#include "apogee/plugins/hybrid_parallel.h"

namespace apogee {

std::vector<optim::OptionField<HybridParallelOptions>> HybridParallelOptions::Fields() {
  using Options = HybridParallelOptions;
  std::vector<optim::OptionField<Options>> fields = {
      {"tp_size", &Options::tp_size},
      {"pp_size", &Options::pp_size},
      {"sp_size", &Options::sp_size},
      {"sp_mode", optim::EnumField(&Options::sp_mode, nn::parallel::ParseSequenceMode)},
      {"stage", &Options::stage},
      {"communication_dtype", optim::EnumField(&Options::communication_dtype, ParsePrecision)},
      {"overlap_gather", &Options::overlap_gather},
      {"master_weights", &Options::master_weights},
      {"offload_states", &Options::offload_states},
      {"schedule", optim::EnumField(&Options::schedule, pipeline::ParsePipelineSchedule)},
      {"num_model_chunks", &Options::num_model_chunks},
      {"num_microbatches", &Options::num_microbatches},
      {"microbatch_size", &Options::microbatch_size},
      {"piece_costs", &Options::piece_costs},
      {"pieces_per_part", &Options::pieces_per_part}};
  for (auto& field : optim::InnerFields(&Options::placement)) fields.push_back(std::move(field));
  return fields;
}

}  // namespace apogee
