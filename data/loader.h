// SPDX-License-Identifier: Apache-2.0

// Loader: batches of a dataset in a sampler's order.
//
//   Loader loader(train, std::make_shared<ShuffleSampler>(train->num_samples(), seed), context,
//                 {.batch = 16, .num_batches = 600});
//   for (Batch& batch : loader) {                       // batch.inputs, batch.targets: i64 [16,
//   block]
//     Tensor loss = criterion(model(batch.inputs), batch.targets);
//   }
//
// Batch k holds the samples at places [k * batch, (k + 1) * batch) of the stream: a pure function
// of (sampler, k). Two batches of 8 are thus the halves of one of 16, which is what accumulation
// relies on. Iteration starts at the cursor and leaves it behind the last batch handed out, so that
// a second `for` goes on with an endless stream, and a checkpoint that saves the cursor resumes it.
//
// Batches of a DistributedSampler know the place of their samples in its window (SamplePlaceOf), so
// a model masks them (dropout) as it would mask the whole window in one batch, however the window
// is cut into ranks and micro-batches. A batch that straddles two windows does not know.
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
  // Batches that one loop over the loader hands out. kAll: as many as the sampler has full batches
  // for, endlessly many if it is endless.
  int64_t num_batches = kAll;
  // false: the samples at the end of a finite stream that do not fill a batch come as a shorter
  // one.
  bool drop_last = true;
};

// What a checkpoint saves.
struct LoaderState {
  int64_t next_batch = 0;
};

class Loader {
 public:
  // Throws Error for options that make no sense, for a sampler too short for one batch, and for one
  // that is made for more samples than the dataset has.
  Loader(std::shared_ptr<const Dataset> dataset, std::shared_ptr<const Sampler> sampler,
         ContextPtr context, const LoaderOptions& options);

  // Batch number `index` of the stream; leaves the cursor alone. Throws Error where the sampler
  // names a sample that the dataset does not have.
  Batch At(int64_t index) const;
  // The batch at the cursor, which moves on. Throws Error behind the last batch of a finite
  // sampler.
  Batch Next() { return At(state_.next_batch++); }

  LoaderState state() const { return state_; }
  void set_state(const LoaderState& state);
  // Batches in the whole stream, or Sampler::kEndless.
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
  std::shared_ptr<const void> stream_ = std::make_shared<int>();  // tells it from other loaders'
};

}  // namespace apogee::data

#endif  // APOGEE_DATA_LOADER_H_
