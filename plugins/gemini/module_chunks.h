// SPDX-License-Identifier: Apache-2.0

// PlanModuleChunks: the chunks of a model whose parameters are gathered module by module. A chunk
// has parameters of one module only, so a module gathers only the values it needs.
//
//   std::vector<chunk::ChunkSpec> plan = PlanModuleChunks(
//       model, parameters, {.num_shards = 4, .element_bytes = 2, .chunk_bytes = 25 << 20});
//   ChunkWaste(plan);                             // 0.0003: padding, as a part of all elements
//
// A module's parameters fill ceil(bytes / chunk_bytes) chunks of their own size, trainable and
// frozen parameters apart. So there is no common chunk size to search for. The only waste is
// padding: a shard is padded to a multiple of 8 elements, and further so that no two chunks have
// the same size.
#ifndef APOGEE_PLUGINS_GEMINI_MODULE_CHUNKS_H_
#define APOGEE_PLUGINS_GEMINI_MODULE_CHUNKS_H_

#include <cstdint>
#include <span>
#include <vector>

#include "apogee/chunk/chunk_plan.h"
#include "apogee/nn/module.h"

namespace apogee {

struct ModuleChunkOptions {
  int num_shards = 1;
  int64_t element_bytes = 4;  // of values
  int64_t chunk_bytes = 25 << 20;
  // By parameter (ChunkRequest::cut_multiple); empty: 1 for all.
  std::vector<int64_t> cut_multiples = {};
};

// `parameters`: all of the model's or some of them. Their values are not read.
std::vector<chunk::ChunkSpec> PlanModuleChunks(nn::Module& model,
                                               std::span<const autograd::ParameterPtr> parameters,
                                               const ModuleChunkOptions& options);

// The fraction of all elements that belong to no parameter.
double ChunkWaste(std::span<const chunk::ChunkSpec> plan);

}  // namespace apogee

#endif  // APOGEE_PLUGINS_GEMINI_MODULE_CHUNKS_H_
