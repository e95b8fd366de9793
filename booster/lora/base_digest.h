// SPDX-License-Identifier: Apache-2.0

// A digest of the frozen weights below adapters, which training checkpoints keep in place of the
// weights. It does not depend on how ranks hold them.
//
//   APOGEE_ASSIGN_OR_RETURN(const std::string digest, BaseDigest(model, plugin));    // collective
#ifndef APOGEE_BOOSTER_LORA_BASE_DIGEST_H_
#define APOGEE_BOOSTER_LORA_BASE_DIGEST_H_

#include <set>
#include <string>

#include "apogee/core/status.h"
#include "apogee/plugins/plugin.h"

namespace apogee {

// The frozen parameters of a model with adapters, which training checkpoints leave out. Empty if
// there are no adapters: then frozen parameters are saved like the others.
std::set<const autograd::Parameter*> BaseOf(nn::Module& model);

// 16 hexadecimal digits, of all bits of BaseOf(model), their places, names and dtypes; "" if the
// model has no adapters. Collective over the plugin's ranks, all of which get the same.
absl::StatusOr<std::string> BaseDigest(nn::Module& model, const Plugin& plugin);

}  // namespace apogee

#endif  // APOGEE_BOOSTER_LORA_BASE_DIGEST_H_
