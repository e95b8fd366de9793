// SPDX-License-Identifier: Apache-2.0

// Parameter: a named leaf of the graph that keeps its gradient.
//
//   Parameter w("w", Tensor::Full({4, 4}, DType::kF32, 0.5, context));
//   Tensor loss = Mean(Mul(w.value(), w.value()));
//   Backward(loss);                                   // adds to w's gradient
//   Tensor grad = w.grad();                           // w's shape, of grad_dtype()
//   w.zero_grad();                                    // absent again
//
// A gradient is absent or present. Absent is not zeros: an optimizer skips the parameter.
//
// A value can be lazy: its dtype and context are known, and the first read makes it. A plugin may
// keep a value in its own way (set_storage), or keep only this rank's part of it (set_part).
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
#include "apogee/core/hooks.h"

namespace apogee::autograd {

// Where the value of a parameter is. A parameter reads its value only through its storage. To keep
// values in another way, write a storage; autograd need not change.
//
//   class MappedFile : public autograd::ParameterStorage { ... };
//   parameter.set_storage(std::make_shared<MappedFile>(path));
//   parameter.value();                                        // MappedFile::Read
//
// Parameter itself makes three: a tensor, a tensor that is only a part, and a tensor that the first
// read makes.
class ParameterStorage {
 public:
  virtual ~ParameterStorage() = default;

  // Of the value. Neither makes it nor waits for it.
  virtual DType dtype() const = 0;
  virtual ContextPtr context() const = 0;
  // The whole value, in the parameter's shape, for compute. May wait, or communicate if
  // !is_local(). Throws Error if this rank cannot read it.
  virtual Tensor Read() = 0;
  // The elements that this rank has now, for optimizers, loaders and collectives to read and
  // write. May wait; never communicates.
  virtual Tensor ReadLocal() = 0;

  // Whether Read needs no other rank.
  virtual bool is_local() const { return true; }
  // Whether ReadLocal returns all elements that the model declared.
  virtual bool is_whole() const { return true; }
  // False if other ranks have all of the value: Read throws, ReadLocal returns an empty tensor.
  virtual bool is_here() const { return true; }
  // False if the value takes no memory until Read or ReadLocal makes it.
  virtual bool is_made() const { return true; }
  // Not empty if a new tensor cannot take this value's place: the rest of a sentence that begins
  // with the parameter's name.
  virtual std::string ReplaceProblem() const { return ""; }
};

// A value that is made when it is first read: `make` returns it in this dtype and context.
struct LazyValue {
  DType dtype = DType::kF32;
  ContextPtr context;
  std::function<Tensor()> make;
};

class Parameter;

// Takes finished gradients of parameters.
class GradSink {
 public:
  virtual ~GradSink() = default;
  // This backward call has added its last contribution to parameter.grad(), which the sink may
  // take away.
  virtual void OnGradient(Parameter& parameter) = 0;
};

// The place of a finished gradient that is not in its parameter.
struct GradPlace {
  std::string where;  // and the remedy, for readers of Parameter::grad()
  // Runs with every zero_grad, to clear the gradient there. May be null.
  std::function<void(bool set_to_none)> on_zero_grad = nullptr;
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
  // Also true for a value that is lazy or that this rank does not have in memory.
  bool has_value() const { return storage_ != nullptr; }
  // Of the value; neither makes it nor waits for it. Throw Error if there is no value.
  DType dtype() const;
  ContextPtr context() const;
  // The whole value as a leaf of the graph. Makes a lazy value; communicates if !is_local(). Throws
  // Error if there is no value.
  Tensor value() const;
  // The elements that this rank has now, outside of any graph, for optimizers, loaders and
  // collectives to read and write. Makes a lazy value.
  Tensor data() const;
  // Replaces the value by one of the same shape; the gradient stays. Graphs that were recorded
  // before keep the old value. Throws Error if a plugin keeps the value: copy into data() then.
  void set_value(const Tensor& value);
  // Replaces the value by one that takes no memory until value() or data() is called. If `make`
  // throws, that call throws the same, and the next call tries again. set_value replaces a lazy
  // value without making it.
  void set_lazy_value(LazyValue lazy);
  // Replaces the value by this rank's part of it, of any shape. The gradient becomes absent.
  void set_part(const Tensor& part);
  // From now on the value is there. The shape and the gradient stay. For plugins.
  void set_storage(std::shared_ptr<ParameterStorage> storage);
  // The same for a value of another shape, which is a part. The gradient becomes absent.
  void set_storage(std::shared_ptr<ParameterStorage> storage, const Shape& shape);
  // Null: no value. To move the value to another parameter.
  const std::shared_ptr<ParameterStorage>& storage() const { return storage_; }

  // The value has not been made yet.
  bool is_lazy() const;
  // This rank has only a part of what the model declared now: other ranks have the rest.
  bool is_part() const;
  // value() needs no other rank now.
  bool is_local() const;
  // False if other ranks have all of the value: value() throws Error, and data() is empty.
  bool is_here() const;

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

  // Where the finished gradient is, if grad() does not have it; else null. Code that reads
  // gradients from parameters must throw Error with `where`.
  std::shared_ptr<const GradPlace> grad_place() const { return grad_place_.lock(); }
  // `place` counts until it is destroyed, which its owner decides.
  void set_grad_place(const std::shared_ptr<const GradPlace>& place) { grad_place_ = place; }

  // Adds to the gradient; backward calls it. Takes the tensor over if nothing else owns it.
  void AccumulateGrad(Tensor grad);
  // The handle removes the hook; a Subscription made from it does so when it is destroyed.
  HookHandle AddGradHook(Hook hook) { return hooks_.Add(std::move(hook)); }
  // `sink` takes each finished gradient, after all hooks of AddGradHook, until it is destroyed,
  // which its owner decides. Throws Error if there is another one.
  void set_grad_sink(const std::shared_ptr<GradSink>& sink);
  void RunGradHooks();
  bool has_grad_hooks() const { return !hooks_.empty() || !grad_sink_.expired(); }

 private:
  ParameterStorage& Storage() const;
  void CheckReplaceable() const;

  std::string name_;
  Shape shape_;
  std::shared_ptr<ParameterStorage> storage_;  // null: no value
  Tensor grad_;
  std::weak_ptr<const GradPlace> grad_place_;
  bool requires_grad_ = true;
  DType grad_dtype_ = DType::kF32;
  mutable std::shared_ptr<class LeafNode> leaf_;
  mutable std::shared_ptr<GraphMeta> meta_;  // of values that are read; null: make it anew
  Hooks<Parameter&> hooks_;
  std::weak_ptr<GradSink> grad_sink_;
};

using ParameterPtr = std::shared_ptr<Parameter>;

// The value of a parameter that a layer may lack, such as a bias: undefined if it is null.
inline Tensor ValueOf(const ParameterPtr& parameter) {
  return parameter != nullptr ? parameter->value() : Tensor();
}

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
