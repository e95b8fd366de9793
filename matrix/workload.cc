// SPDX-License-Identifier: Apache-2.0

#include "apogee/matrix/workload.h"

#include <utility>

#include "apogee/core/text/text.h"
#include "apogee/matrix/fed_gradients.h"
#include "apogee/matrix/tiny_model.h"

namespace apogee::matrix {

Tensor Workload::Loss(const TrainedModel& trained, const SampleRange& range) const {
  const data::Batch batch = Batch(trained.context, range);
  return trained.criterion(trained.model(batch.inputs), batch.targets);
}

const Workload& FindWorkload(const std::string& name) {
  static const FedGradients fed;
  static const TinyWorkload gpt2(TinyKind::kGpt2), llama(TinyKind::kLlama);
  static const LmWorkload gpt2_tied(TinyKind::kGpt2, true), gpt2_untied(TinyKind::kGpt2, false);
  static const LmWorkload llama_tied(TinyKind::kLlama, true), llama_untied(TinyKind::kLlama, false);
  // tokens: four ranks can have two pieces each. layers: four pipeline stages can have two chunks
  // each.
  static const LmWorkload::Size long_size{.tokens = 8}, deep_size{.num_layers = 6, .tokens = 8};
  static const LmWorkload gpt2_long(TinyKind::kGpt2, true, long_size);
  static const LmWorkload llama_long(TinyKind::kLlama, true, long_size);
  static const LmWorkload gpt2_deep(TinyKind::kGpt2, true, deep_size);
  static const LmWorkload llama_deep(TinyKind::kLlama, false, deep_size);
  static const auto& workloads = *new std::vector<std::pair<std::string, const Workload*>>{
      {"fed", &fed},
      {"gpt2", &gpt2},
      {"llama", &llama},
      {"gpt2_tied", &gpt2_tied},
      {"gpt2_untied", &gpt2_untied},
      {"llama_tied", &llama_tied},
      {"llama_untied", &llama_untied},
      {"gpt2_deep", &gpt2_deep},
      {"llama_deep", &llama_deep},
      {"gpt2_long", &gpt2_long},
      {"llama_long", &llama_long},
  };
  std::vector<std::string> names;
  for (const auto& [known, workload] : workloads) {
    if (known == name) return *workload;
    names.push_back(known);
  }
  Throw(UnknownName("workload", name, names));
}

}  // namespace apogee::matrix
