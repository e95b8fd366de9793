// SPDX-License-Identifier: Apache-2.0

// Parameter: a named leaf of the graph whose gradient is kept, absent or present.
//
//   Parameter w("w", Tensor::Zeros({4, 4}, DType::kF32, context));
//   Tensor loss = ...functions of w.value()...;
//   Backward(loss);
//   if (w.has_grad()) use(w.grad());
//   w.zero_grad();                                    // absent again: absent is not zero
//
// A value can be lazy: known to be there, with its dtype and where, and made when somebody reads
// it.
//
// Hooks run inside backward, on the rank's thread, at the moment the last contribution of this
// backward call to the gradient has been added: that is where data parallelism launches its buckets
// and fused optimizers update.
#ifndef APOGEE_AUTOGRAD_PARAMETER_H_
#define APOGEE_AUTOGRAD_PARAMETER_H_

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "apogee/autograd/node.h"

namespace apogee::autograd {

// A value that is made when it is first read. `make` returns it, of this dtype, in this context.
struct LazyValue {
  DType dtype = DType::kF32;
  ContextPtr context;
  std::function<Tensor()> make;
};

class Parameter {
 public:
  using Hook = std::function<void(Parameter&)>;

  // Without a value yet: a module declares its parameters, Initialize or a loader fills them in.
  Parameter(std::string name, const Shape& shape);
  Parameter(std::string name, Tensor value, bool requires_grad = true);
  ~Parameter();
  Parameter(const Parameter&) = delete;
  Parameter& operator=(const Parameter&) = delete;

  const std::string& name() const { return name_; }
  void set_name(std::string name) { name_ = std::move(name); }
  const Shape& shape() const { return shape_; }
  // True for a lazy one, too.
  bool has_value() const { return value_.defined() || is_released() || is_lazy(); }
  // Of the value, without making a lazy one; of a released parameter, of data(). Throw Error when
  // there is none.
  DType dtype() const { return is_lazy() ? lazy_.dtype : data().dtype(); }
  ContextPtr context() const { return is_lazy() ? lazy_.context : data().context(); }
  // The value as a leaf of the graph; makes a lazy one. Throws Error when there is none.
  const Tensor& value() const;
  // The elements outside of any graph: what optimizers, loaders and collectives read and write. Of
  // a released parameter: those that are left.
  Tensor data() const { return is_released() ? rest_ : value().Detach(); }
  // Replaces the value (same shape); the gradient stays. A graph recorded before keeps the old
  // value.
  void set_value(Tensor value);
  // Replaces the value by one that takes no memory until value() or data() is called; that call
  // throws what `make` throws, and the next one tries again. set_value takes its place unmade.
  void set_lazy_value(LazyValue lazy);
  bool is_lazy() const { return lazy_.make != nullptr; }
  // Replaces the value by one of any shape, a part of what it was (a wrapper has cut it); the
  // gradient becomes absent.
  void set_part(Tensor part);
  // The value is a part of what the model declared: other ranks hold the rest.
  bool is_part() const { return is_part_ || is_released(); }
  // Gives the value's memory back, but for `rest`, [n], some of its elements; the shape stays. A
  // read of the value runs `fetch`, which calls set_value with the whole one, or throws.
  void Release(Tensor rest, std::function<void()> fetch);
  bool is_released() const { return rest_.defined(); }
  // Release for good: other ranks hold all of the value, of which `none`, [0], says the dtype and
  // context here. A read throws Error with `where`: who holds it.
  void GiveAway(Tensor none, const std::string& where);
  bool is_elsewhere() const { return is_elsewhere_; }
  // Runs once, before the next read of the value: a wrapper that fetches values in the background
  // waits there. nullptr takes it back.
  void set_before_read(std::function<void()> hook) { before_read_ = std::move(hook); }

  bool requires_grad() const { return requires_grad_; }
  // false: frozen. Functions of it record nothing for it, and an optimizer skips it.
  void set_requires_grad(bool requires_grad);
  // The dtype gradients are computed and accumulated in; default the value's own.
  DType grad_dtype() const { return grad_dtype_; }
  void set_grad_dtype(DType dtype);

  bool has_grad() const { return grad_.defined(); }
  const Tensor& grad() const { return grad_; }
  // An undefined tensor makes the gradient absent.
  void set_grad(Tensor grad);
  // Absent (set_to_none) or, if it is present, zero.
  void zero_grad(bool set_to_none = true);

  // Not empty: who keeps this parameter's finished gradient instead, and what to use there; what
  // reads gradients from parameters refuses with it rather than find none.
  const std::string& grad_keeper() const { return grad_keeper_; }
  // `on_zero_grad` runs with every zero_grad: the gradient that is kept elsewhere goes along.
  using OnZeroGrad = std::function<void(bool set_to_none)>;
  void set_grad_keeper(std::string keeper, OnZeroGrad on_zero_grad = nullptr) {
    grad_keeper_ = std::move(keeper);
    on_zero_grad_ = std::move(on_zero_grad);
  }

  // Adds to the gradient; called by backward. The tensor is taken over when nothing else owns it.
  void AccumulateGrad(Tensor grad);
  // Returns a handle for RemoveGradHook. Hooks run in the order they were added.
  int AddGradHook(Hook hook);
  void RemoveGradHook(int handle);
  // `hook` runs after all of those, whenever they were added, for as long as the handle lives,
  // which the parameter must outlive: it takes the finished gradient. Throws Error when another
  // does.
  [[nodiscard]] std::shared_ptr<void> SetFinalGradHook(Hook hook);
  void RunGradHooks();
  // Whether somebody is told of gradients that arrive.
  bool has_grad_hooks() const { return !hooks_.empty() || final_hook_ != nullptr; }

 private:
  void MakeLeaf();
  void MakeLazyValue();

  std::string name_;
  Shape shape_;
  Tensor value_;
  LazyValue lazy_;  // with a `make`: then there is no value_
  Tensor rest_;     // defined while released; then there is no value
  std::function<void()> fetch_;
  mutable std::function<void()> before_read_;
  Tensor grad_;
  std::string grad_keeper_;
  OnZeroGrad on_zero_grad_;
  bool requires_grad_ = true;
  bool is_part_ = false;
  bool is_elsewhere_ = false;
  DType grad_dtype_ = DType::kF32;
  std::shared_ptr<class LeafNode> leaf_;
  std::vector<std::pair<int, Hook>> hooks_;
  int next_hook_ = 0;
  Hook final_hook_;
};

using ParameterPtr = std::shared_ptr<Parameter>;

// The node at which gradients of a parameter arrive. Outlives the parameter if a graph does.
class LeafNode : public Node {
 public:
  explicit LeafNode(Parameter* parameter) : parameter_(parameter) {}
  const char* name() const override { return "parameter"; }
  std::vector<Tensor> Backward(std::vector<Tensor> grads, const BackwardContext& context) override;
  void Forget() { parameter_ = nullptr; }

 private:
  Parameter* parameter_;
};

}  // namespace apogee::autograd

#endif  // APOGEE_AUTOGRAD_PARAMETER_H_
