// SPDX-License-Identifier: Apache-2.0

#include "apogee/data/sampler.h"

#include <utility>

#include "apogee/core/error.h"

namespace apogee::data {

SequentialSampler::SequentialSampler(int64_t num_samples) : num_samples_(num_samples) {
  APOGEE_CHECK(num_samples >= 1, "SequentialSampler: needs at least one sample, got ", num_samples);
}

int64_t SequentialSampler::Sample(int64_t index) const {
  APOGEE_CHECK(index >= 0 && index < num_samples_, "SequentialSampler: place ", index,
               " is outside [0, ", num_samples_, ")");
  return index;
}

ShuffleSampler::ShuffleSampler(int64_t num_samples, uint64_t seed)
    : num_samples_(num_samples), key_(MakeKey(seed, "shuffle")), half_bits_(1) {
  APOGEE_CHECK(num_samples >= 1, "ShuffleSampler: needs at least one sample, got ", num_samples);
  while ((uint64_t{1} << (2 * half_bits_)) < static_cast<uint64_t>(num_samples)) ++half_bits_;
}

int64_t ShuffleSampler::Sample(int64_t index) const {
  APOGEE_CHECK(index >= 0, "ShuffleSampler: place ", index, " is negative");
  const PhiloxKey epoch_key = SubKey(key_, static_cast<uint64_t>(index / num_samples_));
  auto value = static_cast<uint64_t>(index % num_samples_);
  do {
    value = Permute(epoch_key, value);
  } while (value >= static_cast<uint64_t>(num_samples_));
  return static_cast<int64_t>(value);
}

uint64_t ShuffleSampler::Permute(PhiloxKey key, uint64_t value) const {
  // On halves of a few bits four rounds prefer some permutations.
  const uint64_t rounds = half_bits_ <= 3 ? 10 : 4;
  const uint64_t mask = (uint64_t{1} << half_bits_) - 1;
  uint64_t left = value >> half_bits_;
  uint64_t right = value & mask;
  for (uint64_t round = 0; round < rounds; ++round) {
    const uint64_t mixed = left ^ (Philox(key, right, round)[0] & mask);
    left = right;
    right = mixed;
  }
  return (left << half_bits_) | right;
}

DistributedSampler::DistributedSampler(std::shared_ptr<const Sampler> base, int rank, int num_ranks,
                                       int64_t window)
    : base_(std::move(base)), share_{.rank = rank, .num_ranks = num_ranks, .window = window} {
  APOGEE_CHECK(base_ != nullptr, "DistributedSampler: the base sampler must not be null");
  APOGEE_CHECK(num_ranks >= 1, "DistributedSampler: needs at least one rank, got ", num_ranks);
  APOGEE_CHECK(rank >= 0 && rank < num_ranks, "DistributedSampler: rank ", rank, " is outside [0, ",
               num_ranks, ")");
  APOGEE_CHECK(window >= 1, "DistributedSampler: window must be at least 1, got ", window);
  APOGEE_CHECK(num_ranks <= base_->num_samples(), "DistributedSampler: ", num_ranks,
               " ranks share only ", base_->num_samples(),
               " samples; use fewer ranks or more data");
  APOGEE_CHECK(size() != 0, "DistributedSampler: ", base_->size(),
               " samples do not fill one window of ", window, " on each of ", num_ranks,
               " ranks; use a smaller window or more data");
}

int64_t DistributedSampler::size() const {
  if (base_->size() == kEndless) return kEndless;
  return base_->size() / (share_.num_ranks * share_.window) * share_.window;
}

int64_t DistributedSampler::Sample(int64_t index) const {
  APOGEE_CHECK(index >= 0 && (size() == kEndless || index < size()), "DistributedSampler: place ",
               index, " is outside [0, ", size(), ")");
  return base_->Sample(share_.PositionOf(index));
}

}  // namespace apogee::data
