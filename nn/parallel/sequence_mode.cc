// SPDX-License-Identifier: Apache-2.0

#include "apogee/nn/parallel/sequence_mode.h"

#include "apogee/core/text/enum_names.h"

namespace apogee::nn::parallel {
namespace {

constexpr EnumName<SequenceMode> kModeNames[] = {{SequenceMode::kNone, "none"},
                                                 {SequenceMode::kNone, ""},
                                                 {SequenceMode::kSplitGather, "split_gather"},
                                                 {SequenceMode::kAllToAll, "all_to_all"},
                                                 {SequenceMode::kRingAttention, "ring_attn"}};

}  // namespace

const char* Name(SequenceMode mode) { return NameOf<SequenceMode>(kModeNames, mode); }

absl::StatusOr<SequenceMode> ParseSequenceMode(const std::string& text) {
  return ParseName<SequenceMode>("sp_mode", kModeNames, text);
}

}  // namespace apogee::nn::parallel
