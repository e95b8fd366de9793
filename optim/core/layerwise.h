// SPDX-License-Identifier: Apache-2.0

// Shared by optimizers with statistics of whole tensors: finds the numbers of a parameter in a
// StatBuffer. Such an optimizer reserves one entry of sums per parameter and phase, in the order of
// the parameters.
//
//   ForEachGroup(params, [&](int group, size_t first, std::span<const ActiveParam> members) {
//     void* partials = SumsAt(buffer, first + i);              // of members[i]
//   });
#ifndef APOGEE_OPTIM_CORE_LAYERWISE_H_
#define APOGEE_OPTIM_CORE_LAYERWISE_H_

#include <span>

#include "apogee/optim/core/stats.h"
#include "apogee/optim/step/step.h"

namespace apogee::optim {

// The address of number `index` of an entry, in the memory of the buffer's device.
inline void* SumsAt(const StatBuffer& buffer, size_t entry, int64_t index = 0) {
  const int64_t offset = buffer.sum_entries()[entry].offset + index;
  return static_cast<char*>(buffer.sum_values().raw()) + offset * DTypeSize(buffer.dtype());
}

// The entry of `param`. The entries of the parameters after it follow.
inline size_t EntryOf(const StatBuffer& buffer, const ActiveParam& param) {
  size_t entry = 0;
  while (buffer.sum_entries()[entry].view != param.view) ++entry;
  return entry;
}

// Calls fn(group, index of its first parameter, its parameters) for each group in `params`, in
// order.
template <typename Fn>
void ForEachGroup(std::span<const ActiveParam> params, const Fn& fn) {
  for (size_t begin = 0; begin < params.size();) {
    size_t end = begin;
    while (end < params.size() && params[end].group == params[begin].group) ++end;
    fn(params[begin].group, begin, params.subspan(begin, end - begin));
    begin = end;
  }
}

}  // namespace apogee::optim

#endif  // APOGEE_OPTIM_CORE_LAYERWISE_H_
