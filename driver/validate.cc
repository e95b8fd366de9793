// SPDX-License-Identifier: Apache-2.0

#include "apogee/driver/validate.h"

#include <algorithm>
#include <memory>

#include "apogee/autograd/grad_mode.h"
#include "apogee/data/loader.h"
#include "apogee/data/token_dataset.h"
#include "apogee/driver/reports.h"

namespace apogee::driver {

ValidationEvent Validate(const Boosted& boosted, const Plugin& plugin, const Corpus& corpus,
                         const comm::World& world, const ValidateOptions& options) {
  const autograd::NoGradGuard no_grad;
  boosted.model.Train(false);
  const auto dataset = std::make_shared<data::BlockDataset>(
      corpus.validation, data::BlockOptions{.block = options.block});
  const int64_t num_samples = dataset->num_samples();
  data::Loader loader(dataset, std::make_shared<data::SequentialSampler>(num_samples),
                      world.context(),
                      {.batch = options.batch / plugin.data_size(), .drop_last = false});
  double sum = 0;  // over samples
  // A forward may be collective (sharded parameters), so every rank runs the same number of them;
  // in the last round a rank may repeat a batch that is not counted.
  for (int64_t round = 0; round < loader.size(); round += plugin.data_size()) {
    const int64_t i = round + plugin.data_rank();
    const data::Batch batch = loader.At(std::min(i, loader.size() - 1));
    const double mean = boosted.criterion(boosted.model(batch.inputs), batch.targets).Item();
    if (i < loader.size()) sum += mean * static_cast<double>(batch.inputs.size(0));
  }
  boosted.model.Train(true);
  const double copies = world.size() / plugin.data_size();  // ranks with the same sum
  return {.step = options.step,
          .loss = SumOverRanks(world, {sum})[0] / (copies * static_cast<double>(num_samples)),
          .tokens = num_samples * options.block,
          .bytes = world.rank() == 0 ? ValidationBytes(corpus, num_samples * options.block) : 0};
}

}  // namespace apogee::driver
