// SPDX-License-Identifier: Apache-2.0

// ParamView: one parameter as an optimizer sees it. It holds this rank's part of the value and of
// the gradient, the position of that part in the logical tensor (the layout), the fp32 master
// weights, the states and the step count.
//
//   ParamView view(model.Parameters()[0]);                            // a whole parameter
//   view.BindShard(shard, Layout(shape, {.segments = {{0, 100}}}));   // a plugin made shards
//   Tensor m = view.AddState("exp_avg", StateKind::kElementwise);     // zeros of compute_dtype()
//
// Compute dtype: f64 for f64 parameters, else f32. bf16 and f16 parameters have separate master
// weights, made from the value at the first step; for f32 and f64 the value is the master.
// Throws Error for an integer or strided value, a parameter that a plugin has already cut, and a
// gradient of another size.
#ifndef APOGEE_OPTIM_PARAM_VIEW_H_
#define APOGEE_OPTIM_PARAM_VIEW_H_

#include <string>
#include <utility>
#include <vector>

#include "apogee/autograd/parameter.h"
#include "apogee/layout/layout.h"
#include "apogee/layout/state_kind.h"

namespace apogee::optim {

struct NamedState {
  std::string name;
  StateKind kind;
  Tensor value;
};

// The declaration of a state.
struct StateSpec {
  const char* name;
  StateKind kind = StateKind::kElementwise;
  Shape shape = {};           // only for kinds whose shape is not the parameter's (HasOwnShape)
  bool made_by_rule = false;  // the step does not make it: it exists from some phase of training on
};

class ParamView {
 public:
  explicit ParamView(autograd::ParameterPtr parameter);
  // A view of a buffer without a Parameter. The caller provides gradients (set_grad).
  ParamView(std::string name, Tensor value, Layout layout);

  // Makes the view work on `value` (this rank's part, then padding) instead of the parameter's own
  // elements; the gradient then comes from set_grad. Existing masters and element-wise states are
  // cut the same way. Throws Error if the view is already bound to a shard, or for another shape.
  void BindShard(Tensor value, Layout layout);

  // Tells the view that the parameter's own elements are now the part of the logical tensor in
  // `layout`, then padding: a plugin has cut the parameter, or other ranks hold it too. Existing
  // masters and element-wise states are cut the same way. Throws Error if the view is already
  // bound.
  void BindParameter(Layout layout);

  const std::string& name() const { return name_; }
  // The position of this rank's elements in the logical tensor. Its num_replicas() is always 1:
  // StatBuffer accounts for replicas, so an update need not.
  const Layout& layout() const { return layout_; }
  // The number of ranks that hold a copy of this rank's part, this rank included.
  int num_replicas() const { return num_replicas_; }
  // Whether the value is a buffer given to the view instead of the parameter's own value.
  bool is_shard() const { return shard_.defined(); }
  // False for a frozen parameter: its gradient is ignored and nothing of it changes.
  bool trainable() const { return parameter_ == nullptr || parameter_->requires_grad(); }
  // nullptr for buffers.
  const autograd::ParameterPtr& parameter() const { return parameter_; }

  // True once the view is bound. Other ranks may then hold parts of the tensor, and every rank
  // takes part in statistics that a single rank would not need.
  bool sharded() const { return shard_.defined() || bound_parameter_; }

  // Whether this rank is the owner: it does the computations that are done once for the whole
  // tensor, and keeps the states that only one rank keeps (GaLore's low-rank moments). Of the ranks
  // that step together, exactly one owns each tensor; see owners.h.
  bool owned() const { return owned_; }
  void set_owner(bool owned) { owned_ = owned; }

  // True: the gradient is not reduced. It is this rank's addend of a mean over num_replicas() ranks
  // that hold the same value, and the statistics reduce it (ParamTraits::reduces_own_grad).
  bool partial_grad() const { return num_addends_ > 1; }
  // Sets the number of ranks that hold addends; 1: the gradient is reduced again. Throws Error for
  // a shard.
  void set_partial_grad(int num_ranks);

