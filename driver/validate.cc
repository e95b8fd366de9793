// SPDX-License-Identifier: Apache-2.0

#include "apogee/driver/validate.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <vector>

#include "apogee/autograd/grad_mode.h"
#include "apogee/data/loader.h"
#include "apogee/driver/reports.h"
#include "apogee/nn/losses.h"

namespace apogee::driver {

ValidationEvent Validate(Booster& booster, const Boosted& boosted, const Corpus& corpus,
                         const comm::World& world, const ValidateOptions& options) {
  const autograd::NoGradGuard no_grad;
  const auto averages = booster.evaluation_weights();
  boosted.model.Train(false);
  const Plugin& plugin = booster.plugin();
  const auto& samples = corpus.validation_samples;
  data::Loader loader(samples, std::make_shared<data::SequentialSampler>(samples->num_samples()),
                      world.context(),
                      {.batch = options.batch / plugin.data_size(), .drop_last = false});
  const auto block = static_cast<double>(samples->block());
  double sum = 0, weights = 0;  // in samples whose targets all count
  // A forward may be collective (sharded parameters), so every rank runs the same number of them;
  // in the last round a rank may repeat a batch that is not counted.
  // A dry run prices one round; the others are alike.
  const int64_t end =
      world.context()->is_dry() ? std::min<int64_t>(1, loader.size()) : loader.size();
  for (int64_t round = 0; round < end; round += plugin.data_size()) {
    const int64_t i = round + plugin.data_rank();
    const data::Batch batch = loader.At(std::min(i, loader.size() - 1));
    const double mean =
        booster.execute_pipeline(batch, boosted.model, boosted.criterion, nullptr).loss.Item();
    const double weight = static_cast<double>(nn::CountTargets(batch.targets)) / block;
    if (i >= loader.size() || weight == 0) continue;
    sum += mean * weight;
    weights += weight;
  }
  boosted.model.Train(true);
  const std::vector<double> sums = SumOverRanks(world, {sum, weights});
  const double copies = world.size() / plugin.data_size();  // ranks with the same sum
  const auto tokens = static_cast<int64_t>(std::llround(sums[1] / copies * block));
  return {.step = options.step,
          .loss = sums[0] / sums[1],
          .tokens = tokens,
          .bytes = world.rank() == 0 ? ValidationBytes(corpus, tokens) : 0};
}

}  // namespace apogee::driver
