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
//   model.Initialize(CpuContext(), {.seed = 1});        // parameters get values: "fc.weight",
//   "fc.bias"
//
// A constructor only declares parameters (name, shape, initialiser); Initialize makes their values
// as a pure function of (seed, full name, element), so that any layout or rank draws the same ones.
// A full name is the path from the root, whether parents were registered before their children or
// after them. A module that several register, or one under several names, has the name of its first
// registration, and its parameters are there once.
// InitializeLazily makes each of these values, bit for bit, when somebody first reads it: a plugin
// that keeps a part of every parameter takes its parts and drops the rest, one parameter at a time,
// so that no rank needs memory for the model.
#ifndef APOGEE_NN_MODULE_H_
#define APOGEE_NN_MODULE_H_

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include "apogee/autograd/parameter.h"
#include "apogee/core/lifetime.h"
#include "apogee/core/rng.h"
#include "apogee/core/sequence_part.h"

namespace apogee::nn {

using autograd::Parameter;
using autograd::ParameterPtr;

// How a parameter gets its first value.
struct Init {
  enum class Kind { kConstant, kNormal, kUniform } kind = Kind::kConstant;
  // kConstant: value a. kNormal: mean a, standard deviation b. kUniform: (a, b].
  double a = 0;
  double b = 0;

  static Init Constant(double value) { return {Kind::kConstant, value, 0}; }
  static Init Normal(double mean, double std) { return {Kind::kNormal, mean, std}; }
  static Init Uniform(double low, double high) { return {Kind::kUniform, low, high}; }
};

struct InitOptions {
  uint64_t seed = 0;
  DType dtype = DType::kF32;
};

class Module {
 public:
  using Hook = std::function<void(Module&)>;
  using InputHook = std::function<void(Module&, const Tensor& input)>;

  Module() = default;
  virtual ~Module();
  Module(const Module&) = delete;
  Module& operator=(const Module&) = delete;

  virtual Tensor Forward(const Tensor& x) = 0;
  // Forward between its hooks: what callers use.
  Tensor operator()(const Tensor& x);

  // What is computed instead of Forward, between the same hooks; hooks and parameters stay. A
  // tensor-parallel plan makes layers run over a group so. `input`, if there is one, makes of x
  // what `forward` gets, outside of the module's part of backward: modules that are given the same
  // x can share what it makes.
  using ForwardFunction = std::function<Tensor(const Tensor& x)>;
  // Throws Error when it has been replaced before.
  void ReplaceForward(ForwardFunction forward, ForwardFunction input = nullptr);
  // What runs around Forward, or around what has replaced it or will: that is `forward`.
  using ForwardWrapper = std::function<Tensor(const Tensor& x, const ForwardFunction& forward)>;
  // Throws Error when there is a wrapper already.
  void WrapForward(ForwardWrapper wrapper);
  bool has_wrapped_forward() const { return wrapper_ != nullptr; }

  // Every parameter of the tree once, in order of registration; tied ones under their owner's name.
  std::vector<ParameterPtr> Parameters() const;
  // The parameter of that full name ("transformer.wte.weight"), or nullptr.
  ParameterPtr FindParameter(const std::string& name) const;
  // This module and all below it once, parents first.
  std::vector<Module*> Modules();
  // The same with their names below this module ("transformer.h.0.attn"), whose own is "".
  std::vector<std::pair<std::string, Module*>> NamedModules();
  // The name below the root of the tree that this module is in; a root's is "".
  std::string full_name() const;
  int64_t num_parameters() const;

  // Gives every parameter that has no value one, and seeds the random generators. Throws Error when
  // two parameters have one full name.
  void Initialize(const ContextPtr& context, const InitOptions& options = {});
  // The same without the memory: every such parameter has its value from now on (optimizers can be
  // made, weights loaded), and makes it when it is read (Parameter::is_lazy). What reads all of
  // them - a forward, saving, plugins that do not cut parameters - makes the whole model.
  void InitializeLazily(const ContextPtr& context, const InitOptions& options = {});
  // Converts every parameter to a floating dtype; gradients become absent.
  void To(DType dtype);

