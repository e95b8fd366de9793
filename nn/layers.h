// SPDX-License-Identifier: Apache-2.0

// The layers of GPT-2 and Llama, lists of modules, and functions as modules. Parameter names follow
// Hugging Face and torch.
//
//   const nn::LinearOptions options{.layout = nn::WeightLayout::kInOut};
//   auto fc = std::make_shared<nn::Linear>(384, 1536, options);
//   Tensor y = (*fc)(x);                              // x [.., 384] -> [.., 1536]
#ifndef APOGEE_NN_LAYERS_H_
#define APOGEE_NN_LAYERS_H_

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "apogee/autograd/functions/linear.h"
#include "apogee/nn/configured.h"
#include "apogee/nn/lora/adapter.h"
#include "apogee/nn/module.h"

namespace apogee::nn {

using autograd::WeightLayout;

// x in `dtype`, that of a layer's parameters, if both are f32, bf16 or f16; else x itself. Under a
// plugin's precision of 16 bits the layers below do this with their inputs, so that they follow and
// precede modules that stay in f32 (TrainingOptions::keep_f32); do it in layers of your own. A norm
// reads an f32 input as it is, and returns the dtype of its parameters. Any other mismatch throws
// Error.
Tensor CastInput(const Tensor& x, DType dtype);
// For the Forward of a layer: CastInput to the dtype of its weight under a plugin's precision of 16
// bits, else x itself, so that a mismatch of dtypes is seen as the user's mistake.
Tensor InputOf(const Module& layer, const Tensor& x, const Parameter& weight);

// The same for a norm, which reads f32 itself.
Tensor NormInput(const Module& norm, const Tensor& x, const Parameter& weight);

struct LinearOptions {
  bool bias = true;
  // kOutIn: weight [out, in]; kInOut: weight [in, out], GPT-2's Conv1D.
  WeightLayout layout = WeightLayout::kOutIn;
  // Applied to the result, in one kernel with the product.
  std::optional<Activation> activation = {};
  // autograd::LinearOptions::recompute_activation.
  bool recompute_activation = false;
  // Whether the result is a block's, for the residual stream: then it is not rounded to less than
  // the stream's dtype (Module::Residual). Not with an activation.
  bool to_residual = false;
  // The initialiser of the weight; the bias is then 0. Default: torch's uniform(-1/sqrt(in),
  // 1/sqrt(in)) for both.
  std::optional<Init> init = {};
  // Above 0: the result y becomes soft_cap * tanh(y / soft_cap). Not with an activation.
  std::optional<double> soft_cap = {};
};

class HeadLoss;  // head_loss.h

// Parameters: "weight" and, with bias, "bias" [out]. x [.., in] -> [.., out]. Adapters add more.
class Linear : public Module, public Configured, public Adaptable {
 public:
  Linear(int64_t in, int64_t out, const LinearOptions& options = {});
  // Tied: uses `weight`, shaped as options.layout says, and `bias` [out], null: none. Other modules
  // own and initialise them.
  explicit Linear(ParameterPtr weight, ParameterPtr bias = nullptr,
                  const LinearOptions& options = {});
  Tensor Forward(const Tensor& x) override;
  void DescribeConfig(ConfigTexts& texts) const override;
  const ParameterPtr& weight() const override { return weight_; }
  // Null without a bias.
  const ParameterPtr& bias() const { return bias_; }
  WeightLayout layout() const { return options_.layout; }
  const std::optional<Activation>& activation() const { return options_.activation; }
  bool recompute_activation() const { return options_.recompute_activation; }
  const std::optional<double>& soft_cap() const { return options_.soft_cap; }
  // Of the result: autograd::LinearOptions::out_dtype.
  std::optional<DType> out_dtype() const;
  // Not null while a HeadLoss calls this layer: then Forward, or what replaces it, returns
  // head_loss()->Of(..), the loss, in place of the product.
  HeadLoss* head_loss() const { return head_loss_; }
  void set_head_loss(HeadLoss* loss) { head_loss_ = loss; }
  // The last dim of the result over all ranks that share the weight, and by how much the result has
  // more tokens than the input, if a replacement of Forward gathers them. TensorParallel sets both.
  int64_t vocab_size() const { return vocab_size_ > 0 ? vocab_size_ : sizes().second; }
  int64_t gathered_ranks() const { return gathered_ranks_; }
  void SetWholeLogits(int64_t vocab_size, int64_t gathered_ranks) {
    vocab_size_ = vocab_size;
    gathered_ranks_ = gathered_ranks;
  }

