// SPDX-License-Identifier: Apache-2.0

#include "apogee/matrix/catalog.h"

#include "apogee/core/text/text.h"
#include "apogee/matrix/models/families.h"
#include "apogee/matrix/models/fed_gradients.h"
#include "apogee/matrix/models/layer_models.h"
#include "apogee/matrix/models/lora_model.h"
#include "apogee/matrix/models/moe_model.h"
#include "apogee/matrix/models/tiny_model.h"

namespace apogee::matrix {

Catalog::Catalog() : plugins(LibraryPlugins()) {
  const auto lm = [](TinyKind kind, bool tied, const LmWorkload::Size& size = {}) {
    return std::make_shared<LmWorkload>(kind, tied, size);
  };
  // tokens: four ranks can have two pieces each. layers: four pipeline stages can have two chunks
  // each.
  const LmWorkload::Size long_size{.tokens = 8}, deep_size{.num_layers = 6, .tokens = 8};
  workloads.Add("fed", std::make_shared<FedGradients>());
  workloads.Add("gpt2", std::make_shared<TinyWorkload>(TinyKind::kGpt2));
  workloads.Add("llama", std::make_shared<TinyWorkload>(TinyKind::kLlama));
  workloads.Add("gpt2_tied", lm(TinyKind::kGpt2, true));
  workloads.Add("gpt2_untied", lm(TinyKind::kGpt2, false));
  workloads.Add("llama_tied", lm(TinyKind::kLlama, true));
  workloads.Add("llama_untied", lm(TinyKind::kLlama, false));
  workloads.Add("gpt2_deep", lm(TinyKind::kGpt2, true, deep_size));
  workloads.Add("llama_deep", lm(TinyKind::kLlama, false, deep_size));
  workloads.Add("gpt2_long", lm(TinyKind::kGpt2, true, long_size));
  workloads.Add("llama_long", lm(TinyKind::kLlama, true, long_size));
  // No layout gives a rank a multiple of five tokens: the last chunk is shorter.
  const LmWorkload::Size chunked_size{.num_layers = 6, .tokens = 8, .head_chunks = 5};
  workloads.Add("gpt2_chunked", lm(TinyKind::kGpt2, true, chunked_size));
  workloads.Add("llama_chunked", lm(TinyKind::kLlama, false, chunked_size));
  workloads.Add("cnn", std::make_shared<CnnWorkload>());
  workloads.Add("encoder", std::make_shared<EncoderWorkload>());
  workloads.Add("gru", std::make_shared<GruWorkload>());
  workloads.Add("moe", std::make_shared<MoeWorkload>(MoeKind::kPlain));
  workloads.Add("moe_idle", std::make_shared<MoeWorkload>(MoeKind::kIdle));
  workloads.Add("moe_one", std::make_shared<MoeWorkload>(MoeKind::kOne));
  workloads.Add("moe_rare", std::make_shared<MoeWorkload>(MoeKind::kRare));
  workloads.Add("moe_aux", std::make_shared<MoeWorkload>(MoeKind::kAux));
  workloads.Add("lora", std::make_shared<LoraWorkload>(TinyKind::kLlama));
  workloads.Add("lora_gpt2", std::make_shared<LoraWorkload>(TinyKind::kGpt2));
  workloads.Add("lora_nf4",
                std::make_shared<LoraWorkload>(TinyKind::kLlama, nn::QuantizeOptions{}));
  workloads.Add(
      "lora_gpt2_int8",
      std::make_shared<LoraWorkload>(
          TinyKind::kGpt2, nn::QuantizeOptions{.kind = BlockCodeKind::kInt8, .nested = false}));
  for (const std::string& name : FamilyNames()) {
    workloads.Add("hf_" + name, std::make_shared<FamilyWorkload>(name));
  }
}

const PluginVariant& Catalog::FindPlugin(const std::string& name) const {
  std::vector<std::string> names;
  for (const PluginVariant& variant : plugins) {
    if (variant.name == name) return variant;
    names.push_back(variant.name);
  }
  Throw(UnknownName("plugin", name, names));
}

const Workload& Catalog::FindWorkload(const std::string& name) const {
  return **ValueOrThrow(workloads.Find(name));
}

const Catalog& LibraryCatalog() {
  static const Catalog& catalog = *new Catalog;
  return catalog;
}

}  // namespace apogee::matrix
