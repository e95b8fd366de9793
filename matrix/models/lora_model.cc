// SPDX-License-Identifier: Apache-2.0

#include "apogee/matrix/models/lora_model.h"

#include <utility>

#include "apogee/nn/lora/lora.h"

namespace apogee::matrix {

LoraWorkload::LoraWorkload(TinyKind kind, std::optional<nn::QuantizeOptions> quantize)
    : LmWorkload(kind, /*tied=*/kind == TinyKind::kGpt2, {.num_layers = 4, .tokens = 8}),
      quantize_(std::move(quantize)) {}

std::unique_ptr<nn::Module> LoraWorkload::MakeModel() const {
  std::unique_ptr<nn::Module> model = LmWorkload::MakeModel();
  nn::LoraOptions options{.rank = 4, .alpha = 6, .quantize = quantize_};
  if (kind_ == TinyKind::kGpt2) {
    options.targets = {"c_attn", "c_fc", "c_proj"};
    options.modules_to_save = {"ln_f"};
  } else {
    options.rank_pattern = {{"down_proj", 3}};
  }
  nn::AddLora(*model, options);
  // Not zeros: else the first gradients of A would be.
  model->SetInit("*lora_B*", nn::Init::Normal(0, 0.1));
  return model;
}

}  // namespace apogee::matrix
