// SPDX-License-Identifier: Apache-2.0

// Loader: batches of a dataset in a sampler's order.
//
//   Loader loader(train, std::make_shared<ShuffleSampler>(train->num_samples(), seed), context,
//                 {.batch = 16, .num_batches = 600, .threads = 1});
//   for (Batch& batch : loader) {             // batch.inputs, batch.targets: i64 [16, block]
//     Tensor loss = criterion(model(batch.inputs), batch.targets);
//   }
//
// Batch k holds the samples at positions [k * batch, (k + 1) * batch) of the sampler's stream: a
// pure function of (sampler, k). Two batches of 8 are thus the halves of one batch of 16, which
// gradient accumulation relies on. A loop starts at the cursor and leaves it after the last batch
// it got. A second `for` therefore continues an endless stream.
//
// The cursor is one number, the samples that all ranks together have used (LoaderState). A run that
// resumes from it goes on with the next sample, on any number of ranks and with any batch.
//
// A window is the micro-batches of one optimizer step. Windows() knows how many targets a window
// has before its first backward, so that each target weighs the same (booster/booster.h):
//
//   const Accumulation accumulation = booster.accumulate(4);
//   for (const Window& window : loader.Windows(4)) {
//     const auto open = booster.accumulation_window(window.num_targets);
//     for (const Batch& batch : window.batches) {
//       booster.backward(boosted.criterion(boosted.model(batch.inputs), batch.targets),
//                        boosted.optimizer);
//     }
//     boosted.optimizer.step();
//     boosted.optimizer.zero_grad();
//   }
//
// Batches of a DistributedSampler know their samples' position in its window (SamplePlaceOf). A
// model then draws the same dropout mask for a sample as if the whole window were one batch,
// however the window is divided into ranks and micro-batches. A batch that spans two windows does
// not know its position.
//
// With threads, background threads fill the next batches in the host's memory. The batches are the
// same. An error of the dataset in a thread is thrown by the loop at the batch that it belongs to.
// The threads begin with the first batch and end with the loader. A copy to a GPU is made by the
// loop; it goes through pinned memory.
#ifndef APOGEE_DATA_LOADER_H_
#define APOGEE_DATA_LOADER_H_

#include <iterator>
#include <map>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "apogee/data/dataset.h"
#include "apogee/data/sampler.h"
#include "apogee/tensor/tensor.h"

namespace apogee::data {

class BatchMaker;  // batch_maker.h
class Prefetcher;  // prefetcher.h
struct MadeBatch;

struct Batch {
  // For sequences of tokens i64 [batch, block]; targets[i, t] follows inputs[i, t]. Undefined
  // targets: the dataset has none.
  Tensor inputs, targets;
  // The dataset's other fields by their names, [batch, ...].
  std::map<std::string, Tensor> more = {};

  // Whether there is a field of this name, "inputs" and "targets" too.
  bool Has(const std::string& name) const;
  // The field of this name. Throws Error that lists the names if there is none.
  const Tensor& operator[](const std::string& name) const;
};

// The micro-batches of one optimizer step.
struct Window {
  std::vector<Batch> batches;
  // Targets other than kIgnoredTarget in all batches; for targets that are not i64, all elements.
  int64_t num_targets = 0;
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
  // Background threads. 0: the loop fills each batch when it asks for it.
  int threads = 0;
  // The number of batches that are filled ahead. 0: two per thread. Needs threads.
  int64_t prefetch = 0;
};

// The position that a checkpoint saves: the samples of the common stream that all ranks together
// have used. With a sampler that has no share of a common stream, the samples that it gave.
struct LoaderState {
  int64_t samples = 0;
};

class Loader {
 public:
  // Throws Error for invalid options, for a sampler too short for one batch, and for a sampler made
  // for more samples than the dataset has.
  Loader(std::shared_ptr<const Dataset> dataset, std::shared_ptr<const Sampler> sampler,
         ContextPtr context, const LoaderOptions& options);
  ~Loader();
  Loader(Loader&&) noexcept;

