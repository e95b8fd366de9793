// SPDX-License-Identifier: Apache-2.0

// BatchMaker: fills the batches of a loader in the host's memory. Immutable; threads share one.
//
//   MadeBatch made = maker.Make(/*origin=*/0, /*first=*/32);   // samples 32 to 47 of this rank
#ifndef APOGEE_DATA_BATCH_MAKER_H_
#define APOGEE_DATA_BATCH_MAKER_H_

#include <memory>
#include <optional>
#include <vector>

#include "apogee/core/sample_place.h"
#include "apogee/data/loader.h"

namespace apogee::data {

struct MadeBatch {
  Batch batch;  // on the host
  int64_t num_targets = 0;
  std::optional<SamplePlace> place;
  int64_t sample_numel = 0;  // of the inputs
};

class BatchMaker {
 public:
  // Checks what Loader promises.
  BatchMaker(std::shared_ptr<const Dataset> dataset, std::shared_ptr<const Sampler> sampler,
             ContextPtr host, const LoaderOptions& options);

  // `origin`: the stream is divided into windows from this sample on. `first`: the position of the
  // batch's first sample in this rank's part from there. Throws Error for a batch outside.
  MadeBatch Make(int64_t origin, int64_t first) const;
  // Samples of the batch at `first`; 0 after the last batch.
  int64_t RowsAt(int64_t origin, int64_t first) const;
  // Samples of this rank's part, or kEndless.
  int64_t SizeFrom(int64_t origin) const;

  const Dataset& dataset() const { return *dataset_; }
  const Sampler& sampler() const { return *sampler_; }
  const Sampler::Share& share() const { return share_; }

 private:
  int64_t SampleAt(int64_t origin, int64_t index) const;
  std::optional<SamplePlace> PlaceOf(int64_t origin, int64_t first, int64_t rows) const;

  std::shared_ptr<const Dataset> dataset_;
  std::shared_ptr<const Sampler> sampler_;
  ContextPtr host_;
  int64_t batch_;
  bool drop_last_;
  std::vector<Field> fields_;
  bool is_shared_;  // the sampler has a share of a common stream
  Sampler::Share share_;
  std::shared_ptr<const void> stream_ = std::make_shared<int>();  // identifies the batches' stream
};

}  // namespace apogee::data

#endif  // APOGEE_DATA_BATCH_MAKER_H_
