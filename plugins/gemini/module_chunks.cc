// SPDX-License-Identifier: Apache-2.0

#include "apogee/plugins/gemini/module_chunks.h"

#include <map>

namespace apogee {

std::vector<chunk::ChunkSpec> PlanModuleChunks(nn::Module& model,
                                               std::span<const autograd::ParameterPtr> parameters,
                                               const ModuleChunkOptions& options) {
  std::map<const autograd::Parameter*, int> owner;
  const std::vector<nn::Module*> modules = model.Modules();
  for (size_t m = 0; m < modules.size(); ++m) {  // parents first: the innermost module is the owner
    for (const auto& parameter : modules[m]->Parameters()) {
      owner[parameter.get()] = static_cast<int>(m);
    }
  }
  std::vector<chunk::ChunkRequest> requests;
  for (size_t i = 0; i < parameters.size(); ++i) {
    const autograd::Parameter& parameter = *parameters[i];
    requests.push_back(
        {.numel = parameter.shape().numel(),
         .element_bytes = options.element_bytes,
         .key = 2 * owner.at(&parameter) + (parameter.requires_grad() ? 0 : 1),
         .cut_multiple = options.cut_multiples.empty() ? 1 : options.cut_multiples[i]});
  }
  return chunk::PlanChunks(requests, {.chunk_bytes = options.chunk_bytes,
                                      .num_shards = options.num_shards,
                                      .distinct_sizes = true});
}

double ChunkWaste(std::span<const chunk::ChunkSpec> plan) {
  int64_t all = 0, used = 0;
  for (const chunk::ChunkSpec& chunk : plan) {
    all += chunk.numel();
    for (const chunk::ChunkItem& item : chunk.items) used += item.numel;
  }
  return all == 0 ? 0 : 1 - static_cast<double>(used) / static_cast<double>(all);
}

}  // namespace apogee
