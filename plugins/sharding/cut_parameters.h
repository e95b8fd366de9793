// SPDX-License-Identifier: Apache-2.0

// CutParameters: how a plugin has cut the parameters, for the data-parallel plugin inside it.
// HybridParallelPlugin makes one; a plugin of your own may, too.
//
//   DdpPlugin inner(dp, training, {}, CutParameters{.statistics_group = tp, .part_of = part_of});
#ifndef APOGEE_PLUGINS_SHARDING_CUT_PARAMETERS_H_
#define APOGEE_PLUGINS_SHARDING_CUT_PARAMETERS_H_

#include <functional>

#include "apogee/autograd/parameter.h"
#include "apogee/comm/group.h"
#include "apogee/layout/layout.h"

namespace apogee {

struct CutParameters {
  // All ranks that hold parts of one parameter. A plugin that shards then shards the parts, and
  // statistics are summed over this group. Null: nothing is cut.
  comm::GroupPtr statistics_group = nullptr;
  // With a statistics_group: the part that this rank's Parameter has. The inner plugin binds views
  // to it. Called in boost, for parameters that this rank has (Parameter::is_here); bind the views
  // of others yourself.
  std::function<Layout(const autograd::Parameter&)> part_of = {};
  // Parameters with different keys never share a bucket. Give different keys to parameters whose
  // gradients are reduced in different passes (BackwardPasses). Null: all have the same key. Called
  // in boost.
  std::function<int(const autograd::Parameter&)> bucket_key = {};
  // Selects experts: parameters that only some ranks of the plugin's group hold. The ranks of
  // `expert_copies` hold the same ones (null: only this rank). The plugin averages their gradients,
  // and shards them, over these ranks. Backward must give each rank the mean over the ranks that
  // hold other experts. Null: there are none.
  std::function<bool(const autograd::Parameter&)> is_expert = {};
  comm::GroupPtr expert_copies = nullptr;
  // All ranks that hold parts of one expert: those of `expert_copies`, and the ones over which they
  // are cut.
  comm::GroupPtr expert_statistics = nullptr;
  // The ranks have the same model and values. Then the inner plugin neither compares nor sends
  // them.
  bool is_synced = false;
};

}  // namespace apogee

#endif  // APOGEE_PLUGINS_SHARDING_CUT_PARAMETERS_H_