  void AddAdapter(const LayerAdapter& adapter) override;
  std::pair<int64_t, int64_t> sizes() const override;
  Tensor Merged(const LoraFactors& factors, const Parameter& weight) const override;
  // The bias to give to the product of an adapted layer: undefined if an active DoRA scales the
  // product, or if there is none.
  Tensor ProductBias() const;
  // The result of an adapted layer. `product`: x W + ProductBias(), in ComputeDType(x.dtype()).
  Tensor Finish(const Tensor& x, const Tensor& product, const AdapterOps& ops);

 private:
  LinearOptions options_;
  ParameterPtr weight_, bias_;
  HeadLoss* head_loss_ = nullptr;
  int64_t vocab_size_ = 0;  // 0: the weight has all
  int64_t gathered_ranks_ = 1;
};

// soft_cap * tanh(logits / soft_cap); without a soft_cap the logits themselves.
Tensor CapLogits(const Tensor& logits, const std::optional<double>& soft_cap);

// Parameter: "weight" [vocab, dim]. tokens i64 [..] -> [.., dim]. Lookups of padding_id give no
// gradient; -1: there is none. Its row begins like any other. Adapters add more parameters.
class Embedding : public Module, public Configured, public Adaptable {
 public:
  // Throws Error unless padding_id is -1 or in [0, vocab).
  Embedding(int64_t vocab, int64_t dim, const Init& init = Init::Normal(0, 1),
            int64_t padding_id = -1);
  Tensor Forward(const Tensor& tokens) override;
  void DescribeConfig(ConfigTexts& texts) const override;
  const ParameterPtr& weight() const override { return weight_; }
  int64_t padding_id() const { return padding_id_; }

  void AddAdapter(const LayerAdapter& adapter) override;
  std::pair<int64_t, int64_t> sizes() const override;
  Tensor Merged(const LoraFactors& factors, const Parameter& weight) const override;
  // The result of an adapted layer: y + scale * B A[tokens]. `look_up`: the rows of a table
  // [vocab, rank] for the tokens.
  Tensor Finish(const Tensor& y, const std::function<Tensor(const Tensor& table)>& look_up) const;

 private:
  int64_t padding_id_;
  ParameterPtr weight_;
};

// Parameters: "weight" and "bias" [dim]. x [.., dim]. `recompute`: autograd::LayerNorm.
class LayerNorm : public Module, public Configured {
 public:
  explicit LayerNorm(int64_t dim, double eps = 1e-5, bool recompute = false);
  Tensor Forward(const Tensor& x) override;
  void DescribeConfig(ConfigTexts& texts) const override;
  const ParameterPtr& weight() const { return weight_; }
  const ParameterPtr& bias() const { return bias_; }
  double eps() const { return eps_; }

 private:
  double eps_;
  bool recompute_;
  ParameterPtr weight_, bias_;
};

// Parameter: "weight" [dim]. x [.., dim]. Each element is scaled by weight + weight_offset
// (autograd::RmsNorm, also for `recompute`), 1 at first.
class RmsNorm : public Module, public Configured {
 public:
  explicit RmsNorm(int64_t dim, double eps = 1e-6, double weight_offset = 0,
                   bool recompute = false);
  Tensor Forward(const Tensor& x) override;
  void DescribeConfig(ConfigTexts& texts) const override;
  const ParameterPtr& weight() const { return weight_; }
  double eps() const { return eps_; }

