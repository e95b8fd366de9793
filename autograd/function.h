// SPDX-License-Identifier: Apache-2.0

// A differentiable function of your own, with any number of inputs and outputs:
//
//   struct ScaledSquare {                                // y = factor * x^2
//     double factor;                                     // what is no tensor is a field
//     Tensors Forward(const Tensors& in, Tensors& saved) const {
//       saved = {in[0]};
//       return {ops::Scale(ops::Mul(in[0], in[0]), factor)};
//     }
//     Tensors Backward(const Tensors& grads, const Tensors& saved) const {
//       return {ops::Scale(ops::Mul(grads[0], saved[0]), 2 * factor)};
//     }
//   };
//   Tensor y = autograd::Apply(ScaledSquare{3}, {x})[0];
//
// Forward gets tensors outside of any graph, and puts what Backward needs into `saved`: inputs,
// results or anything else. Recompute and offload apply to it. Backward gets one gradient per
// output, zeros for an output that took no part in the loss. It returns one gradient per input, of
// the input's shape and a floating dtype; an undefined one counts as zeros. Errors begin with the
// function's kName, if it has one. GradCheck compares Backward with Forward.
#ifndef APOGEE_AUTOGRAD_FUNCTION_H_
#define APOGEE_AUTOGRAD_FUNCTION_H_

#include <concepts>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "apogee/autograd/grad_mode.h"
#include "apogee/autograd/node.h"
#include "apogee/autograd/saved_tensor.h"

namespace apogee::autograd {

using Tensors = std::vector<Tensor>;

template <typename F>
concept Function = requires(const F& f, const Tensors& tensors, Tensors& saved) {
  { f.Forward(tensors, saved) } -> std::same_as<Tensors>;
  { f.Backward(tensors, tensors) } -> std::same_as<Tensors>;
};

namespace internal {

// The part of a function's node that does not depend on the function.
class FunctionNodeBase : public Node {
 public:
  FunctionNodeBase(const char* name, const Tensors& inputs, const Tensors& outputs,
                   const Tensors& saved);
  const char* name() const override { return name_; }
  Tensors Backward(Tensors grads, const BackwardContext& context) override;
  void ReleaseSaved() override;

 private:
  virtual Tensors Run(const Tensors& grads, const Tensors& saved) const = 0;

  // What zeros need of an output, and checks of an input.
  struct Like {
    Shape shape;
    DType dtype;
    ContextPtr context;
  };
  const char* name_;
  std::vector<Like> inputs_, outputs_;
  std::vector<SavedTensor> saved_;
};

template <Function F>
class FunctionNode : public FunctionNodeBase {
 public:
  FunctionNode(F f, const char* name, const Tensors& inputs, const Tensors& outputs,
               const Tensors& saved)
      : FunctionNodeBase(name, inputs, outputs, saved), f_(std::move(f)) {}

 private:
  Tensors Run(const Tensors& grads, const Tensors& saved) const override {
    return f_.Backward(grads, saved);
  }

  F f_;
};

template <typename F>
const char* NameOfFunction() {
  if constexpr (requires { F::kName; }) return F::kName;
  return "function";
}

// The inputs outside of any graph. Throws Error if one is undefined or sealed.
Tensors DetachedInputs(const char* name, const Tensors& inputs);
// Throws Error if there is no output or an undefined one.
void CheckOutputs(const char* name, const Tensors& outputs);

}  // namespace internal

// Calls f.Forward, and records f for backward if an input needs a gradient.
template <Function F>
Tensors Apply(F f, const Tensors& inputs) {
  const char* const name = internal::NameOfFunction<F>();
  Tensors outputs, saved;
  {
    const NoGradGuard no_grad;
    outputs = f.Forward(internal::DetachedInputs(name, inputs), saved);
  }
  internal::CheckOutputs(name, outputs);
  // An input that is returned as it is becomes a tensor of its own.
  for (Tensor& output : outputs) output = output.Detach();
  if (!NeedsGrad(inputs)) return outputs;
  const auto node =
      std::make_shared<internal::FunctionNode<F>>(std::move(f), name, inputs, outputs, saved);
  Attach(outputs[0], node, inputs);
  for (size_t i = 1; i < outputs.size(); ++i) AttachOutput(outputs[i], node, static_cast<int>(i));
  return outputs;
}

// GradCheck compares a function's gradients with central differences, for tests of your own
// functions:
//
//   const GradCheckResult result = autograd::GradCheck(
//       [](const Tensors& in) { return autograd::Apply(ScaledSquare{3}, in)[0]; }, {x});
//   EXPECT_TRUE(result.ok()) << result.ToString();
//
// The inputs are f64 and small: the function runs twice per element. Its result, of any shape, is
// multiplied by fixed random numbers and summed, so that every element of the Jacobian counts. The
// function must be smooth near the inputs, and give the same result for the same inputs.
struct GradCheckOptions {
  // The largest error, as a part of the input's largest gradient (or of 1 if that is larger).
  double tolerance = 2e-7;
  // The differences' step, as a part of the element (or of 1 if that is larger).
  double step = 1e-5;
};

// The element with the largest error.
struct GradCheckResult {
  size_t input = 0;
  int64_t element = 0;
  double gradient = 0;    // by backward
  double difference = 0;  // by central differences
  double error = 0;       // relative, as GradCheckOptions::tolerance
  double tolerance = 0;
  std::string failure = {};  // an input without a gradient

  bool ok() const { return failure.empty() && error <= tolerance; }
  std::string ToString() const;
};

// Throws Error if an input is not f64, or if the function throws it.
GradCheckResult GradCheck(const std::function<Tensor(const std::vector<Tensor>&)>& fn,
                          const std::vector<Tensor>& inputs, const GradCheckOptions& options = {});

}  // namespace apogee::autograd

#endif  // APOGEE_AUTOGRAD_FUNCTION_H_
