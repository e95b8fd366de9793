// SPDX-License-Identifier: Apache-2.0

#include "apogee/plugins/pipeline/stage_gradients.h"

#include <algorithm>
#include <map>
#include <utility>

namespace apogee::pipeline {

StageGradients::StageGradients(
    const nn::Module& model, const Cut& cut, const GroupOf& group_of,
    const std::function<bool(const autograd::Parameter&)>& is_of_one_chunk) {
  std::map<std::vector<int>, std::vector<autograd::ParameterPtr>> by_holders;
  for (const autograd::ParameterPtr& parameter : model.Parameters()) {
    if (!parameter->is_here()) continue;
    if (!is_of_one_chunk(*parameter)) late_.push_back(parameter.get());
    const std::vector<int>& holders = cut.HoldersOf(*parameter);
    if (holders.size() > 1) by_holders[holders].push_back(parameter);
  }
  for (auto& [holders, parameters] : by_holders) {
    tied_.push_back({group_of(holders), std::move(parameters)});
  }
}

void StageGradients::Begin() {
  // Otherwise the sum so far would be added once for each stage that has it.
  for (const Tied& tied : tied_) {
    if (!reduced_ || tied.group->rank() == 0) continue;
    for (const auto& parameter : tied.parameters) parameter->set_grad(Tensor());
  }
  reduced_ = false;
}

void StageGradients::End(BackwardPasses& passes, bool reduce) {
  if (!late_.empty()) {
    const auto add_up = [&] {
      if (!reduce) return;
      for (const Tied& tied : tied_) AddUp(tied);
    };
    passes.RunPass(add_up, {.reduce = reduce, .takes_part = [this](const autograd::Parameter& p) {
                              return std::ranges::find(late_, &p) != late_.end();
                            }});
  }
  reduced_ = reduce;
}

void StageGradients::AddUp(const Tied& tied) const {
  std::vector<float> bits;
  for (const auto& parameter : tied.parameters) bits.push_back(parameter->has_grad() ? 1.0f : 0.0f);
  const Tensor present = Tensor::FromVector<float>(bits, {static_cast<int64_t>(bits.size())},
                                                   tied.parameters[0]->context());
  tied.group->AllReduce(present, comm::ReduceOp::kMax);
  bits = present.ToVector<float>();
  for (size_t i = 0; i < bits.size(); ++i) {
    autograd::Parameter& parameter = *tied.parameters[i];
    if (bits[i] == 0) continue;
    const Tensor sum = parameter.has_grad()
                           ? parameter.grad()
                           : Tensor::Zeros(parameter.shape(), parameter.grad_dtype(),
                                           parameter.context(), MemoryCategory::kGradient);
    tied.group->AllReduce(sum);
    parameter.set_grad(sum);
  }
}

}  // namespace apogee::pipeline
