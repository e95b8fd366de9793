// SPDX-License-Identifier: Apache-2.0

// Module: a named tree of parameters and submodules with a Forward.
//
//   class Mlp : public nn::Module {
//    public:
//     Mlp() : fc_(Register("fc", std::make_shared<nn::Linear>(4, 2))) {}
//     Tensor Forward(const Tensor& x) override { return (*fc_)(x); }
//    private:
//     std::shared_ptr<nn::Linear> fc_;
//   };
//   Mlp model;
//   model.Initialize(CpuContext(), {.seed = 1});        // values for "fc.weight" and "fc.bias"
//
// A constructor only declares parameters (name, shape, initialiser). Initialize makes their values,
// a pure function of (seed, full name, element): every rank and every parallel layout draws the
// same values. A full name is the path from the root, no matter whether parents are registered
// before or after their children. A module that is registered several times is named after its
// first registration, and its parameters are listed once.
//
// InitializeLazily makes the same values, bit for bit, but each only when it is first read. A
// sharding plugin then takes its shard of one parameter at a time and frees the rest, so no rank
// needs memory for the whole model.
//
// A module of several inputs or outputs overrides ForwardNamed:
//
//   class Encoder : public nn::Module {
//     nn::NamedTensors ForwardNamed(const nn::NamedTensors& in) override {
//       const Tensor h = Encode(in.at("tokens"), in.at("mask"));
//       return {{"hidden", h}, {"pooled", autograd::Mean(h, {1})}};
//     }
//   };
//   Tensor pooled = encoder({{"tokens", tokens}, {"mask", mask}}).at("pooled");
#ifndef APOGEE_NN_MODULE_H_
#define APOGEE_NN_MODULE_H_

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include "apogee/autograd/parameter.h"
#include "apogee/core/hooks.h"
#include "apogee/core/lifetime.h"
#include "apogee/core/rng.h"
#include "apogee/layout/sequence_part.h"

namespace apogee::nn {

using autograd::Parameter;
using autograd::ParameterPtr;

// Inputs or outputs of a module, by name.
using NamedTensors = std::map<std::string, Tensor>;

// The distribution of a parameter's first value.
struct Init {
  enum class Kind { kConstant, kNormal, kUniform } kind = Kind::kConstant;
  // kConstant: value a.
  // kNormal: mean a, standard deviation b.
  // kUniform: (a, b].
  double a = 0;
  double b = 0;

  static Init Constant(double value) { return {Kind::kConstant, value, 0}; }
  static Init Normal(double mean, double std) { return {Kind::kNormal, mean, std}; }
  static Init Uniform(double low, double high) { return {Kind::kUniform, low, high}; }
  // By the names of torch.nn.init: "zeros", "ones", "xavier_uniform", "xavier_normal" (Glorot and
  // Bengio, 2010), "kaiming_uniform", "kaiming_normal" (He et al., 2015, for ReLU). The last four
  // take the numbers of inputs and outputs from a weight's shape [out, in, ..]. Throws Error for
  // another name, and for a shape of less than two dims.
  static Init Named(const std::string& name, const Shape& shape);
};

struct InitOptions {
  uint64_t seed = 0;
  DType dtype = DType::kF32;
};

class QuantizedWeight;  // quantized/quantized_weight.h
struct QuantizeOptions;

class Module {
 public:
  using Hook = std::function<void(Module&)>;
  using InputHook = std::function<void(Module&, const Tensor& input)>;

  Module() = default;
  virtual ~Module();
  Module(const Module&) = delete;
  Module& operator=(const Module&) = delete;

  // A module overrides one of these. The other throws Error.
  virtual Tensor Forward(const Tensor& x);
  virtual NamedTensors ForwardNamed(const NamedTensors& inputs);
  // Runs Forward between its hooks. Callers use this, not Forward.
  Tensor operator()(const Tensor& x);
  // The same for ForwardNamed. The samples are dim 0 of every input; hooks get the first input in
  // order of names, or the first with a known place in the batch (SamplePlaceOf). Throws Error for
  // no input or an undefined one, and after ReplaceForward: pipelines, sequence parallelism and
  // layers that a plan cuts take one tensor.
  NamedTensors operator()(const NamedTensors& inputs);

