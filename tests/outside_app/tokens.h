// SPDX-License-Identifier: Apache-2.0

// Tokens on disk as 16-bit numbers: mapped, never read whole.
//
//   WriteTokens(path, 20000, 61);
//   auto dataset = std::make_shared<MmapTokens>(path, MmapTokens::Options{.block = 8});
#ifndef OUTSIDE_APP_TOKENS_H_
#define OUTSIDE_APP_TOKENS_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "apogee/data/dataset.h"
#include "apogee/data/sampler.h"

namespace outside {

// `count` tokens below `vocab`, always the same, with something in them to learn.
void WriteTokens(const std::string& path, int64_t count, int64_t vocab);

// Samples of `block` tokens that do not overlap.
class MmapTokens : public apogee::data::Dataset {
 public:
  struct Options {
    int64_t block = 8;
    // Targets behind a sample's own length are -100, as those of padding are. Lengths go from 0
    // to `block`; of 16 samples that follow each other the second four have length 0.
    bool padded = false;
  };
  // Throws Error for a file that cannot be mapped or holds no sample.
  MmapTokens(const std::string& path, const Options& options);
  ~MmapTokens() override;
  MmapTokens(const MmapTokens&) = delete;
  MmapTokens& operator=(const MmapTokens&) = delete;

  int64_t num_samples() const override { return (count_ - 1) / options_.block; }
  int64_t block() const override { return options_.block; }
  // Unchecked: the loader asks for samples of the sampler alone.
  void Fill(int64_t index, int64_t* inputs, int64_t* targets) const override;

 private:
  Options options_;
  size_t bytes_ = 0;
  int64_t count_ = 0;
  const uint16_t* tokens_ = nullptr;
};

// A rank's part of a stream whose batches are shared out unevenly: of every `sum of sizes` samples
// rank r takes sizes[r].
class UnevenSampler : public apogee::data::Sampler {
 public:
  UnevenSampler(std::shared_ptr<const apogee::data::Sampler> base, int64_t first, int64_t size,
                int64_t total)
      : base_(std::move(base)), first_(first), size_(size), total_(total) {}
  int64_t size() const override { return kEndless; }
  int64_t num_samples() const override { return base_->num_samples(); }
  int64_t Sample(int64_t index) const override {
    return base_->Sample(index / size_ * total_ + first_ + index % size_);
  }

 private:
  std::shared_ptr<const apogee::data::Sampler> base_;
  int64_t first_, size_, total_;
};

}  // namespace outside

#endif  // OUTSIDE_APP_TOKENS_H_
