// SPDX-License-Identifier: Apache-2.0

// Reading and writing numbers of a StatBuffer whatever its dtype, for statistics that are few or
// are moved between a buffer and a tensor as they are.
#ifndef APOGEE_OPTIM_STAT_VALUES_H_
#define APOGEE_OPTIM_STAT_VALUES_H_

#include <algorithm>
#include <cstdint>

#include "apogee/optim/stats.h"

namespace apogee::optim {

enum class StatSection { kSums, kMaxima };

// The numbers that were reserved for `view`; nullptr when there are none.
inline const StatBuffer::Entry* FindEntry(const std::vector<StatBuffer::Entry>& entries,
                                          const ParamView* view) {
  const auto found = std::ranges::find(entries, view, &StatBuffer::Entry::view);
  return found == entries.end() ? nullptr : &*found;
}

// The section itself.
inline const Tensor& StatValues(const StatBuffer& buffer, StatSection section) {
  return section == StatSection::kSums ? buffer.sum_values() : buffer.max_values();
}
// All numbers of a section on the host, and back: one copy each way where they are a GPU's.
inline std::vector<double> ReadStats(const StatBuffer& buffer, StatSection section) {
  return StatValues(buffer, section).ToVector<double>();
}
inline void WriteStats(const StatBuffer& buffer, StatSection section,
                       const std::vector<double>& values) {
  StatValues(buffer, section).SetValues(values);
}

// Numbers [offset, offset + count) of a section, a view of the buffer's storage.
inline Tensor StatSlice(const StatBuffer& buffer, StatSection section, int64_t offset,
                        int64_t count) {
  return StatValues(buffer, section).Slice(0, offset, count);
}

// One number, on the host.
inline double StatNumber(const StatBuffer& buffer, StatSection section, int64_t offset) {
  return StatSlice(buffer, section, offset, 1).Item();
}

}  // namespace apogee::optim

#endif  // APOGEE_OPTIM_STAT_VALUES_H_