  // Computes `forward` instead of Forward from now on, between the same hooks; hooks and parameters
  // stay. Tensor parallelism uses it to run a layer over a group. If `input` is given, `forward`
  // gets input(x). input(x) does not belong to this module's part of backward, so several modules
  // called with the same x can share its result.
  using ForwardFunction = std::function<Tensor(const Tensor& x)>;
  // Throws Error if the forward has been replaced before.
  void ReplaceForward(ForwardFunction forward, ForwardFunction input = nullptr);
  // Calls `wrapper`, which gets Forward (or its replacement, past or future) as `forward`.
  using ForwardWrapper = std::function<Tensor(const Tensor& x, const ForwardFunction& forward)>;
  // With named tensors, x is the first input, as for hooks, and the result takes the place of the
  // first output. Throws Error if there is a wrapper already.
  void WrapForward(ForwardWrapper wrapper);
  bool has_wrapped_forward() const { return wrapper_ != nullptr; }

  // Every parameter of the tree once, in order of registration; a tied parameter under its owner's
  // name.
  std::vector<ParameterPtr> Parameters() const;
  // Tensors that are saved with the parameters but not trained, like the running averages of a
  // batch norm: each of the tree once. They get no gradient. Their dtype is f32, or f64 in a model
  // that is initialised in f64; the run's precision does not change it. Plugins keep them whole, so
  // every rank must compute the same values.
  std::vector<ParameterPtr> Buffers() const;
  // The weights of the tree that are held in few bits, each once. Parameters() has their bytes.
  std::vector<std::shared_ptr<QuantizedWeight>> QuantizedWeights() const;
  // Freezes a parameter that this module has declared, and holds it in few bits from now on. Throws
  // Error for another parameter, one that is quantized already, and after CloseTree.
  QuantizedWeight& QuantizeParameter(const ParameterPtr& parameter, const QuantizeOptions& options);
  // Whether this module, not one below it, has declared the parameter.
  bool Declares(const Parameter& parameter) const;
  // Gives the quantized weights of the tree tensors of their own again, with the values that they
  // have, still frozen. Throws Error after CloseTree.
  void RestoreQuantized();
  // The parameter with this full name ("transformer.wte.weight"), or nullptr.
  ParameterPtr FindParameter(const std::string& name) const;
  // This module and all modules below it, each once, parents first.
  std::vector<Module*> Modules();
  // The same with their names relative to this module ("transformer.h.0.attn"); its own name is "".
  std::vector<std::pair<std::string, Module*>> NamedModules();
  // The path from the root of the tree to this module; "" for a root.
  std::string full_name() const;
  // Elements; of a quantized weight those that it stands for.
  int64_t num_parameters() const;

  // Replaces the initialiser of every parameter whose full name matches a shell pattern; * also
  // matches dots. Call it before Initialize. Throws Error if no name matches, or if a matching
  // parameter has a value already.
  //
  //   model.SetInit("*.weight", "kaiming_normal");
  //   model.SetInit("head.weight", nn::Init::Normal(0, 0.02));
  void SetInit(const std::string& pattern, const Init& init);
  void SetInit(const std::string& pattern, const std::string& name);
  // Gives a value to every parameter and buffer that has none, and seeds the random generator.
  // Throws Error when two of them have the same full name.
  void Initialize(const ContextPtr& context, const InitOptions& options = {});
  // The same, but each value is made when it is first read (Parameter::is_lazy); until then it
  // takes no memory. Optimizers can be made and weights loaded as usual. A forward, a save, and
  // plugins that do not shard parameters read all values, and so make the whole model.
  void InitializeLazily(const ContextPtr& context, const InitOptions& options = {});
  // Converts every parameter to a floating-point dtype; gradients become absent. Buffers become f64
  // or f32.
  void To(DType dtype);

