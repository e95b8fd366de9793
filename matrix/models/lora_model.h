// SPDX-License-Identifier: Apache-2.0

// Language models with adapters (nn/lora/lora.h), whose own weights are frozen.
#ifndef APOGEE_MATRIX_MODELS_LORA_MODEL_H_
#define APOGEE_MATRIX_MODELS_LORA_MODEL_H_

#include <memory>
#include <optional>

#include "apogee/matrix/models/tiny_model.h"
#include "apogee/nn/quantized/quantize.h"

namespace apogee::matrix {

// Four layers and eight tokens, so that every way to cut fits. Llama: all layers, with factors of
// two ranks. GPT-2: its transposed and fused layers; the last norm is trained, too. The base may be
// quantized; the one-rank run then has the same codes.
class LoraWorkload : public LmWorkload {
 public:
  explicit LoraWorkload(TinyKind kind, std::optional<nn::QuantizeOptions> quantize = {});
  std::unique_ptr<nn::Module> MakeModel() const override;
  double max_norm() const override { return 0.05; }
  int64_t bucket_bytes() const override { return 1500; }
  LowRank low_rank() const override { return {.rank = 1, .update_proj_gap = 10}; }

 private:
  const std::optional<nn::QuantizeOptions> quantize_;
};

}  // namespace apogee::matrix

#endif  // APOGEE_MATRIX_MODELS_LORA_MODEL_H_
