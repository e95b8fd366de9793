#include "apogee/examples/common/validate.h"

#include <memory>

#include "apogee/autograd/grad_mode.h"
#include "apogee/data/loader.h"

using namespace apogee;

ValidationEvent Validate(Boosted& boosted, const data::TextCorpus& corpus, const comm::World& world,
                         const DataPart& part, const ValidateOptions& options) {
  const autograd::NoGradGuard no_grad;
  boosted.model.Train(false);
  const auto dataset = std::make_shared<data::TextDataset>(corpus.validation(), options.block,
                                                           /*stride=*/options.block);
  const int64_t num_samples = dataset->num_samples();
  data::Loader loader(dataset, std::make_shared<data::SequentialSampler>(num_samples),
                      world.context(), {.batch = options.batch / part.size, .drop_last = false});
  double sum = 0;  // over samples
  for (int64_t i = part.rank; i < loader.size(); i += part.size) {
    const data::Batch batch = loader.At(i);
    const double mean = boosted.criterion(boosted.model(batch.inputs), batch.targets).Item();
    sum += mean * static_cast<double>(batch.inputs.size(0));
  }
  boosted.model.Train(true);
  const double copies = world.size() / part.size;  // of each part's sum
  return {.step = options.step,
          .loss = SumOverRanks(world, {sum})[0] / (copies * static_cast<double>(num_samples)),
          .tokens = num_samples * options.block};
}