  // Training mode turns dropout on. It is on after construction.
  void Train(bool training = true);
  bool is_training() const { return training_; }
  // The random state (dropout) that all modules of the tree share; checkpoints save it.
  Generator& generator() { return *generator_; }
  // Starts the random masks of the next forward at the position of the samples of `inputs`, if it
  // is known (SamplePlaceOf). Calling a model does this by itself; call it only when you run parts
  // of a model.
  void BeginBatch(const Tensor& inputs);
  // Adds up over ranks.
  using RankSum = std::function<Tensor(const Tensor& x)>;
  // The tokens of each sequence that this module's tensors hold; by default all. Sequence
  // parallelism sets it, and how SumOverSequence adds up over the ranks that share a sequence. Code
  // that depends on a token's position reads it.
  const SequencePart& sequence_part() const { return sequence_part_; }
  void set_sequence_part(const SequencePart& part, RankSum sum = nullptr) {
    sequence_part_ = part;
    sequence_sum_ = std::move(sum);
  }

  // Override it to return true in a model that may be called with packed documents
  // (autograd/documents.h):
  //   Tensor logits = model({{"tokens", tokens}, {"starts", starts}}).at("logits");
  // runs Forward(tokens), also one that has been replaced (pipelines run it as pieces, and take the
  // starts themselves). By that the model promises that tokens mix in nn::AttentionCore only, and
  // that positions come from it or from nn::RowsOfTokens. Throws Error for other names, for starts
  // that are not those of `tokens`, and if a module of the tree mixes_tokens().
  virtual bool takes_documents() const { return false; }
  // Throws Error unless this model may be called with packed documents.
  void CheckTakesDocuments();

  // Override it to return true in a module whose result for a token depends on other tokens, if it
  // does not leave that to an nn::AttentionCore. Sequence parallelism refuses such modules.
  virtual bool mixes_tokens() const { return false; }
  // Override it to return true in a module that calls SumOverBatch: boost makes a group for these
  // sums only if a module of the tree needs it.
  virtual bool sums_over_batch() const { return false; }
  // How SumOverBatch adds up over ranks. Booster::boost sets it for the whole tree; null: one rank.
  void set_batch_sum(const RankSum& sum);

  // Where training is, for messages of modules: "step 12"; "" if the model is not boosted.
  // Booster::boost sets it for the whole tree.
  using Progress = std::function<std::string()>;
  void set_progress(const Progress& progress);
  std::string progress() const { return progress_ == nullptr ? "" : progress_(); }

  // x in the dtype of the residual stream, the sum to which the blocks of a deep model add. Call it
  // for the first addend and for every block's result:
  //   Tensor h = autograd::Add(x, Residual((*attention_)((*norm_)(x))));
  // By default x itself. A plugin that trains in bf16 or fp16 keeps the stream in f32
  // (TrainingOptions::f32_residual), so that its sums are not rounded; norms (nn/layers.h) read it
  // as it is and return the parameters' dtype.
  Tensor Residual(const Tensor& x) const;
  // Nothing: the dtype of the stream's addends.
  std::optional<DType> residual_dtype() const { return residual_dtype_; }
  void set_residual_dtype(std::optional<DType> dtype) { residual_dtype_ = dtype; }

  // Hooks run around Forward, and around this module's part of backward. Pre-backward hooks run
  // when the gradient of the module's output is complete. Post-backward hooks run when the gradient
  // of its input is complete, or at the end of backward if the input needs no gradient. All run on
  // the rank's thread, in the order in which they were added.
  // The handle removes the hook; a Subscription made from it does so when it is destroyed.
  HookHandle AddPreForwardHook(InputHook hook) { return pre_forward_.Add(std::move(hook)); }
  HookHandle AddPostForwardHook(Hook hook) { return post_forward_.Add(std::move(hook)); }
  HookHandle AddPreBackwardHook(Hook hook) { return pre_backward_.Add(std::move(hook)); }
  HookHandle AddPostBackwardHook(Hook hook) { return post_backward_.Add(std::move(hook)); }
  // Throws Error that names both modules if two parameters of the tree have the same full name.
  void CheckNames() const;
  // From now on Register and RegisterParameter throw Error in the whole tree: the optimizer and the
  // plugin have taken its parameters, so a new one would not be trained. Booster::boost calls this.
  void CloseTree();
  // CloseTree has been called: the model is boosted.
  bool is_closed() const { return closed_; }
  // Expires when this module is destroyed; for code that holds a pointer to it.
  std::weak_ptr<const void> lifetime() const { return lifetime_.token(); }
  // True if this module, not a child, has hooks.
  bool has_hooks() const {
    return !pre_forward_.empty() || !post_forward_.empty() || !pre_backward_.empty() ||
           !post_backward_.empty();
  }

