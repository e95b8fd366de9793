// SPDX-License-Identifier: Apache-2.0

// How modules add up over the ranks that share a micro-batch (nn::Module::SumOverBatch).
//
//   model.set_batch_sum(BatchSumOf(plugin, model));   // after Configure
#ifndef APOGEE_PLUGINS_BATCH_SUM_H_
#define APOGEE_PLUGINS_BATCH_SUM_H_

#include "apogee/plugins/plugin.h"

namespace apogee {

// A differentiable sum over plugin.batch_group(): an all-reduce in forward, and one in backward,
// since the losses of all ranks depend on it. They run in a group of their own: gradients may be
// reduced at the same time, in an order that depends on the rank. Null for one rank. Collective if
// a module of the model sums over the batch.
//
// The sum throws Error if no module says that it calls it (sums_over_batch), and if the plugin does
// not average gradients in every step: ranks then train apart and share no micro-batch.
nn::Module::RankSum BatchSumOf(const Plugin& plugin, nn::Module& model);

}  // namespace apogee

#endif  // APOGEE_PLUGINS_BATCH_SUM_H_
