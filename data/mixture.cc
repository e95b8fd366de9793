// SPDX-License-Identifier: Apache-2.0

#include "apogee/data/mixture.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <string>
#include <utility>

namespace apogee::data {
namespace {

std::string Describe(const std::vector<Field>& fields) {
  std::string text;
  for (const Field& field : fields) {
    text += (text.empty() ? "" : ", ") + field.name + " " + DTypeName(field.dtype) + " " +
            field.shape.ToString();
  }
  return text;
}

// The parts of a sum of `total` = 2^bits in proportion to the weights: rounded down, and what is
// left to the largest remainders.
std::vector<uint64_t> SharesOf(const std::vector<double>& weights, int bits) {
  long double sum = 0;
  for (const double weight : weights) sum += weight;
  std::vector<uint64_t> shares;
  std::vector<std::pair<long double, size_t>> remainders;
  uint64_t left = uint64_t{1} << bits;
  for (size_t k = 0; k < weights.size(); ++k) {
    const long double exact = std::ldexp(weights[k] / sum, bits);
    const auto share = std::min(static_cast<uint64_t>(exact), left);
    shares.push_back(share);
    remainders.emplace_back(static_cast<long double>(share) - exact, k);
    left -= share;
  }
  std::ranges::sort(remainders);
  for (size_t i = 0; left > 0; ++i, --left) ++shares[remainders[i % remainders.size()].second];
  return shares;
}

uint64_t SeedOf(uint64_t seed, size_t part) {
  const PhiloxKey key = SubKey(MakeKey(seed, "mixture"), part);
  return key.a | static_cast<uint64_t>(key.b) << 32;
}

}  // namespace

MixtureDataset::MixtureDataset(Parts parts) : parts_(std::move(parts)), begins_{0} {
  APOGEE_CHECK(!parts_.empty(), "MixtureDataset: there are no datasets to mix");
  for (size_t k = 0; k < parts_.size(); ++k) {
    APOGEE_CHECK(parts_[k] != nullptr, "MixtureDataset: dataset ", k, " is null");
    const std::string first = Describe(parts_[0]->fields()), own = Describe(parts_[k]->fields());
    APOGEE_CHECK(own == first, "MixtureDataset: dataset ", k, " has fields ", own,
                 ", the first has ", first, "; samples of a batch need the same");
    begins_.push_back(begins_.back() + parts_[k]->num_samples());
  }
}

std::vector<int64_t> MixtureDataset::sizes() const {
  std::vector<int64_t> sizes;
  for (const auto& part : parts_) sizes.push_back(part->num_samples());
  return sizes;
}

void MixtureDataset::FillFields(int64_t index, const SampleMemory& sample) const {
  APOGEE_CHECK(index >= 0 && index < num_samples(), "MixtureDataset: sample ", index,
               " is outside [0, ", num_samples(), ")");
  const auto part = std::ranges::upper_bound(begins_, index) - begins_.begin() - 1;
  const auto k = static_cast<size_t>(part);
  parts_[k]->FillFields(index - begins_[k], sample);
}

MixtureSampler::MixtureSampler(const MixtureDataset& dataset, const MixtureOptions& options)
    : begins_{0}, window_(options.window), places_(std::max<int64_t>(1, window_), options.seed) {
  const std::vector<int64_t> sizes = dataset.sizes();
  const std::vector<double>& weights = options.weights;
  APOGEE_CHECK(weights.size() == sizes.size(), "MixtureSampler: ", weights.size(), " weights for ",
               sizes.size(), " datasets; give one weight for each");
  APOGEE_CHECK(window_ >= 1 && window_ <= int64_t{1} << 40,
               "MixtureSampler: window must be 1 to 2^40 samples, got ", window_);
  double sum = 0;
  for (size_t k = 0; k < weights.size(); ++k) {
    APOGEE_CHECK(std::isfinite(weights[k]) && weights[k] > 0,
                 "MixtureSampler: the weight of dataset ", k, " is ", weights[k],
                 "; weights must be above 0 and finite; leave out a dataset that is not wanted");
    sum += weights[k];
  }
  APOGEE_CHECK(std::isfinite(sum), "MixtureSampler: the sum of the weights is too large");
  for (size_t k = 0; k < weights.size(); ++k) {
    const double share = static_cast<double>(window_) * (weights[k] / sum);
    APOGEE_CHECK(share >= 1 - 1e-9, "MixtureSampler: dataset ", k, " of weight ", weights[k],
                 " has less than one sample in a window of ", window_,
                 "; use a window of at least ", std::ceil(sum / weights[k]));
    APOGEE_CHECK(sizes[k] >= 1, "MixtureSampler: dataset ", k, " has no samples");
    begins_.push_back(begins_.back() + sizes[k]);
    orders_.emplace_back(sizes[k], SeedOf(options.seed, k));
  }
  shares_ = SharesOf(weights, kShareBits);
}

std::vector<int64_t> MixtureSampler::CountsAfter(int64_t num_windows) const {
  APOGEE_CHECK(num_windows >= 0, "MixtureSampler: ", num_windows, " windows");
  // Rounds the exact counts down, and gives what is left to the largest remainders. A count is then
  // less than 1 off. It never falls from a window to the next: a share of a window is at least 1.
  const auto samples =
      static_cast<unsigned __int128>(num_windows) * static_cast<unsigned __int128>(window_);
  constexpr auto kMask = (uint64_t{1} << kShareBits) - 1;
  std::vector<int64_t> counts;
  std::vector<std::pair<uint64_t, size_t>> missing;  // 2^62 less the remainder, so that ties go on
  auto left = static_cast<int64_t>(samples);
  for (size_t k = 0; k < shares_.size(); ++k) {
    const unsigned __int128 exact = samples * shares_[k];
    counts.push_back(static_cast<int64_t>(exact >> kShareBits));
    missing.emplace_back(kMask - (static_cast<uint64_t>(exact) & kMask), k);
    left -= counts.back();
  }
  std::ranges::sort(missing);
  for (int64_t i = 0; i < left; ++i) ++counts[missing[static_cast<size_t>(i)].second];
  return counts;
}

int64_t MixtureSampler::Sample(int64_t index) const {
  APOGEE_CHECK(index >= 0, "MixtureSampler: place ", index, " is negative");
  const int64_t window = index / window_;
  const std::vector<int64_t> before = CountsAfter(window), after = CountsAfter(window + 1);
  int64_t place = places_.Sample(index);
  for (size_t k = 0; k < before.size(); ++k) {
    const int64_t quota = after[k] - before[k];
    if (place < quota) return begins_[k] + orders_[k].Sample(before[k] + place);
    place -= quota;
  }
  Throw("MixtureSampler: the quotas of window ", window, " do not fill it");
}

}  // namespace apogee::data
