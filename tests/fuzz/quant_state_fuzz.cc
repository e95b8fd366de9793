// SPDX-License-Identifier: Apache-2.0

// libFuzzer: the state of a weight in 4 bits, in a folder from anybody. What is accepted has a
// shape that a tensor can have.
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>

#include "apogee/booster/quantized/quant_state.h"
#include "apogee/core/shape.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string json(reinterpret_cast<const char*>(data), size);
  const auto state = apogee::ParseQuantState(json, "fuzz");
  if (!state.ok()) return 0;
  const apogee::Shape shape(state->shape);
  if (!std::isfinite(state->offset)) __builtin_trap();
  return 0;
}
