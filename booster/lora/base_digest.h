// SPDX-License-Identifier: Apache-2.0

// A digest of the frozen weights below adapters, which training checkpoints keep in place of the
// weights. It does not depend on how ranks hold them.
//
//   APOGEE_ASSIGN_OR_RETURN(const std::string digest, BaseDigest(model, plugin));    // collective
#ifndef APOGEE_BOOSTER_LORA_BASE_DIGEST_H_
#define APOGEE_BOOSTER_LORA_BASE_DIGEST_H_

#include <string>

#include "apogee/core/status.h"
#include "apogee/plugins/plugin.h"

namespace apogee {

// Whether the model has adapters: then what is frozen is not saved.
bool HasAdapters(nn::Module& model);

// 16 hexadecimal digits, of all bits of the frozen parameters, their places, names and dtypes; ""
// if the model has no adapters. Collective over the plugin's ranks, all of which get the same.
absl::StatusOr<std::string> BaseDigest(nn::Module& model, const Plugin& plugin);

}  // namespace apogee

#endif  // APOGEE_BOOSTER_LORA_BASE_DIGEST_H_
