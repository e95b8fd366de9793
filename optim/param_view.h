// SPDX-License-Identifier: Apache-2.0

// ParamView: what an optimizer sees of one parameter: the part of its value and gradient that this
// rank holds, where that part lies in the logical tensor, the fp32 master weights, the states, the
// step count.
//
//   ParamView view(model.Parameters()[0]);               // a whole parameter
//   view.BindShard(shard, Layout(shape, {.segments = {{0, 100}}}));   // a wrapper made shards
//   Tensor m = view.AddState("exp_avg", StateKind::kElementwise);     // zeros, in
//   view.compute_dtype()
//
// Compute dtype: f64 for f64 parameters, else f32. bf16 and f16 parameters have master weights of
// their own, made from the value at the first step; for f32 and f64 the value is the master. Misuse
// (integer or strided value, a parameter cut before, gradient of another size) throws Error.
#ifndef APOGEE_OPTIM_PARAM_VIEW_H_
#define APOGEE_OPTIM_PARAM_VIEW_H_

#include <string>
#include <utility>
#include <vector>

#include "apogee/autograd/parameter.h"
#include "apogee/comm/layout.h"
#include "apogee/comm/state_kind.h"

namespace apogee::optim {

using comm::StateKind;

struct NamedState {
  std::string name;
  StateKind kind;
  Tensor value;
};

// A state as an optimizer declares it.
struct StateSpec {
  const char* name;
  StateKind kind;
  Shape shape = {};  // of kinds that have their own (comm::HasOwnShape)
};

class ParamView {
 public:
  explicit ParamView(autograd::ParameterPtr parameter);
  // Buffers without a Parameter, for callers that bring their own gradients (set_grad).
  ParamView(std::string name, Tensor value, comm::Layout layout);

  // From now on the view works on `value` (this rank's part, then padding) instead of the
  // parameter's own elements, and takes its gradient from set_grad. Masters and element-wise states
  // that exist are cut likewise. Throws Error for a view that has been bound before.
  void BindShard(Tensor value, comm::Layout layout);

  // From now on the parameter's own elements are the part of the logical tensor that `layout` says,
  // then padding: a wrapper has cut the parameter, or other ranks hold it too. Masters and
  // element-wise states that exist are cut likewise. Throws Error for a view that was bound.
  void BindParameter(comm::Layout layout);

  const std::string& name() const { return name_; }
  // Where this rank's elements lie. Its num_replicas() is 1, whatever was bound: reductions count
  // what several ranks hold (StatBuffer), so that updates need not.
  const comm::Layout& layout() const { return layout_; }
  // How many ranks hold each element of this rank's part.
  int num_replicas() const { return num_replicas_; }
  // The value is a buffer given to the view, not the parameter's own.
  bool is_shard() const { return shard_.defined(); }
  // False for a frozen parameter: no gradient of it counts and nothing of it changes.
  bool trainable() const { return parameter_ == nullptr || parameter_->requires_grad(); }
  // nullptr for buffers.
  const autograd::ParameterPtr& parameter() const { return parameter_; }

  // True when the view was bound: then other ranks may hold parts of the tensor, and every rank
  // takes part in statistics that one rank alone would not need.
  bool sharded() const { return shard_.defined() || bound_parameter_; }

  // Whether this rank computes what is computed once for the whole tensor, and keeps the states
  // that have one keeper (GaLore's low-rank moments). Where several ranks step together, exactly
  // one of them is the owner; see owners.h.
  bool owned() const { return owned_; }
  void set_owner(bool owned) { owned_ = owned; }

  // True: the gradient is only this rank's addend of a mean over num_replicas() ranks, which hold
  // the same value each; the optimizer's statistics sum it up (Optimizer::ReducesOwnGrad).
  bool partial_grad() const { return num_addends_ > 1; }
  // The ranks that hold addends; 1: the gradient is whole again. Throws Error for a shard.
  void set_partial_grad(int num_ranks);

  // The working weights, outside of any graph. Makes a lazy value (Parameter::is_lazy).
  Tensor value() const;
  // Theirs, without making them.
  DType dtype() const { return shard_.defined() ? shard_.dtype() : parameter_->dtype(); }
  const Shape& shape() const { return shard_.defined() ? shard_.shape() : parameter_->shape(); }
  bool has_grad() const { return trainable() && grad_handle().defined(); }
  // Contiguous, one element per element of the layout. Throws Error when the size is wrong.
  Tensor grad() const;
  // Undefined: absent. Only for buffers and shards.
  void set_grad(Tensor grad);
  void zero_grad(bool set_to_none);

  DType compute_dtype() const;
  // True when the master weights are not the value itself.
  bool needs_master() const { return compute_dtype() != dtype(); }
  // The weights that an update works on: the value, or master weights (made from the value at first
  // use).
  Tensor master();
  // Takes `master` over (compute dtype, the value's shape): the fp32 weights that a cast came from.
  void set_master(Tensor master);
  // Undefined when there are no master weights yet.
  const Tensor& own_master() const { return master_; }
  // false: no master weights are kept; a step works on a copy of the value, which it rounds back
  // and drops.
  void set_keep_master(bool keep) { keep_master_ = keep; }
  bool keep_master() const { return keep_master_; }
  // The end of a step.
  void DropTemporaries() {
    if (!keep_master_) master_ = Tensor();
  }
  // Other memory takes the place of the value of a view bound to a shard: `value` has the same
  // elements, and masters, states and gradient move to `context`, where new ones are allocated too.
  void MoveTo(Tensor value, const ContextPtr& context);
  // This rank's elements of a tensor that has layout `from`, in the shape of the value; for states.
  Tensor CutToLayout(const Tensor& tensor, const comm::Layout& from) const;
  // Where masters and states are allocated; by default with the value.
  void set_state_context(ContextPtr context) { state_context_ = std::move(context); }
  ContextPtr state_context() const {
    if (state_context_ != nullptr) return state_context_;
    return shard_.defined() ? shard_.context() : parameter_->context();
  }
  // Copies the value into existing master weights: call after weights were loaded into the model.
  void RefreshMaster();

  // The state `name`; made of zeros if it is not there.
  Tensor AddState(const std::string& name, StateKind kind) {
    return AddState({name.c_str(), kind});
  }
  Tensor AddState(const StateSpec& spec);
  // Undefined when there is none.
  Tensor state(const std::string& name) const;
  const std::vector<NamedState>& states() const { return states_; }
  void ReplaceStates(std::vector<NamedState> states) { states_ = std::move(states); }
  // The shape a state of this kind has here.
  Shape StateShape(StateKind kind) const { return StateShape(StateSpec{"", kind}); }
  Shape StateShape(const StateSpec& spec) const;
  // Its dtype: u8 for codes, else compute_dtype().
  DType StateDType(StateKind kind) const;

  // Updates that this parameter has had. It does not advance without a gradient.
  int64_t step() const { return step_; }
  void set_step(int64_t step) { step_ = step; }

 private:
  // Takes over the layout of a part of what the view has been. Returns the one before.
  comm::Layout TakeLayout(comm::Layout layout);
  void CutStates(const comm::Layout& from);
  const Tensor& grad_handle() const { return shard_.defined() ? grad_ : parameter_->grad(); }

  std::string name_;
  autograd::ParameterPtr parameter_;
  Tensor shard_;  // defined for buffers and shards
  Tensor grad_;   // of a buffer or shard
  comm::Layout layout_;
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