  // Training mode switches dropout on. On after construction.
  void Train(bool training = true);
  bool is_training() const { return training_; }
  // The random state of the tree (dropout), one generator shared by all its modules; checkpoints
  // save it.
  Generator& generator() { return *generator_; }
  // Numbers the random masks of the forward that follows by the place of `inputs`' samples, if it
  // is known (SamplePlaceOf). Calling a model does so by itself; for who calls parts of it.
  void BeginBatch(const Tensor& inputs);
  // Which tokens of each sequence the tensors of this module are; by default all. A plan that cuts
  // sequences over ranks says so, and what depends on a token's place in its sequence asks.
  const SequencePart& sequence_part() const { return sequence_part_; }
  void set_sequence_part(const SequencePart& part) { sequence_part_ = part; }

  // Hooks run around Forward, and around this module's part of backward: pre-backward when the
  // gradient of its output is complete, post-backward when that of its input is (at the end of
  // backward where the input needs none). They run on the rank's thread, in the order they were
  // added.
  void AddPreForwardHook(InputHook hook) { pre_forward_.push_back(std::move(hook)); }
  void AddPostForwardHook(Hook hook) { post_forward_.push_back(std::move(hook)); }
  void AddPreBackwardHook(Hook hook) { pre_backward_.push_back(std::move(hook)); }
  void AddPostBackwardHook(Hook hook) { post_backward_.push_back(std::move(hook)); }
  // Throws Error, with both modules, when two parameters of the tree have one full name.
  void CheckNames() const;
  // From now on Register and RegisterParameter throw Error in the whole tree: its parameters have
  // been taken, as they are called now, and a new one would not be trained. Booster::boost calls
  // this.
  void CloseTree();
  // Expires when this module is destroyed: for who points to it.
  std::weak_ptr<const void> lifetime() const { return lifetime_.token(); }
  // Of this module alone.
  bool has_hooks() const {
    return !pre_forward_.empty() || !post_forward_.empty() || !pre_backward_.empty() ||
           !post_backward_.empty();
  }

 protected:
  // Declares a parameter of this module. Throws Error when it has one of that name, or after
  // CloseTree.
  ParameterPtr RegisterParameter(const std::string& name, const Shape& shape, const Init& init);
  // Adds a child under `name`; returns it. A tied weight is simply held by two modules and
  // registered by one of them, its owner. Throws Error when there is a child of that name, when the
  // child contains this module, or after CloseTree.
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
  };
  // Modules of several registrations that a walk has met.
  using Met = std::unordered_set<const Module*>;

  // What `make` makes, or will, of each parameter that has no value.
  using GiveValue = std::function<void(Parameter& parameter, std::function<Tensor()> make)>;
  void GiveValues(const ContextPtr& context, const InitOptions& options, const GiveValue& give);
  Tensor Compute(const Tensor& input);
  void RegisterModule(const std::string& name, const std::shared_ptr<Module>& child);
  void ForEach(const std::function<void(const Module&)>& fn) const;
  void ForEach(const std::function<void(const Module&)>& fn, Met& met) const;
  void AddNamed(const std::string& name, const Module& root, Met& met,
                std::vector<std::pair<std::string, Module*>>& result);
  bool IsNew(Met& met) const;
  // Nothing when this module's first registrations do not lead to `root` (null: to any).
  std::optional<std::string> NameBelow(const Module* root) const;
  void Rename();
  void CheckOpen(const std::string& what, const std::string& name) const;

  std::vector<Declared> parameters_;
  std::vector<std::pair<std::string, std::shared_ptr<Module>>> children_;
  Module* parent_ = nullptr;  // of the first registration
  std::string name_;          // there
  int registrations_ = 0;
  bool closed_ = false;
  std::shared_ptr<Generator> generator_ = std::make_shared<Generator>();
  bool training_ = true;
  Lifetime lifetime_;
  SequencePart sequence_part_;
  ForwardFunction forward_;  // null: Forward
  ForwardFunction input_;
  ForwardWrapper wrapper_;
  std::vector<InputHook> pre_forward_;
  std::vector<Hook> post_forward_, pre_backward_, post_backward_;
};

}  // namespace apogee::nn

#endif  // APOGEE_NN_MODULE_H_
