// SPDX-License-Identifier: Apache-2.0

// LoraFactors: the factors of one adapter in one layer (Hu et al., "LoRA", 2021). For nn::Linear:
//
//   y = W x + b + scale * B (A dropout(x))
//   y = g * (W x + scale * B (A dropout(x))) + b,  g = magnitude / |rows of W + scale * B A|
//
// The second is DoRA (Liu et al., 2024): the norm is a constant for the gradient. Here x is
// [.., in], A [rank, in], B [out, rank], and magnitude [out].
//
//   const Tensor product = autograd::Linear(x, weight, {}, {.out_dtype = DType::kF32});
//   Tensor y = linear.Finish(x, product, {});      // all active adapters, bias, activation
//
// Sums are in f32 (f64 for f64), and the result is rounded once.
#ifndef APOGEE_NN_LORA_ADAPTER_H_
#define APOGEE_NN_LORA_ADAPTER_H_

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "apogee/autograd/functions/activation.h"
#include "apogee/autograd/functions/linear.h"
#include "apogee/nn/module.h"

namespace apogee::nn {

struct LoraFactors {
  std::string adapter;  // its name
  ParameterPtr a, b;
  ParameterPtr magnitude;  // of DoRA; null: none
  double scale = 1, dropout = 0;
  bool is_active = true;
};

// How a layer that runs over a group uses factors. The defaults are those of one rank.
struct AdapterOps {
  // Of A, which every rank has whole and uses with its own rows of B.
  std::function<Tensor(const Tensor& a)> share = nullptr;
  // Of A x, if ranks have columns of A: their sum.
  std::function<Tensor(const Tensor& product)> sum = nullptr;
  // Of squares of W + scale * B A, if ranks have columns of it. Adds up in place.
  std::function<void(const Tensor& squares)> sum_squares = nullptr;
  // x's gradients of several ranks are added up: they are not rounded before.
  bool wide_input_grad = false;
  // The part of x that this rank has, for dropout.
  autograd::ColumnWindow columns = {};
  SequencePart tokens = {};
};

// The weight of an adapted layer.
struct AdaptedWeight {
  const Parameter& weight;
  autograd::WeightLayout layout;
};

// An adapter of one layer; nn/lora/lora.h makes them for a model.
struct LayerAdapter {
  std::string adapter;
  int64_t rank = 8;
  double scale = 1, dropout = 0;
  bool use_dora = false;
  uint64_t seed = 0;
};

// A layer that takes adapters: nn::Linear and nn::Embedding.
class Adaptable {
 public:
  virtual ~Adaptable() = default;
  // There is no adapter of this name. Called before boost.
  virtual void AddAdapter(const LayerAdapter& adapter) = 0;
  virtual const ParameterPtr& weight() const = 0;
  // The numbers of inputs (of an embedding: words) and outputs.
  virtual std::pair<int64_t, int64_t> sizes() const = 0;
  // `weight`, of this layer's shape, with an adapter of these factors, in its dtype and layout.
  virtual Tensor Merged(const LoraFactors& factors, const Parameter& weight) const = 0;
  const std::vector<LoraFactors>& adapters() const { return adapters_; }
  void SetActiveAdapters(const std::vector<std::string>& adapters);
  // Whether no other adapter of this layer is active.
  bool IsOnlyActive(const LoraFactors& factors) const;

 protected:
  std::vector<LoraFactors> adapters_;
};

// Gives a factor its first value like its layer's weight: at once, when it is read, or, if the
// weight has none, later by Module::Initialize.
void GiveFirstValue(Parameter& factor, const Init& init, uint64_t seed, const Parameter& weight);

// Adds an adapter to `product`, W x (with the bias, unless DoRA scales it) in the dtype in which
// 16-bit floats are computed. `x`: this rank's input. `training`: draws dropout from `generator`.
Tensor WithAdapter(const Tensor& x, const Tensor& product, const LoraFactors& factors,
                   const AdaptedWeight& base, const AdapterOps& ops, bool training,
                   Generator& generator);

// The norms of the rows of W + scale * B A, in the weight's dtype: the first magnitude of DoRA.
Tensor RowNorms(const LoraFactors& factors, const AdaptedWeight& base);
// Of an embedding: W + scale * (B A)^T, in f32 (f64 for f64) and [vocab, dim]. No graph.
Tensor MergedTable(const LoraFactors& factors, const Parameter& weight);
// W + scale * B A, or for DoRA g times that, in f32 (f64 for f64) and [out, in]. No graph.
Tensor MergedWeight(const LoraFactors& factors, const AdaptedWeight& base);

}  // namespace apogee::nn

#endif  // APOGEE_NN_LORA_ADAPTER_H_
