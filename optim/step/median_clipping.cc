// SPDX-License-Identifier: Apache-2.0

#include "apogee/optim/step/median_clipping.h"

#include <algorithm>

namespace apogee::optim {
namespace {

// The numbers before the norms, in the order of MedianClippingState.
struct Field {
  const char* name;
  int64_t count;
};
constexpr Field kFields[] = {{"clip_step", 1},
                             {"model_norm_threshold", 1},
                             {"num_clipped", 1},
                             {"percent_clipped", 1},
                             {"quartiles", 5}};
constexpr int64_t kNumbers = sizeof(MedianClippingState) / sizeof(double);

}  // namespace

Tensor PackClipping(const GroupState& state, int64_t period, const ContextPtr& context) {
  std::vector<double> numbers;
  for (const Field& field : kFields) {
    const auto found = state.find(field.name);
    if (found != state.end()) {
      numbers.insert(numbers.end(), found->second.begin(), found->second.end());
    } else {
      numbers.resize(numbers.size() + static_cast<size_t>(field.count), -1);
    }
  }
  numbers[0] = std::max(numbers[0], 0.0);
  if (const auto norms = state.find("model_norms"); norms != state.end()) {
    numbers.insert(numbers.end(), norms->second.begin(), norms->second.end());
  }
  numbers.resize(static_cast<size_t>(kNumbers + period), 0);
  const Tensor packed =
      Tensor::Empty({kNumbers + period}, DType::kF64, context, MemoryCategory::kWorkspace);
  packed.SetValues(numbers);
  return packed;
}

GroupState UnpackClipping(const Tensor& packed) {
  const std::vector<double> numbers = packed.ToVector<double>();
  GroupState state;
  auto at = numbers.begin();
  for (const Field& field : kFields) {
    if (!(*at < 0)) state[field.name].assign(at, at + field.count);
    at += field.count;
  }
  if (numbers[0] > 1) state["model_norms"].assign(at, numbers.end());  // the first is not kept
  return state;
}

}  // namespace apogee::optim
