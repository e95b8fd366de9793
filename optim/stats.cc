#include "apogee/optim/stats.h"

namespace apogee::optim {

int64_t StatBuffer::Add(Section& section, const ParamView& view, int64_t count) {
  APOGEE_CHECK(!section.values.defined(), "StatBuffer: numbers are reserved before Allocate()");
  const int64_t offset = section.count;
  section.entries.push_back({&view, offset, count});
  section.count += count;
  return offset;
}

void StatBuffer::Allocate() {
  for (Section* section : {&sums_, &maxima_}) {
    section->values = Tensor::Zeros({section->count}, dtype_, context_, MemoryCategory::kWorkspace);
  }
}

}  // namespace apogee::optim
