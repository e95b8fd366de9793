// SPDX-License-Identifier: Apache-2.0

// Models of the library's layers, as a user writes them: each with a plan, in a few lines.
//
//   cnn      convolutions whose channels are divided, batch norm, group norm, pools
//   encoder  a transformer with named inputs, padding masks and attention both ways
//   gru      a recurrent language model, which pipelines may cut
//
// They run in f64 only: they test layers, and the language models test precisions.
#ifndef APOGEE_MATRIX_MODELS_LAYER_MODELS_H_
#define APOGEE_MATRIX_MODELS_LAYER_MODELS_H_

#include <memory>
#include <optional>

#include "apogee/matrix/models/tiny_model.h"

namespace apogee::matrix {

class LayerWorkload : public TinyWorkload {
 public:
  LayerWorkload() : TinyWorkload(TinyKind::kGpt2) {}
  bool is_f64_only() const override { return true; }
};

class EncoderWorkload : public LayerWorkload {
 public:
  std::unique_ptr<nn::Module> MakeModel() const override;
  std::optional<nn::parallel::ParallelPlan> plan() const override;
};

class GruWorkload : public LayerWorkload {
 public:
  std::unique_ptr<nn::Module> MakeModel() const override;
  std::optional<nn::parallel::ParallelPlan> plan() const override;
};

class CnnWorkload : public LayerWorkload {
 public:
  std::unique_ptr<nn::Module> MakeModel() const override;
  std::optional<nn::parallel::ParallelPlan> plan() const override;
  // Images of noise around a pattern of their class.
  data::Batch Batch(const ContextPtr& context, const SampleRange& range) const override;
  bool mixes_samples() const override { return true; }
};

}  // namespace apogee::matrix

#endif  // APOGEE_MATRIX_MODELS_LAYER_MODELS_H_
