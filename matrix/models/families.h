// SPDX-License-Identifier: Apache-2.0

// A tiny model of each Hugging Face family, made from a config.json as a user's folder has it.
//
//   FamilyWorkload work("gemma2");
//   std::unique_ptr<nn::Module> model = work.MakeModel();
//
// Sizes that 2 ranks divide along every axis, with six layers for two chunks of two stages, and
// windows that are shorter than a sequence. All run in f64 only, with AdamW.
#ifndef APOGEE_MATRIX_MODELS_FAMILIES_H_
#define APOGEE_MATRIX_MODELS_FAMILIES_H_

#include <memory>
#include <string>
#include <vector>

#include "apogee/matrix/models/tiny_model.h"

namespace apogee::matrix {

// The names of the workloads: "llama", "llama31", "mistral", … The workload is "hf_" and the name.
std::vector<std::string> FamilyNames();
// The config.json of the family's tiny model. Throws Error for an unknown name.
std::string FamilyConfig(const std::string& name);

class FamilyWorkload : public TinyWorkload {
 public:
  explicit FamilyWorkload(std::string name)
      : TinyWorkload(TinyKind::kLlama), name_(std::move(name)) {}
  std::unique_ptr<nn::Module> MakeModel() const override;
  data::Batch Batch(const ContextPtr& context, const SampleRange& range) const override;
  bool is_f64_only() const override { return true; }
  // Whether attention sees later tokens, and whether the inputs are images.
  bool is_encoder() const { return name_ == "bert" || name_ == "bert_padded" || takes_images(); }
  bool takes_images() const { return name_ == "vit"; }
  bool has_experts() const { return name_ == "mixtral" || name_.ends_with("_moe"); }
  // A dry run takes equal loads of all experts.
  bool reads_values() const override { return has_experts(); }
  // Whether pipelines and sequence parallelism take the model: not with named inputs.
  bool is_chain() const { return name_ != "bert_padded"; }

 private:
  const std::string name_;
};

}  // namespace apogee::matrix

#endif  // APOGEE_MATRIX_MODELS_FAMILIES_H_
