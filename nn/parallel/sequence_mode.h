// SPDX-License-Identifier: Apache-2.0

// SequenceMode: how sequences are cut over ranks. nn/parallel/sequence_parallel.h explains the
// modes.
//
//   const absl::StatusOr<SequenceMode> mode = ParseSequenceMode("ring_attn");
//   if (!mode.ok()) ...      // unknown sp_mode "ring" (did you mean ...); known: ...
#ifndef APOGEE_NN_PARALLEL_SEQUENCE_MODE_H_
#define APOGEE_NN_PARALLEL_SEQUENCE_MODE_H_

#include <string>

#include "apogee/core/status.h"

namespace apogee::nn::parallel {

enum class SequenceMode { kNone, kSplitGather, kAllToAll, kRingAttention };

// "none", "split_gather", "all_to_all", "ring_attn".
const char* Name(SequenceMode mode);
// Reads these texts, and "" as kNone.
absl::StatusOr<SequenceMode> ParseSequenceMode(const std::string& text);

}  // namespace apogee::nn::parallel

#endif  // APOGEE_NN_PARALLEL_SEQUENCE_MODE_H_