 private:
  double eps_, weight_offset_;
  bool recompute_;
  ParameterPtr weight_;
};

// The layers below take x [samples, channels, ..]. Under tensor parallelism they throw Error for an
// input that holds only some of the channels: put them outside of a column and row pair.

// Parameters: "weight" and "bias" [channels]. autograd::GroupNorm.
class GroupNorm : public Module, public Configured {
 public:
  // Throws Error unless num_groups divides channels.
  GroupNorm(int64_t num_groups, int64_t channels, double eps = 1e-5);
  Tensor Forward(const Tensor& x) override;
  bool mixes_tokens() const override { return true; }
  void DescribeConfig(ConfigTexts& texts) const override;

 private:
  int64_t num_groups_;
  double eps_;
  ParameterPtr weight_, bias_;
};

struct BatchNormOptions {
  double eps = 1e-5;
  // running = (1 - momentum) * running + momentum * batch. In (0, 1].
  double momentum = 0.1;
};

// Parameters: "weight" and "bias" [channels]; buffers: "running_mean" and "running_var" [channels].
//
// In training the statistics are those of the whole micro-batch, of all ranks that share it: a
// boosted run computes what one rank with all samples computes. That costs four all-reduces of
// [channels] per call, two in each direction. The running averages, with the unbiased variance, are
// used in evaluation. Under a pipeline a micro-batch is that of the pipeline. Throws Error under
// sequence parallelism, and with a plugin that does not average gradients in every step.
class BatchNorm : public Module, public Configured {
 public:
  explicit BatchNorm(int64_t channels, const BatchNormOptions& options = {});
  Tensor Forward(const Tensor& x) override;
  bool mixes_tokens() const override { return true; }
  bool sums_over_batch() const override { return true; }
  void DescribeConfig(ConfigTexts& texts) const override;

 private:
  void UpdateRunning(const Tensor& mean, const Tensor& var, const Tensor& count) const;

  BatchNormOptions options_;
  ParameterPtr weight_, bias_, mean_, var_;
};

// Only gives its children a name prefix ("transformer.…"); Forward returns x.
class Container : public Module {
 public:
  Tensor Forward(const Tensor& x) override { return x; }
  using Module::Register;
};

// A function without parameters as a module.
std::shared_ptr<Module> Function(std::function<Tensor(const Tensor& x)> function);

// Modules of one type, named "0", "1", ... Its owner calls them; the list itself cannot be called.
//
//   blocks_ = Register("blocks", std::make_shared<nn::ModuleList<Block>>());
//   for (int i = 0; i < 4; ++i) blocks_->Add(std::make_shared<Block>(64));
//   for (const auto& block : *blocks_) x = (*block)(x);
template <typename T>
class ModuleList : public Module {
 public:
  T& Add(std::shared_ptr<T> module) {
    modules_.push_back(Register(std::to_string(modules_.size()), std::move(module)));
    return *modules_.back();
  }
  size_t size() const { return modules_.size(); }
  T& operator[](size_t i) const { return *modules_.at(i); }
  auto begin() const { return modules_.begin(); }
  auto end() const { return modules_.end(); }
  Tensor Forward(const Tensor&) override {
    Throw("module list \"", full_name(), "\": call its modules, not the list");
  }

 private:
  std::vector<std::shared_ptr<T>> modules_;
};

// Active in training mode only; draws from the module tree's random generator. Under tensor
// parallelism, throws Error for an input that holds only this rank's columns (autograd::IsCut)
// unless a rule of the plan names this module.
class Dropout : public Module, public Configured {
 public:
  explicit Dropout(double p);
  Tensor Forward(const Tensor& x) override;
  void DescribeConfig(ConfigTexts& texts) const override;
  double p() const { return p_; }
  // Throws that Error; its message gives the rule to add.
  [[noreturn]] void RefuseCut(const Tensor& x) const;

 private:
  double p_;
};

}  // namespace apogee::nn

#endif  // APOGEE_NN_LAYERS_H_
