// SPDX-License-Identifier: Apache-2.0

#include "apogee/optim/param_view.h"

#include <utility>

namespace apogee::optim {
namespace {

Tensor CheckValue(const std::string& name, const Tensor& value) {
  APOGEE_CHECK(value.defined(), "parameter \"", name, "\": the optimizer got an undefined value");
  APOGEE_CHECK(IsFloat(value.dtype()), "parameter \"", name,
               "\": an optimizer needs a floating dtype, got ", DTypeName(value.dtype()),
               "; set_requires_grad(false) does not help here: leave it out of the groups");
  APOGEE_CHECK(value.is_contiguous(), "parameter \"", name,
               "\": an optimizer needs a contiguous value; pass value.Contiguous() to set_value");
  return value.Detach();
}

}  // namespace

ParamView::ParamView(autograd::ParameterPtr parameter) : parameter_(std::move(parameter)) {
  APOGEE_CHECK(parameter_ != nullptr, "optimizer: a parameter is null");
  name_ = parameter_->name();
  APOGEE_CHECK(!parameter_->is_part(), "parameter \"", name_,
               "\" has been cut by a plugin, and what this rank holds is a part of it; make the "
               "optimizer before boost, which binds it to the parts");
  layout_ = Layout(parameter_->shape());
}

ParamView::ParamView(std::string name, Tensor value, Layout layout) : name_(std::move(name)) {
  BindShard(std::move(value), std::move(layout));
}

void ParamView::BindShard(Tensor value, Layout layout) {
  APOGEE_CHECK(!shard_.defined(), "parameter \"", name_,
               "\": is bound to a shard already; an optimizer can be boosted once");
  value = CheckValue(name_, value);
  APOGEE_CHECK(value.numel() >= layout.local_numel(), "parameter \"", name_, "\": a shard of ",
               value.numel(), " elements cannot hold the ", layout.local_numel(), " of its layout");
  APOGEE_CHECK(parameter_ == nullptr || layout_.logical_shape() == layout.logical_shape(),
               "parameter \"", name_, "\": shape ", layout_.logical_shape(),
               ", but the layout is of ", layout.logical_shape());
  shard_ = std::move(value);
  CutStates(TakeLayout(std::move(layout)));
}

void ParamView::BindParameter(Layout layout) {
  APOGEE_CHECK(!sharded(), "parameter \"", name_,
               "\": is bound to a part already; an optimizer can be boosted once");
  APOGEE_CHECK(parameter_->data().numel() >= layout.local_numel(), "parameter \"", name_,
               "\": its value of ", parameter_->data().numel(), " elements cannot hold the ",
               layout.local_numel(), " of its layout");
  bound_parameter_ = true;
  CutStates(TakeLayout(std::move(layout)));
}

Layout ParamView::TakeLayout(Layout layout) {
  num_replicas_ *= layout.num_replicas();
  layout = Layout(layout.logical_shape(),
                  {.segments = {layout.segments().begin(), layout.segments().end()},
                   .cut_multiple = layout.cut_multiple()});
  return std::exchange(layout_, std::move(layout));
}

void ParamView::CutStates(const Layout& from) {
  if (master_.defined()) master_ = CutToLayout(master_, from);
  for (NamedState& state : states_) {
    if (state.kind == StateKind::kElementwise || state.kind == StateKind::kCodes) {
      state.value = CutToLayout(state.value, from);
    }
  }
}

void ParamView::set_partial_grad(int num_ranks) {
  APOGEE_CHECK(!shard_.defined(), "parameter \"", name_,
               "\": is bound to a shard, whose gradient has been reduced already");
  num_replicas_ = num_replicas_ / num_addends_ * num_ranks;
  num_addends_ = num_ranks;
}

Tensor ParamView::CutToLayout(const Tensor& tensor, const Layout& from) const {
  const Tensor cut =
      Tensor::Zeros(shape(), tensor.dtype(), state_context(), MemoryCategory::kOptimizerState);
  if (cut.context()->is_dry()) return cut;
  const Tensor source = tensor.View({tensor.numel()}), target = cut.View({cut.numel()});
  ForEachCommonRun(from, layout_, [&](int64_t from_begin, int64_t to_begin, int64_t count) {
    target.Slice(0, to_begin, count).CopyFrom(source.Slice(0, from_begin, count));
  });
  return cut;
}

void ParamView::MoveTo(Tensor value, const ContextPtr& context) {
  APOGEE_CHECK(is_shard() && value.shape() == shard_.shape() && value.dtype() == shard_.dtype(),
               "parameter \"", name_, "\": cannot move to ", DTypeName(value.dtype()), " ",
               value.shape());
  const auto move = [&context](Tensor& tensor, MemoryCategory category) {
    if (!tensor.defined() || tensor.context() == context) return;
    const Tensor moved = Tensor::Empty(tensor.shape(), tensor.dtype(), context, category);
    moved.CopyFrom(tensor);
    tensor = moved;
  };
  move(master_, MemoryCategory::kOptimizerState);
  for (NamedState& state : states_) move(state.value, MemoryCategory::kOptimizerState);
  move(grad_, MemoryCategory::kGradient);
  shard_ = value.Detach();
  state_context_ = context;
}

Tensor ParamView::value() const {
  return shard_.defined() ? shard_ : CheckValue(name_, parameter_->value());
}

Tensor ParamView::grad() const {
  const Tensor& grad = grad_handle();
  APOGEE_CHECK(grad.defined(), "parameter \"", name_, "\": the gradient is absent");
  APOGEE_CHECK(grad.numel() >= layout_.local_numel() && IsFloat(grad.dtype()), "parameter \"",
               name_, "\": needs a floating gradient of ", layout_.local_numel(), " elements, got ",
               DTypeName(grad.dtype()), " ", grad.shape(),
               parameter_ != nullptr && parameter_->is_part() && !sharded()
                   ? "; a plugin has cut the parameter since this optimizer was made, and boost "
                     "did not get this one: make it a group of the optimizer that is boosted"
                   : "");
  APOGEE_CHECK(grad.device() == value().device(), "parameter \"", name_, "\": on ",
               value().device().ToString(), ", its gradient on ", grad.device().ToString());
  return grad.Detach().Contiguous();
}

void ParamView::set_grad(Tensor grad) {
  APOGEE_CHECK(shard_.defined(), "parameter \"", name_,
               "\": its gradient is the Parameter's; call Parameter::set_grad");
  grad_ = std::move(grad);
}

void ParamView::zero_grad(bool set_to_none) {
  if (parameter_ != nullptr) parameter_->zero_grad(set_to_none);
  if (set_to_none) {
    grad_ = Tensor();
  } else if (grad_.defined()) {
    grad_.Fill(0);
  }
}

DType ParamView::compute_dtype() const { return ComputeDType(dtype()); }

Tensor ParamView::master() {
  if (!needs_master()) {
    master_ = Tensor();
    return value();
  }
  if (!master_.defined()) {
    master_ =
        Tensor::Empty(shape(), compute_dtype(), state_context(),
                      keep_master_ ? MemoryCategory::kOptimizerState : MemoryCategory::kWorkspace);
    master_.CopyFrom(value());
  }
  return master_;
}

void ParamView::set_master(Tensor master) {
  APOGEE_CHECK(needs_master(), "parameter \"", name_, "\": a ", DTypeName(dtype()),
               " value is its own master");
  APOGEE_CHECK(
      master.dtype() == compute_dtype() && master.shape() == shape() && master.is_contiguous(),
      "parameter \"", name_, "\": needs contiguous ", DTypeName(compute_dtype()),
      " master weights of ", shape(), ", got ", DTypeName(master.dtype()), " ", master.shape());
  master_ = master.Detach();
  master_.storage()->set_category(MemoryCategory::kOptimizerState);
}

void ParamView::RefreshMaster() {
  if (master_.defined()) master_.CopyFrom(value());
}

Tensor ParamView::AddState(const StateSpec& spec) {
  if (Tensor found = state(spec.name); found.defined()) return found;
  states_.push_back({spec.name, spec.kind,
                     Tensor::Zeros(StateShape(spec), StateDType(spec.kind), state_context(),
                                   MemoryCategory::kOptimizerState)});
  return states_.back().value;
}

DType ParamView::StateDType(StateKind kind) const {
  return IsCodes(kind) ? DType::kU8 : compute_dtype();
}

Tensor ParamView::state(const std::string& name) const {
  for (const NamedState& state : states_) {
    if (state.name == name) return state.value;
  }
  return {};
}

Shape ParamView::StateShape(const StateSpec& spec) const {
  const MatrixView matrix = layout_.matrix();
  switch (spec.kind) {
    case StateKind::kElementwise:
    case StateKind::kCodes:
      return shape();
    case StateKind::kRow:
      return {matrix.batch * matrix.rows};
    case StateKind::kColumn:
      return {matrix.batch * matrix.cols};
    case StateKind::kScalar:
      return {};
    default:
      return spec.shape;
  }
}

}  // namespace apogee::optim
