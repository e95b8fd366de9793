// SPDX-License-Identifier: Apache-2.0

// CutParameters: how a plugin has cut the parameters, for the data-parallel plugin inside it.
// HybridParallelPlugin makes one; a plugin of your own may, too.
//
//   DdpPlugin inner(dp, training, {}, CutParameters{.statistics_group = tp});
#ifndef APOGEE_PLUGINS_HYBRID_CUT_PARAMETERS_H_
#define APOGEE_PLUGINS_HYBRID_CUT_PARAMETERS_H_

#include <functional>

#include "apogee/autograd/parameter.h"
#include "apogee/comm/group.h"

namespace apogee {

struct CutParameters {
  // All ranks that hold parts of one parameter, if views are bound to the parts
  // (ParamView::BindParameter). A plugin that shards then shards the parts, and statistics are
  // summed over this group. Null: nothing is cut.
  comm::GroupPtr statistics_group = nullptr;
  // Parameters with different keys never share a bucket. Give different keys to parameters whose
  // gradients are reduced in different passes (BackwardPasses). Null: all have the same key. Called
  // in boost.
  std::function<int(const autograd::Parameter&)> bucket_key = {};
};

}  // namespace apogee

#endif  // APOGEE_PLUGINS_HYBRID_CUT_PARAMETERS_H_
