// SPDX-License-Identifier: Apache-2.0

// Samplers: which sample comes at which place of the stream.
//
//   ShuffleSampler order(train.num_samples(), /*seed=*/1);
//   int64_t first = order.Sample(0);         // a pure function of (seed, index)
//
// A sampler has no state, so a run resumes at any index at no cost, and ranks that share the seed
// agree on the whole order without talking. DistributedSampler gives each rank its part of it.
// Thread-safe.
#ifndef APOGEE_DATA_SAMPLER_H_
#define APOGEE_DATA_SAMPLER_H_

#include <cstdint>
#include <memory>
#include <optional>

#include "apogee/core/rng.h"

namespace apogee::data {

class Sampler {
 public:
  static constexpr int64_t kEndless = -1;

  virtual ~Sampler() = default;
  // Length of the stream, or kEndless.
  virtual int64_t size() const = 0;
  // Different samples in it.
  virtual int64_t num_samples() const = 0;
  // The dataset's sample at place `index` >= 0 of the stream.
  virtual int64_t Sample(int64_t index) const = 0;

  // Of samplers that give ranks parts of one stream: the window of the stream that place `index`
  // is in, its place within the window of all ranks, and how many places from it on follow each
  // other there.
  struct WindowPlace {
    int64_t window = 0;
    int64_t first = 0;
    int64_t length = 0;
  };
  virtual std::optional<WindowPlace> PlaceOf(int64_t /*index*/) const { return std::nullopt; }
};

// 0, 1, 2, … once: validation.
class SequentialSampler : public Sampler {
 public:
  explicit SequentialSampler(int64_t num_samples);
  int64_t size() const override { return num_samples_; }
  int64_t num_samples() const override { return num_samples_; }
  int64_t Sample(int64_t index) const override;

 private:
  int64_t num_samples_;
};

// Endless: epoch after epoch, each a permutation of all samples of its own. The permutation is
// computed, not stored: a four-round Feistel network over the next power of four, walked until it
// lands inside (cycle walking; Black and Rogaway, "Ciphers with arbitrary finite domains", CT-RSA
// 2002).
class ShuffleSampler : public Sampler {
 public:
  ShuffleSampler(int64_t num_samples, uint64_t seed);
  int64_t size() const override { return kEndless; }
  int64_t num_samples() const override { return num_samples_; }
  int64_t Sample(int64_t index) const override;

 private:
  uint64_t Permute(PhiloxKey key, uint64_t value) const;

  int64_t num_samples_;
  PhiloxKey key_;
  int half_bits_;
};

// One rank's part of a stream that all ranks share. The stream is cut into windows of num_ranks *
// `window` samples, and rank r takes the r-th run of `window` of each:
//
//   auto order = std::make_shared<ShuffleSampler>(train->num_samples(), seed);
//   DistributedSampler mine(order, world.rank(), world.size(), /*window=*/batch * accumulate);
//
// With the samples that a rank takes per optimizer step as window, each step of all ranks together
// uses what one rank with the whole batch would, and the ranks' parts are contiguous in it: sums
// over ranks can then be the sums over micro-batches of one rank, in the same order.
class DistributedSampler : public Sampler {
 public:
  // Throws Error for a rank outside [0, num_ranks), more ranks than samples, or a stream that does
  // not fill one window.
  DistributedSampler(std::shared_ptr<const Sampler> base, int rank, int num_ranks, int64_t window);
  // Whole windows only, so that every rank has as many.
  int64_t size() const override;
  int64_t num_samples() const override { return base_->num_samples(); }
  int64_t Sample(int64_t index) const override;
  std::optional<WindowPlace> PlaceOf(int64_t index) const override;

 private:
  std::shared_ptr<const Sampler> base_;
  int64_t rank_, num_ranks_, window_;
};

}  // namespace apogee::data

#endif  // APOGEE_DATA_SAMPLER_H_
