// SPDX-License-Identifier: Apache-2.0

// Loader: batches of a dataset in a sampler's order.
//
//   Loader loader(train, std::make_shared<ShuffleSampler>(train->num_samples(), seed), context,
//                 {.batch = 16, .num_batches = 600});
//   for (Batch& batch : loader) {             // batch.inputs, batch.targets: i64 [16, block]
//     Tensor loss = criterion(model(batch.inputs), batch.targets);
//   }
//
// Batch k holds the samples at positions [k * batch, (k + 1) * batch) of the sampler's stream: a
// pure function of (sampler, k). Two batches of 8 are thus the halves of one batch of 16, which
// gradient accumulation relies on. A loop starts at the cursor and leaves it after the last batch
// it got. A second `for` therefore continues an endless stream, and a checkpoint that saves the
// cursor resumes there.
//
// Batches of a DistributedSampler know their samples' position in its window (SamplePlaceOf). A
// model then draws the same dropout mask for a sample as if the whole window were one batch,
// however the window is divided into ranks and micro-batches. A batch that spans two windows does
// not know its position.
#ifndef APOGEE_DATA_LOADER_H_
#define APOGEE_DATA_LOADER_H_

#include <iterator>
#include <memory>

#include "apogee/data/dataset.h"
#include "apogee/data/sampler.h"
#include "apogee/tensor/tensor.h"

namespace apogee::data {

struct Batch {
  // i64 [batch, block]; targets[i, t] follows inputs[i, t].
  Tensor inputs, targets;
};

struct LoaderOptions {
  static constexpr int64_t kAll = -1;

  // Samples per batch of this rank.
  int64_t batch = 1;
  // The number of batches that one loop over the loader gets. kAll: all full batches of the
  // sampler's stream; endless for an endless sampler.
  int64_t num_batches = kAll;
  // False: the samples at the end of a finite stream that do not fill a batch become a shorter
  // batch.
  bool drop_last = true;
};

// The position that a checkpoint saves.
struct LoaderState {
  int64_t next_batch = 0;
};

class Loader {
 public:
  // Throws Error for invalid options, for a sampler too short for one batch, and for a sampler made
  // for more samples than the dataset has.
  Loader(std::shared_ptr<const Dataset> dataset, std::shared_ptr<const Sampler> sampler,
         ContextPtr context, const LoaderOptions& options);

  // Batch number `index` of the stream; does not move the cursor. Throws Error if the sampler
  // returns an index that the dataset does not have.
  Batch At(int64_t index) const;
  // The batch at the cursor; moves the cursor on. Throws Error after the last batch of a finite
  // sampler.
  Batch Next() { return At(state_.next_batch++); }

  LoaderState state() const { return state_; }
  void set_state(const LoaderState& state);
  // The number of batches in the whole stream, or Sampler::kEndless.
  int64_t size() const;
  int64_t batch() const { return options_.batch; }
  int64_t block() const { return dataset_->block(); }

  class Iterator {
   public:
    using iterator_category = std::input_iterator_tag;
    using value_type = Batch;
    using difference_type = std::ptrdiff_t;
    using pointer = Batch*;
    using reference = Batch&;

    Batch& operator*();
    Iterator& operator++();
    bool operator==(std::default_sentinel_t) const { return left_ == 0; }

   private:
    friend class Loader;
    Iterator(Loader* loader, int64_t left) : loader_(loader), left_(left) {}

    Loader* loader_;
    int64_t left_;  // negative: endless
    Batch batch_;
  };

  Iterator begin();
  std::default_sentinel_t end() const { return {}; }

 private:
  std::shared_ptr<const Dataset> dataset_;
  std::shared_ptr<const Sampler> sampler_;
  ContextPtr context_;
  LoaderOptions options_;
  LoaderState state_;
  std::shared_ptr<const void> stream_ = std::make_shared<int>();  // identifies this loader's stream
};

}  // namespace apogee::data

#endif  // APOGEE_DATA_LOADER_H_
