// SPDX-License-Identifier: Apache-2.0

#include "apogee/plugins/batch_sum.h"

#include <algorithm>

#include "apogee/nn/parallel/functions.h"

namespace apogee {
namespace {

constexpr std::chrono::seconds kTimeout{60};

nn::Module::RankSum Refusal(const std::string& why) {
  return [why](const Tensor&) -> Tensor { Throw(why); };
}

}  // namespace

nn::Module::RankSum BatchSumOf(const Plugin& plugin, nn::Module& model) {
  const comm::GroupPtr sharing = plugin.batch_group();
  if (plugin.data_size() == 1 && sharing == nullptr) return nullptr;
  if (std::ranges::none_of(model.Modules(), &nn::Module::sums_over_batch)) {
    return Refusal(
        "SumOverBatch: no module of the model says that it sums over the micro-batch; override "
        "sums_over_batch() of the module that calls it to return true");
  }
  if (sharing == nullptr) {
    return Refusal(internal::Concat(
        "a module needs sums over the whole micro-batch (batch norm), but plugin ", plugin.name(),
        " does not average gradients in every step, so its ranks share no micro-batch; use group "
        "or layer norm, or another plugin"));
  }
  const comm::GroupPtr group = sharing->Duplicate(kTimeout);
  return [group](const Tensor& x) {
    return nn::parallel::CopyToGroup(nn::parallel::ReduceFromGroup(x, group), group);
  };
}

}  // namespace apogee