  // The working weights, detached from any graph. Creates the value of a lazy parameter
  // (Parameter::is_lazy).
  Tensor value() const;
  // Dtype and shape of the working weights; do not create a lazy value.
  DType dtype() const { return shard_.defined() ? shard_.dtype() : parameter_->dtype(); }
  const Shape& shape() const { return shard_.defined() ? shard_.shape() : parameter_->shape(); }
  bool has_grad() const { return trainable() && grad_handle().defined(); }
  // Contiguous, one element per element of the layout. Throws Error if it is absent or its size is
  // wrong.
  Tensor grad() const;
  // Only for buffers and shards. An undefined tensor makes the gradient absent.
  void set_grad(Tensor grad);
  void zero_grad(bool set_to_none);

  DType compute_dtype() const;
  // True if the master weights are separate from the value.
  bool needs_master() const { return compute_dtype() != dtype(); }
  // The weights that an update works on: the value, or the master weights, made from it at first
  // use.
  Tensor master();
  // Uses `master` (compute dtype, the value's shape) as master weights, for example the fp32
  // weights that the value was cast from.
  void set_master(Tensor master);
  // Undefined if there are no separate master weights (yet).
  const Tensor& own_master() const { return master_; }
  // False: keeps no master weights between steps. Each step works on a copy of the value in the
  // compute dtype, rounds it back and drops the copy.
  void set_keep_master(bool keep) { keep_master_ = keep; }
  bool keep_master() const { return keep_master_; }
  // Called at the end of a step.
  void DropTemporaries() {
    if (!keep_master_) master_ = Tensor();
  }
  // For a view bound to a shard: replaces the value by `value`, which has the same elements in
  // other memory. Masters, states and gradient move to `context`, and new ones are allocated there.
  void MoveTo(Tensor value, const ContextPtr& context);
  // Cuts this rank's elements out of a state with layout `from`. The result has the value's shape.
  Tensor CutToLayout(const Tensor& tensor, const Layout& from) const;
  // The memory in which masters and states are allocated; by default that of the value.
  void set_state_context(ContextPtr context) { state_context_ = std::move(context); }
  ContextPtr state_context() const {
    if (state_context_ != nullptr) return state_context_;
    return shard_.defined() ? shard_.context() : parameter_->context();
  }
  // Copies the value into existing master weights. Call after loading weights into the model.
  void RefreshMaster();

  // Returns the state `name`; creates it as zeros if it does not exist.
  Tensor AddState(const std::string& name, StateKind kind) {
    return AddState({name.c_str(), kind});
  }
  Tensor AddState(const StateSpec& spec);
  // Undefined if there is no such state.
  Tensor state(const std::string& name) const;
  const std::vector<NamedState>& states() const { return states_; }
  void ReplaceStates(std::vector<NamedState> states) { states_ = std::move(states); }
  // The shape of a state of this kind on this rank.
  Shape StateShape(StateKind kind) const { return StateShape(StateSpec{"", kind}); }
  Shape StateShape(const StateSpec& spec) const;
  // The dtype of a state of this kind: u8 for codes, else compute_dtype().
  DType StateDType(StateKind kind) const;

  // The number of updates of this parameter. It does not advance in a step without a gradient.
  int64_t step() const { return step_; }
  void set_step(int64_t step) { step_ = step; }

 private:
  // Sets the layout of a part of the previous layout, which it returns.
  Layout TakeLayout(Layout layout);
  void CutStates(const Layout& from);
  const Tensor& grad_handle() const { return shard_.defined() ? grad_ : parameter_->grad(); }

  std::string name_;
  autograd::ParameterPtr parameter_;
  Tensor shard_;  // defined for buffers and shards
  Tensor grad_;   // of a buffer or shard
  Layout layout_;
  int num_replicas_ = 1;
  bool bound_parameter_ = false;
  Tensor master_;
  bool keep_master_ = true;
  bool owned_ = true;
  int num_addends_ = 1;
  ContextPtr state_context_;
  std::vector<NamedState> states_;
  int64_t step_ = 0;
};

}  // namespace apogee::optim

#endif  // APOGEE_OPTIM_PARAM_VIEW_H_
