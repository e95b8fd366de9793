// SPDX-License-Identifier: Apache-2.0

#include "apogee/nn/parallel/recurrent.h"

#include "apogee/autograd/functions/recurrent.h"
#include "apogee/nn/parallel/functions.h"
#include "apogee/nn/parallel/linear.h"

namespace apogee::nn::parallel {
namespace {

// The states that the ranks hold, as one: forward gathers, backward sums and slices.
autograd::StateParts PartsOver(const comm::GroupPtr& group) {
  return {
      .join = [group](const Tensor& own) { return GatherLastDim(own, group); },
      .own_grad =
          [group](const Tensor& grad) {
            const int64_t units = grad.size(1) / group->size();
            return ReduceFromGroup(grad, group).Slice(1, group->rank() * units, units).Contiguous();
          }};
}

Tensor OwnUnits(const Tensor& state, const comm::GroupPtr& group) {
  return state.defined() ? SplitLastDim(state, group) : state;
}

Recurrent::LayerResult RunLayer(const Recurrent::Layer& layer, const Recurrent::LayerInput& in,
                                int num_gates, bool gather, const comm::GroupPtr& group) {
  const Tensor gates =
      ColumnLinear(in.x, layer.weight_ih->value(), autograd::ValueOf(layer.bias_ih));
  const Tensor weight = layer.weight_hh->value(), bias = autograd::ValueOf(layer.bias_hh);
  const Tensor h = OwnUnits(in.h, group);
  Recurrent::LayerResult result;
  Tensor own;
  if (num_gates == 3) {
    own = autograd::Gru(gates, weight, bias, h, PartsOver(group));
  } else {
    const autograd::LstmResult lstm =
        autograd::Lstm(gates, weight, bias, h, OwnUnits(in.c, group), PartsOver(group));
    own = lstm.y;
    if (in.wants_state) result.c = GatherLastDim(lstm.c, group);
  }
  if (in.wants_state) {
    const Tensor last = own.Detach().Slice(0, own.size(0) - 1, 1);
    result.h = GatherLastDim(last.View({own.size(1), own.size(2)}), group);
  }
  result.y = gather ? GatherLastDim(own, group) : own;
  return result;
}

}  // namespace

Tensor UnitParallelRecurrent(Recurrent& module, const Tensor& copy, const comm::GroupPtr& group,
                             bool gather) {
  const auto run = [&](const Recurrent::Layer& layer, const Recurrent::LayerInput& input) {
    Recurrent::LayerInput in = input;
    if (&layer != &module.layers().front()) in.x = CopyToGroup(in.x, group);
    const bool last = &layer == &module.layers().back();
    return RunLayer(layer, in, module.num_gates(), gather || !last, group);
  };
  return module.ForwardWith(run, copy);
}

}  // namespace apogee::nn::parallel