 protected:
  // Declares a parameter of this module. Throws Error if the module has one of that name, or after
  // CloseTree.
  ParameterPtr RegisterParameter(const std::string& name, const Shape& shape, const Init& init);
  // Declares a buffer. Read and write it with data(). Throws Error as RegisterParameter does.
  ParameterPtr RegisterBuffer(const std::string& name, const Shape& shape, const Init& init);
  // The sum of x over all ranks that share the micro-batch, for a result that depends on all of its
  // samples. One rank returns x. Differentiable: the loss of every rank may depend on the sum.
  // Collective: in training every rank of the group must call it in the same order.
  Tensor SumOverBatch(const Tensor& x) const { return batch_sum_ ? batch_sum_(x) : x; }
  // A sum over the ranks that share x's sequences; x itself if sequences are whole. No graph.
  // Collective among these ranks.
  Tensor SumOverSequence(const Tensor& x) const { return sequence_sum_ ? sequence_sum_(x) : x; }
  // Whether SumOverBatch adds up over ranks.
  bool shares_batch() const { return batch_sum_ != nullptr; }
  // Adds a child under `name` and returns it. To tie a weight, let two modules hold it and only one
  // of them, its owner, register it. Throws Error if there is a child of that name, if the child
  // contains this module, or after CloseTree.
  template <typename T>
  std::shared_ptr<T> Register(const std::string& name, std::shared_ptr<T> child) {
    RegisterModule(name, child);
    return child;
  }

 private:
  struct Declared {
    std::string name;  // in this module
    ParameterPtr parameter;
    Init init;
    std::shared_ptr<QuantizedWeight> quantized = nullptr;  // `parameter` is what it stores

    const ParameterPtr& read() const;  // by layers
  };
  // The modules with several registrations that a walk has met.
  using Met = std::unordered_set<const Module*>;

  // `lazily`: each parameter's value is made when it is read.
  void GiveValues(const ContextPtr& context, const InitOptions& options, bool lazily);
  std::shared_ptr<class ModulePass> NewPass();
  using InitOfShape = std::function<Init(const Shape& shape)>;
  void ReplaceInit(const std::string& pattern, const InitOfShape& init);
  Tensor Compute(const Tensor& input);
  NamedTensors RunWithDocuments(const NamedTensors& inputs);
  std::string Called() const;  // for messages: module "h.0"
  ParameterPtr Declare(std::vector<Declared>& list, const std::string& name, const Shape& shape,
                       const Init& init);
  void RegisterModule(const std::string& name, const std::shared_ptr<Module>& child);
  void ForEach(const std::function<void(const Module&)>& fn) const;
  void ForEach(const std::function<void(const Module&)>& fn, Met& met) const;
  void AddNamed(const std::string& name, const Module& root, Met& met,
                std::vector<std::pair<std::string, Module*>>& result);
  bool IsNew(Met& met) const;
  // The name relative to `root` (null: relative to the root of the tree). Nothing if the path of
  // first registrations does not lead to `root`.
  std::optional<std::string> NameBelow(const Module* root) const;
  void Rename();
  void CheckOpen(const std::string& what, const std::string& name) const;

  std::vector<Declared> parameters_, buffers_;
  std::vector<std::pair<std::string, std::shared_ptr<Module>>> children_;
  Module* parent_ = nullptr;  // the first that registered this module
  std::string name_;          // in parent_
  int registrations_ = 0;
  bool closed_ = false;
  std::shared_ptr<Generator> generator_ = std::make_shared<Generator>();
  bool training_ = true;
  RankSum batch_sum_;
  Progress progress_;
  Lifetime lifetime_;
  SequencePart sequence_part_;
  RankSum sequence_sum_;
  std::optional<DType> residual_dtype_;
  ForwardFunction forward_;  // null: Forward
  ForwardFunction input_;
  ForwardWrapper wrapper_;
  Hooks<Module&, const Tensor&> pre_forward_;
  Hooks<Module&> post_forward_, pre_backward_, post_backward_;
};

}  // namespace apogee::nn

#endif  // APOGEE_NN_MODULE_H_
