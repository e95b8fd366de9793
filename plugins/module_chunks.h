// SPDX-License-Identifier: Apache-2.0

// PlanModuleChunks: the chunks of a model whose parameters are gathered module by module: a chunk
// has parameters of one module only, so that nothing is gathered but what a module needs.
//
//   std::vector<chunk::ChunkSpec> plan = PlanModuleChunks(
//       model, parameters, {.num_shards = 4, .element_bytes = 2, .chunk_bytes = 25 << 20});
//   ChunkWaste(plan);                             // 0.0003: padding, by all elements
//
// A module's parameters fill ceil(bytes / chunk_bytes) chunks of their own size, trainable and
// frozen ones apart. So there is no chunk size to search for that fits all modules: what is wasted
// is the padding of shards to a multiple of 8 elements, and that makes no two chunks equal in size.
#ifndef APOGEE_PLUGINS_MODULE_CHUNKS_H_
#define APOGEE_PLUGINS_MODULE_CHUNKS_H_

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
  // By parameter (ChunkRequest::cut_multiple); empty: 1.
  std::vector<int64_t> cut_multiples = {};
};

// `parameters` are the model's, or some of them; values are not needed.
std::vector<chunk::ChunkSpec> PlanModuleChunks(nn::Module& model,
                                               std::span<const autograd::ParameterPtr> parameters,
                                               const ModuleChunkOptions& options);

// The part of all elements that belong to no parameter.
double ChunkWaste(std::span<const chunk::ChunkSpec> plan);

}  // namespace apogee

#endif  // APOGEE_PLUGINS_MODULE_CHUNKS_H_
