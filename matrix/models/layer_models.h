// SPDX-License-Identifier: Apache-2.0

// Models of the library's layers, as a user writes them: each with a plan, in a few lines.
//
//   encoder  a transformer with named inputs, padding masks and attention both ways
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

}  // namespace apogee::matrix

#endif  // APOGEE_MATRIX_MODELS_LAYER_MODELS_H_
