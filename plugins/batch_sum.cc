// SPDX-License-Identifier: Apache-2.0

#include "apogee/plugins/batch_sum.h"

#include "apogee/nn/parallel/functions.h"

namespace apogee {

nn::Module::BatchSum BatchSumOf(const Plugin& plugin) {
  if (plugin.data_size() == 1) return nullptr;
  comm::GroupPtr group = plugin.data_group();
  if (group == nullptr) {
    return [name = plugin.name()](const Tensor&) -> Tensor {
      Throw("a module needs sums over the whole micro-batch (batch norm), but plugin ", name,
            " does not average gradients in every step, so its ranks share no micro-batch; use "
            "group or layer norm, or another plugin");
    };
  }
  return [group = std::move(group)](const Tensor& x) {
    return nn::parallel::CopyToGroup(nn::parallel::ReduceFromGroup(x, group), group);
  };
}

}  // namespace apogee
