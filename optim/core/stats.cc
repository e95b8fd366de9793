// SPDX-License-Identifier: Apache-2.0

#include "apogee/optim/core/stats.h"

#include "apogee/tensor/ops/elementwise.h"

namespace apogee::optim {

int64_t StatBuffer::Add(Section& section, const ParamView& view, int64_t count, double weight) {
  APOGEE_CHECK(!section.values.defined(), "StatBuffer: numbers are reserved before Allocate()");
  const int64_t offset = section.count;
  section.entries.push_back({&view, offset, count, weight});
  section.count += count;
  return offset;
}

void StatBuffer::Allocate() {
  for (Section* section : {&sums_, &maxima_}) {
    section->values = Tensor::Zeros({section->count}, dtype_, context_, MemoryCategory::kWorkspace);
  }
}

void StatBuffer::CountReplicasOnce() {
  const std::vector<Entry>& entries = sums_.entries;
  for (size_t i = 0; i < entries.size();) {
    const Entry& first = entries[i];
    int64_t count = 0;
    for (; i < entries.size() && entries[i].weight == first.weight; ++i) count += entries[i].count;
    if (first.weight == 1) continue;
    const Tensor part = sums_.values.Slice(0, first.offset, count);
    part.CopyFrom(ops::Scale(part, first.weight));
  }
}

}  // namespace apogee::optim
