// SPDX-License-Identifier: Apache-2.0

// Parameter: a named leaf of the graph that keeps its gradient.
//
//   Parameter w("w", Tensor::Full({4, 4}, DType::kF32, 0.5, context));
//   Tensor loss = Mean(Mul(w.value(), w.value()));
//   Backward(loss);                                   // adds to w's gradient
//   Tensor grad = w.grad();                           // w's shape, of grad_dtype()
//   w.zero_grad();                                    // absent again
//
// A gradient is absent or present. Absent is not zero: an optimizer skips the parameter.
//
// A value can be lazy: its dtype and context are known, and the first read makes it. A plugin may
// shard a parameter (set_part), release its value between reads (Release), or say that other ranks
// hold all of it (GiveAway).
//
// Hooks run inside backward, on the rank's thread, as soon as this backward call has added its last
// contribution to the gradient. Data parallelism starts its all-reduces there, and fused optimizers
// update there.
//
// Misuse throws Error with the parameter's name.
#ifndef APOGEE_AUTOGRAD_PARAMETER_H_
#define APOGEE_AUTOGRAD_PARAMETER_H_

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "apogee/autograd/node.h"

namespace apogee::autograd {

// A value that is made when it is first read: `make` returns it in this dtype and context.
struct LazyValue {
  DType dtype = DType::kF32;
  ContextPtr context;
  std::function<Tensor()> make;
};

class Parameter {
 public:
  using Hook = std::function<void(Parameter&)>;

  // Without a value: a module declares its parameters, then Initialize or a loader sets the values.
  Parameter(std::string name, const Shape& shape);
  Parameter(std::string name, Tensor value, bool requires_grad = true);
  ~Parameter();
  Parameter(const Parameter&) = delete;
  Parameter& operator=(const Parameter&) = delete;

  const std::string& name() const { return name_; }
  void set_name(std::string name) { name_ = std::move(name); }
  const Shape& shape() const { return shape_; }
  // Also true for a lazy or a released value.
  bool has_value() const { return value_.defined() || is_released() || is_lazy(); }
  // Of the value, without making a lazy one; of a released parameter, of data(). Throw Error if
  // there is no value.
  DType dtype() const { return is_lazy() ? lazy_.dtype : data().dtype(); }
  ContextPtr context() const { return is_lazy() ? lazy_.context : data().context(); }
  // The value as a leaf of the graph. Makes a lazy value and fetches a released one. Throws Error
  // if there is no value.
  const Tensor& value() const;
  // The elements outside of any graph, for optimizers, loaders and collectives to read and write.
  // For a released parameter, only the elements that were kept.
  Tensor data() const { return is_released() ? rest_ : value().Detach(); }
  // Replaces the value by one of the same shape; the gradient stays. Graphs that were recorded
  // before keep the old value.
  void set_value(Tensor value);
  // Replaces the value by one that takes no memory until value() or data() is called. If `make`
  // throws, that call throws the same, and the next call tries again. set_value replaces a lazy
  // value without making it.
  void set_lazy_value(LazyValue lazy);
  bool is_lazy() const { return lazy_.make != nullptr; }
  // Replaces the value by this rank's shard of it, of any shape. The gradient becomes absent.
  void set_part(Tensor part);
  // Whether the value is only a part of what the model declared: other ranks hold the rest.
  bool is_part() const { return is_part_ || is_released(); }
  // Frees the value's memory, except for `rest` [n], some of its elements; the shape stays. The
  // next read of the value runs `fetch`, which must call set_value with the whole value, or throw.
  void Release(Tensor rest, std::function<void()> fetch);
  bool is_released() const { return rest_.defined(); }
  // Frees the value for good: other ranks hold all of it. `none`, an empty tensor [0], keeps its
  // dtype and context. Reading the value throws Error with `where`, which names the holder.
  void GiveAway(Tensor none, const std::string& where);
  // Whether other ranks hold all of the value (GiveAway).
  bool is_elsewhere() const { return is_elsewhere_; }
  // `hook` runs once, before the next read of the value; a plugin that fetches values in the
  // background waits there. nullptr removes it.
  void set_before_read(std::function<void()> hook) { before_read_ = std::move(hook); }

  bool requires_grad() const { return requires_grad_; }
  // false freezes the parameter: it gets no gradient, and an optimizer skips it.
  void set_requires_grad(bool requires_grad);
  // The dtype in which gradients are computed and accumulated. Default: the value's dtype.
  DType grad_dtype() const { return grad_dtype_; }
  void set_grad_dtype(DType dtype);

  bool has_grad() const { return grad_.defined(); }
  const Tensor& grad() const { return grad_; }
  // An undefined tensor makes the gradient absent.
  void set_grad(Tensor grad);
  // Makes the gradient absent. With set_to_none = false, fills a present gradient with zeros.
  void zero_grad(bool set_to_none = true);

  // If not empty, a plugin holds the finished gradient, and grad() does not have it. The text names
  // the place and the remedy. Code that reads gradients from parameters must throw Error with it.
  const std::string& grad_keeper() const { return grad_keeper_; }
  // `on_zero_grad` runs with every zero_grad, to clear the gradient that the plugin holds.
  using OnZeroGrad = std::function<void(bool set_to_none)>;
  void set_grad_keeper(std::string keeper, OnZeroGrad on_zero_grad = nullptr) {
    grad_keeper_ = std::move(keeper);
    on_zero_grad_ = std::move(on_zero_grad);
  }

  // Adds to the gradient; backward calls it. Takes the tensor over if nothing else owns it.
  void AccumulateGrad(Tensor grad);
  // Hooks run in the order in which they were added. Returns a handle for RemoveGradHook.
  int AddGradHook(Hook hook);
  void RemoveGradHook(int handle);
  // Sets the hook that takes the finished gradient. It runs after all hooks of AddGradHook, for as
  // long as the returned handle lives; the parameter must outlive the handle. Throws Error if there
  // is a final hook already.
  [[nodiscard]] std::shared_ptr<void> SetFinalGradHook(Hook hook);
  void RunGradHooks();
  bool has_grad_hooks() const { return !hooks_.empty() || final_hook_ != nullptr; }

 private:
  void MakeLeaf();
  void MakeLazyValue();

  std::string name_;
  Shape shape_;
  Tensor value_;
  LazyValue lazy_;  // if it has a `make`, value_ is undefined
  Tensor rest_;     // defined while released; then value_ is undefined
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

// The node where a parameter's gradients arrive. A graph may keep it longer than the parameter.
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
