// SPDX-License-Identifier: Apache-2.0

// Reads and writes numbers of a StatBuffer of any dtype on any device. For few numbers, or to copy
// between a buffer and a tensor.
//
//   WriteStats(buffer, StatSection::kSums, {1.0, 2.0});                 // host to device
//   double second = StatNumber(buffer, StatSection::kSums, 1);          // waits for a GPU
#ifndef APOGEE_OPTIM_CORE_STAT_VALUES_H_
#define APOGEE_OPTIM_CORE_STAT_VALUES_H_

#include <algorithm>
#include <cstdint>

#include "apogee/optim/core/stats.h"
#include "apogee/tensor/ops/elementwise.h"

namespace apogee::optim {

enum class StatSection { kSums, kMaxima };

// The entry of `view`; nullptr if it has none.
inline const StatBuffer::Entry* FindEntry(const std::vector<StatBuffer::Entry>& entries,
                                          const ParamView* view) {
  const auto found = std::ranges::find(entries, view, &StatBuffer::Entry::view);
  return found == entries.end() ? nullptr : &*found;
}

// All numbers of a section, as the buffer's own tensor.
inline const Tensor& StatValues(const StatBuffer& buffer, StatSection section) {
  return section == StatSection::kSums ? buffer.sum_values() : buffer.max_values();
}
// Copies all numbers of a section to the host and back; for a GPU, one copy each way.
inline std::vector<double> ReadStats(const StatBuffer& buffer, StatSection section) {
  return StatValues(buffer, section).ToVector<double>();
}
inline void WriteStats(const StatBuffer& buffer, StatSection section,
                       const std::vector<double>& values) {
  StatValues(buffer, section).SetValues(values);
}

// Numbers [offset, offset + count) of a section, as a view of the buffer's memory.
inline Tensor StatSlice(const StatBuffer& buffer, StatSection section, int64_t offset,
                        int64_t count) {
  return StatValues(buffer, section).Slice(0, offset, count);
}

// The sums of `view`, in its compute dtype; undefined if it has none.
inline Tensor TotalsOf(const StatBuffer& totals, const ParamView& view) {
  const StatBuffer::Entry* entry = FindEntry(totals.sum_entries(), &view);
  if (entry == nullptr) return {};
  const Tensor numbers = StatSlice(totals, StatSection::kSums, entry->offset, entry->count);
  return numbers.To(view.compute_dtype(), MemoryCategory::kWorkspace);
}

// Adds the elements of `own`, which has those of the layout, to their places in the flat `whole`.
inline void AddOwn(const Layout& layout, const Tensor& own, const Tensor& whole) {
  const Tensor flat = own.View({own.numel()});
  int64_t at = 0;
  for (const Segment& segment : layout.segments()) {
    ops::Accumulate(whole.Slice(0, segment.begin, segment.length),
                    flat.Slice(0, at, segment.length));
    at += segment.length;
  }
}

// One number, copied to the host.
inline double StatNumber(const StatBuffer& buffer, StatSection section, int64_t offset) {
  return StatSlice(buffer, section, offset, 1).Item();
}

}  // namespace apogee::optim

#endif  // APOGEE_OPTIM_CORE_STAT_VALUES_H_
