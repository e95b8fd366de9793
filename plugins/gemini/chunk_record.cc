// SPDX-License-Identifier: Apache-2.0

#include "apogee/plugins/gemini/chunk_record.h"

#include <algorithm>
#include <utility>

namespace apogee {

ChunkRecord::ChunkRecord(std::shared_ptr<chunk::ShardedParameters> parameters)
    : parameters_(std::move(parameters)) {
  parameters_->set_observer([this](size_t chunk, bool gathered) {
    const MemoryLedger& ledger = parameters_->context()->ledger();
    const int64_t model = ledger.model_data_bytes();
    current_.push_back({chunk, gathered, model, ledger.live_total_bytes() - model});
  });
}

ChunkRecord::~ChunkRecord() { parameters_->set_observer(nullptr); }

void ChunkRecord::EndStep() { last_step_ = std::exchange(current_, {}); }

int64_t ChunkRecord::peak_other_bytes() const {
  int64_t peak = 0;
  for (const ChunkEvent& event : last_step_) peak = std::max(peak, event.other_bytes);
  return peak;
}

}  // namespace apogee
