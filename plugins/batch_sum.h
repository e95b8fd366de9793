// SPDX-License-Identifier: Apache-2.0

// How modules add up over the ranks that share a micro-batch (nn::Module::SumOverBatch).
//
//   model.set_batch_sum(BatchSumOf(plugin));   // after Configure
#ifndef APOGEE_PLUGINS_BATCH_SUM_H_
#define APOGEE_PLUGINS_BATCH_SUM_H_

#include "apogee/plugins/plugin.h"

namespace apogee {

// A differentiable sum over plugin.data_group(): an all-reduce in forward, and one in backward,
// since the losses of all ranks depend on it. Null for one rank. If the plugin does not average
// gradients in every step, the sum throws Error: ranks then train apart and share no micro-batch.
nn::Module::BatchSum BatchSumOf(const Plugin& plugin);

}  // namespace apogee

#endif  // APOGEE_PLUGINS_BATCH_SUM_H_
