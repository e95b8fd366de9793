// SPDX-License-Identifier: Apache-2.0

// Mistakes with data: too few samples, batches and losses of the wrong kind.
#include <memory>

#include "apogee/apogee.h"
#include "misuse_cases.h"
#include "tokens.h"

namespace outside {
namespace {

namespace data = apogee::data;

std::shared_ptr<MmapTokens> SmallDataset(const RankSetup& rank) {
  const std::string file = rank.Folder() + "_" + std::to_string(rank.world.rank());
  WriteTokens(file, 200, rank.config.vocab);
  auto dataset = std::make_shared<MmapTokens>(file, MmapTokens::Options{});
  std::remove(file.c_str());
  return dataset;
}

// The dataset's own Fill checks nothing.
void SamplerLongerThanDataset(RankSetup& rank) {
  data::Loader loader(SmallDataset(rank), std::make_shared<data::SequentialSampler>(1 << 20),
                      rank.context(), {.batch = 4});
  loader.At(100000);
}

void BatchLargerThanDataset(RankSetup& rank) {
  data::Loader(SmallDataset(rank), std::make_shared<data::SequentialSampler>(20), rank.context(),
               {.batch = 64});
}

void MoreBatchesThanSamples(RankSetup& rank) {
  data::Loader loader(SmallDataset(rank), std::make_shared<data::SequentialSampler>(20),
                      rank.context(), {.batch = 4});
  for (int64_t i = 0; i <= loader.size(); ++i) loader.Next();
}

}  // namespace

std::vector<MisuseCase> DataMistakes() {
  return {{"sampler_longer_than_dataset", "single", "dataset->num_samples()",
           &SamplerLongerThanDataset},
          {"batch_larger_than_dataset", "single", "batch", &BatchLargerThanDataset},
          {"more_batches_than_samples", "single", "batch", &MoreBatchesThanSamples}};
}

}  // namespace outside
