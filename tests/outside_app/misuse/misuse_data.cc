// SPDX-License-Identifier: Apache-2.0

// Mistakes with data: too few samples, batches and losses of the wrong kind.
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

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

// A token file of another tokenizer than the model's.
void TokensBeyondVocabulary(RankSetup& rank) {
  const std::string path = rank.Folder() + "_" + std::to_string(rank.world.rank()) + ".bin";
  const auto file = apogee::ValueOrThrow(data::TokenFileWriter::Create(path, {}));
  const std::vector<int32_t> ids = {1, static_cast<int32_t>(rank.config.vocab)};
  apogee::OkOrThrow(file->Append(ids));
  apogee::OkOrThrow(file->Finish());
  const data::TokenFileOptions options{.vocab_size = rank.config.vocab};
  const data::TokenSourcePtr source = apogee::ValueOrThrow(data::OpenTokenFile(path, options));
  std::remove(path.c_str());
  std::vector<int32_t> read(2);
  source->Read(0, read);
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
          {"tokens_beyond_vocabulary", "single", ".bin: token 1 is", &TokensBeyondVocabulary},
          {"batch_larger_than_dataset", "single", "batch", &BatchLargerThanDataset},
          {"more_batches_than_samples", "single", "batch", &MoreBatchesThanSamples}};
}

}  // namespace outside
