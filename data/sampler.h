// SPDX-License-Identifier: Apache-2.0

// Samplers: the order in which a dataset's samples are used.
//
//   ShuffleSampler order(train.num_samples(), /*seed=*/1);
//   int64_t first = order.Sample(0);         // a pure function of (seed, index)
//
// A sampler gives an endless or finite stream of sample indices. It has no state, so a run resumes
// at any position at no cost, and ranks with the same seed agree on the whole order without
// communicating. DistributedSampler gives each rank its part of a stream. Thread-safe.
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
  // The number of different samples in it.
  virtual int64_t num_samples() const = 0;
  // The index in the dataset of the sample at position `index` >= 0 of the stream.
  virtual int64_t Sample(int64_t index) const = 0;

  // For a sampler that gives each rank its part of one stream that all ranks share.
  struct Share {
    int64_t rank = 0, num_ranks = 1;
    // Of num_ranks * window samples of the stream that follow each other, this rank has the
    // `rank`-th part.
    int64_t window = 1;
    // The position in the stream of sample `index` of this rank's part.
    int64_t PositionOf(int64_t index) const {
      return (index / window * num_ranks + rank) * window + index % window;
    }
  };
  // Empty: this sampler's stream is a stream of its own.
  virtual std::optional<Share> share() const { return std::nullopt; }
  // The stream that the ranks share.
  virtual const Sampler& shared_stream() const { return *this; }
};

// 0, 1, 2, …, once; for validation.
class SequentialSampler : public Sampler {
 public:
  explicit SequentialSampler(int64_t num_samples);
  int64_t size() const override { return num_samples_; }
  int64_t num_samples() const override { return num_samples_; }
  int64_t Sample(int64_t index) const override;

 private:
  int64_t num_samples_;
};

// Endless: every epoch is another permutation of all samples. The permutation is computed, not
// stored, so a range of 10^12 samples costs no memory: a Feistel network of four rounds (ten up to
// 64 samples) over the next power of four, applied until the result is in range (cycle walking;
// Black and Rogaway, "Ciphers with arbitrary finite domains", CT-RSA 2002).
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

// One rank's part of a stream that all ranks share. The stream is divided into windows of num_ranks
// * `window` samples, and rank r takes samples [r * window, (r + 1) * window) of each:
//
//   auto order = std::make_shared<ShuffleSampler>(train->num_samples(), seed);
//   DistributedSampler mine(order, world.rank(), world.size(), /*window=*/batch * accumulate);
//
// As `window` choose the number of samples that a rank uses per optimizer step. Then the ranks
// together use in each step the samples that one rank with the whole batch would use. Each rank's
// part is contiguous, so sums over ranks can equal one rank's sums over micro-batches, in the same
// order. If the loss is not a mean over samples (batch norm, auxiliary losses of experts), choose
// the number per micro-batch: then the ranks together also have one rank's micro-batches.
class DistributedSampler : public Sampler {
 public:
  // Throws Error for a rank outside [0, num_ranks), for more ranks than samples, and for a stream
  // shorter than one window.
  DistributedSampler(std::shared_ptr<const Sampler> base, int rank, int num_ranks, int64_t window);
  // Counts whole windows only, so every rank has the same number of samples.
  int64_t size() const override;
  int64_t num_samples() const override { return base_->num_samples(); }
  int64_t Sample(int64_t index) const override;
  std::optional<Share> share() const override { return share_; }
  const Sampler& shared_stream() const override { return *base_; }

 private:
  std::shared_ptr<const Sampler> base_;
  Share share_;
};

}  // namespace apogee::data

#endif  // APOGEE_DATA_SAMPLER_H_