  // Batch number `index` of the stream, counted from its beginning; does not use the cursor. Throws
  // Error if the sampler returns an index that the dataset does not have.
  Batch At(int64_t index) const;
  // The batch at the cursor; moves the cursor on, also when it throws. Throws Error after the last
  // batch of a finite sampler.
  Batch Next();
  // The next `num_batches` batches. Throws Error if there are fewer.
  Window NextWindow(int64_t num_batches);

  // Throws Error within a window of a DistributedSampler: the ranks have then used parts of it that
  // are not its beginning, and no other number of ranks could go on there.
  LoaderState state() const;
  // Goes on after these samples. A stream that ranks share is divided into windows from there.
  void set_state(const LoaderState& state);
  // The number of batches in the whole stream, or Sampler::kEndless.
  int64_t size() const;
  int64_t batch() const { return options_.batch; }
  int64_t block() const;

  // Item: Batch or Window.
  template <typename Item>
  class IteratorOf {
   public:
    using iterator_category = std::input_iterator_tag;
    using value_type = Item;
    using difference_type = std::ptrdiff_t;
    using pointer = Item*;
    using reference = Item&;

    // The item is made on first access, not in ++, so a loop that ends early has taken from the
    // stream only the batches it used.
    Item& operator*() {
      if (!made_) item_ = loader_->Take<Item>(num_batches_);
      made_ = true;
      return item_;
    }
    IteratorOf& operator++() {
      if (!made_) loader_->Skip(num_batches_);
      made_ = false;
      item_ = {};
      if (left_ > 0) --left_;
      return *this;
    }
    bool operator==(std::default_sentinel_t) const { return left_ == 0; }

   private:
    friend class Loader;
    IteratorOf(Loader* loader, int64_t num_batches, int64_t left)
        : loader_(loader), num_batches_(num_batches), left_(left) {}

    Loader* loader_;
    int64_t num_batches_;
    int64_t left_;  // negative: endless
    bool made_ = false;
    Item item_;
  };
  using Iterator = IteratorOf<Batch>;

  Iterator begin() { return Iterator(this, 1, Left()); }
  std::default_sentinel_t end() const { return {}; }

  // Loops over the same batches in windows of `num_batches`. Batches at the end that fill no window
  // are left out.
  class WindowRange {
   public:
    WindowRange(Loader* loader, int64_t num_batches) : loader_(loader), num_batches_(num_batches) {}
    IteratorOf<Window> begin() const {
      const int64_t left = loader_->Left();
      return {loader_, num_batches_, left < 0 ? left : left / num_batches_};
    }
    std::default_sentinel_t end() const { return {}; }

   private:
    Loader* loader_;
    int64_t num_batches_;
  };
  // Throws Error for num_batches < 1, and if options.num_batches is not a multiple of it.
  WindowRange Windows(int64_t num_batches);

 private:
  template <typename Item>
  Item Take(int64_t num_batches) {
    if constexpr (std::is_same_v<Item, Batch>)
      return Next();
    else
      return NextWindow(num_batches);
  }
  // Batches that a loop from the cursor gets; negative: endless.
  int64_t Left() const;
  // Batches from `position` of this rank's part of the stream from `origin` on, or kEndless.
  int64_t BatchesFrom(int64_t origin, int64_t position) const;
  void Skip(int64_t num_batches);
  void StartPrefetching(int64_t first);
  void StopPrefetching();
  MadeBatch NextMade();
  Batch Moved(MadeBatch made) const;

  LoaderOptions options_;
  ContextPtr context_;
  std::shared_ptr<const BatchMaker> maker_;
  // The cursor: the stream is divided from sample `origin_` on, and this rank has used
  // `position_` samples of its part.
  int64_t origin_ = 0, position_ = 0;
  std::unique_ptr<Prefetcher> prefetcher_;  // null before the first batch, and without threads
  int64_t prefetched_from_ = 0;             // the position of its batch 0
};

}  // namespace apogee::data

#endif  // APOGEE_DATA_LOADER_H_
