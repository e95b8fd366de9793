// SPDX-License-Identifier: Apache-2.0

// QuantState: the description of a weight in 4 bits that bitsandbytes stores beside its codes. It
// is JSON in a tensor of its own, and may be hostile.
//
//   APOGEE_ASSIGN_OR_RETURN(QuantState state, ParseQuantState(json, "\"X.quant_state...\""));
//   state.shape;                                                 // [out, in] of the weight
#ifndef APOGEE_BOOSTER_QUANTIZED_QUANT_STATE_H_
#define APOGEE_BOOSTER_QUANTIZED_QUANT_STATE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "apogee/core/status.h"

namespace apogee {

struct QuantState {
  std::vector<int64_t> shape;
  // Whether the scales are in codes, too; then this is their mean.
  bool nested = false;
  float offset = 0;
};
// `place`: for messages. InvalidArgument for other codes than nf4 in blocks of 64, with scales in
// blocks of 256 if nested. DataLoss for a damaged text.
absl::StatusOr<QuantState> ParseQuantState(const std::string& json, const std::string& place);

}  // namespace apogee

#endif  // APOGEE_BOOSTER_QUANTIZED_QUANT_STATE_H_
