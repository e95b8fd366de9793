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

void MixtureWithoutWeight(RankSetup& rank) {
  const data::MixtureDataset mixture(
      data::MixtureDataset::Parts{SmallDataset(rank), SmallDataset(rank)});
  data::MixtureSampler(mixture, {.weights = {1, 0}});
}

void FieldThatIsMissing(RankSetup& rank) {
  const auto blocks = std::make_shared<data::BlockDataset>(
      std::make_shared<data::MemoryTokenSource>(std::vector<int32_t>(100, 1)),
      data::BlockOptions{.block = 8});
  data::Loader loader(blocks, std::make_shared<data::SequentialSampler>(blocks->num_samples()),
                      rank.context(), {.threads = 1});
  rank.model->Forward(loader.Next()["starts"]);
}

// The ranks have used the first half of their parts, which is not the first half of the samples.
void StateWithinAWindow(RankSetup& rank) {
  const auto order = std::make_shared<data::DistributedSampler>(
      std::make_shared<data::SequentialSampler>(20), rank.world.rank(), rank.world.size(), 4);
  data::Loader loader(SmallDataset(rank), order, rank.context(), {.batch = 2});
  loader.Next();
  loader.set_state(loader.state());
}

}  // namespace

std::vector<MisuseCase> DataMistakes() {
  return {{"sampler_longer_than_dataset", "single", "dataset->num_samples()",
           &SamplerLongerThanDataset},
          {"tokens_beyond_vocabulary", "single", ".bin: token 1 is", &TokensBeyondVocabulary},
          {"batch_larger_than_dataset", "single", "batch", &BatchLargerThanDataset},
          {"more_batches_than_samples", "single", "batch", &MoreBatchesThanSamples},
          {"mixture_without_weight", "single", "above 0", &MixtureWithoutWeight},
          {"field_that_is_missing", "single", "gives inputs, targets", &FieldThatIsMissing},
          {"state_within_a_window", "single", "last batch", &StateWithinAWindow}};
}

}  // namespace outside
