// Samplers: which sample comes at which place of the stream.
//
//   ShuffleSampler order(train.num_samples(), /*seed=*/1);
//   int64_t first = order.Sample(0);         // a pure function of (seed, index)
//
// A sampler has no state, so a run resumes at any index at no cost, and ranks that share the seed
// agree on the whole order without talking. Thread-safe.
#ifndef APOGEE_DATA_SAMPLER_H_
#define APOGEE_DATA_SAMPLER_H_

#include <cstdint>

#include "apogee/core/rng.h"

namespace apogee::data {

class Sampler {
 public:
  static constexpr int64_t kEndless = -1;

  virtual ~Sampler() = default;
  // Length of the stream, or kEndless.
  virtual int64_t size() const = 0;
  // The dataset's sample at place `index` >= 0 of the stream.
  virtual int64_t Sample(int64_t index) const = 0;
};

// 0, 1, 2, … once: validation.
class SequentialSampler : public Sampler {
 public:
  explicit SequentialSampler(int64_t num_samples);
  int64_t size() const override { return num_samples_; }
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
  int64_t Sample(int64_t index) const override;

 private:
  uint64_t Permute(PhiloxKey key, uint64_t value) const;

  int64_t num_samples_;
  PhiloxKey key_;
  int half_bits_;
};

}  // namespace apogee::data

#endif  // APOGEE_DATA_SAMPLER_H_
