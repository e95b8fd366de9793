// SPDX-License-Identifier: Apache-2.0

// Mixtures: samples of several datasets, in exact shares.
//
//   auto mixture = std::make_shared<MixtureDataset>(MixtureDataset::Parts{web, code});
//   auto order = std::make_shared<MixtureSampler>(
//       *mixture, MixtureOptions{.weights = {0.7, 0.3}, .window = 100, .seed = 1});
//   Loader loader(mixture, order, context, {.batch = 16});              // 70 and 30 of every 100
//
// The stream is divided into windows. A window has a whole number of samples of each part, its
// quota, at shuffled places. Quotas differ between windows so that shares that are no whole numbers
// are right in the long run: after any number of windows, the count of each part differs from its
// exact share by less than 1. Each part has an order of its own, and begins a new permutation when
// all its samples have been used.
//
// The order is a pure function of (weights, window, seed, position), as that of ShuffleSampler.
#ifndef APOGEE_DATA_MIXTURE_H_
#define APOGEE_DATA_MIXTURE_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "apogee/data/dataset.h"
#include "apogee/data/sampler.h"

namespace apogee::data {

// Datasets of the same fields as one: the samples of the first, then those of the second, ...
class MixtureDataset : public Dataset {
 public:
  using Parts = std::vector<std::shared_ptr<const Dataset>>;
  // Throws Error for no parts, and for parts whose fields differ.
  explicit MixtureDataset(Parts parts);
  int64_t num_samples() const override { return begins_.back(); }
  int64_t block() const override { return parts_[0]->block(); }
  std::vector<Field> fields() const override { return parts_[0]->fields(); }
  void FillFields(int64_t index, const SampleMemory& sample) const override;

  // Samples of each part.
  std::vector<int64_t> sizes() const;

 private:
  Parts parts_;
  std::vector<int64_t> begins_;  // of the parts, and the end
};

struct MixtureOptions {
  // Of each part, above 0; their sum is taken as the whole.
  std::vector<double> weights;
  // Samples per window. Every part needs a share of at least one sample.
  int64_t window = 1024;
  uint64_t seed = 0;
};

class MixtureSampler : public Sampler {
 public:
  // Throws Error for weights that are not positive and finite, for another number of weights than
  // of parts, and for a window too small for the smallest weight.
  MixtureSampler(const MixtureDataset& dataset, const MixtureOptions& options);

  int64_t size() const override { return kEndless; }
  int64_t num_samples() const override { return begins_.back(); }
  int64_t Sample(int64_t index) const override;
  // Samples of each part in the first `num_windows` windows.
  std::vector<int64_t> CountsAfter(int64_t num_windows) const;

 private:
  // A weight in 2^-62 of the whole.
  static constexpr int kShareBits = 62;

  std::vector<uint64_t> shares_;
  std::vector<ShuffleSampler> orders_;
  std::vector<int64_t> begins_;
  int64_t window_;
  ShuffleSampler places_;  // epoch n: the places in window n
};

}  // namespace apogee::data

#endif  // APOGEE_DATA_MIXTURE_H_
