// SPDX-License-Identifier: Apache-2.0

#include "apogee/data/loader.h"

#include <algorithm>
#include <utility>

namespace apogee::data {

Loader::Loader(std::shared_ptr<const Dataset> dataset, std::shared_ptr<const Sampler> sampler,
               ContextPtr context, const LoaderOptions& options)
    : dataset_(std::move(dataset)),
      sampler_(std::move(sampler)),
      context_(std::move(context)),
      options_(options) {
  APOGEE_CHECK(dataset_ != nullptr && sampler_ != nullptr && context_ != nullptr,
               "Loader: dataset, sampler and context must not be null");
  APOGEE_CHECK(options_.batch >= 1, "Loader: batch must be at least 1, got ", options_.batch);
  APOGEE_CHECK(options_.num_batches >= LoaderOptions::kAll,
               "Loader: num_batches must be kAll or at least 0, got ", options_.num_batches);
  APOGEE_CHECK(sampler_->num_samples() <= dataset_->num_samples(),
               "Loader: the sampler draws from ", sampler_->num_samples(),
               " samples, the dataset has ", dataset_->num_samples(),
               "; make the sampler for dataset->num_samples()");
  APOGEE_CHECK(size() != 0, "Loader: ", sampler_->size(), " samples do not fill one batch of ",
               options_.batch, "; lower the batch");
}

int64_t Loader::size() const {
  if (sampler_->size() == Sampler::kEndless) return Sampler::kEndless;
  return (sampler_->size() + (options_.drop_last ? 0 : options_.batch - 1)) / options_.batch;
}

void Loader::set_state(const LoaderState& state) {
  APOGEE_CHECK(state.next_batch >= 0, "Loader: next_batch must not be negative, got ",
               state.next_batch);
  state_ = state;
}

Batch Loader::At(int64_t index) const {
  APOGEE_CHECK(index >= 0 && (size() == Sampler::kEndless || index < size()), "Loader: batch ",
               index, " is outside [0, ", size(), ")");
  const int64_t block = dataset_->block(), num_samples = dataset_->num_samples();
  const int64_t first = index * options_.batch;
  const int64_t rows = size() == Sampler::kEndless
                           ? options_.batch
                           : std::min(options_.batch, sampler_->size() - first);
  const Shape shape{rows, block};
  const ContextPtr& host = HostOf(context_);
  const Batch batch{Tensor::Empty(shape, DType::kI64, host),
                    Tensor::Empty(shape, DType::kI64, host)};
  auto* inputs = batch.inputs.data<int64_t>();
  auto* targets = batch.targets.data<int64_t>();
  for (int64_t row = 0; row < rows; ++row) {
    const int64_t sample = sampler_->Sample(first + row);
    APOGEE_CHECK(sample >= 0 && sample < num_samples, "Loader: at place ", first + row,
                 " of the stream the sampler names sample ", sample, ", the dataset has ",
                 num_samples, "; make the sampler for dataset->num_samples()");
    dataset_->Fill(sample, inputs + row * block, targets + row * block);
  }
  const Batch moved{batch.inputs.To(context_), batch.targets.To(context_)};
  const std::optional<Sampler::WindowPlace> place = sampler_->PlaceOf(first);
  if (place && rows <= place->length) {
    moved.inputs.storage()->set_sample_place(
        {.stream = stream_, .window = place->window, .first = place->first}, block);
  }
  return moved;
}

Loader::Iterator Loader::begin() {
  int64_t left = options_.num_batches;
  if (size() != Sampler::kEndless) {
    const int64_t remaining = std::max<int64_t>(0, size() - state_.next_batch);
    left = left == LoaderOptions::kAll ? remaining : std::min(left, remaining);
  }
  return Iterator(this, left);
}

Batch& Loader::Iterator::operator*() {
  // The batch is made on first access, not in ++, so a loop that ends early has taken from the
  // stream only the batches it used.
  if (!batch_.inputs.defined()) batch_ = loader_->Next();
  return batch_;
}

Loader::Iterator& Loader::Iterator::operator++() {
  if (!batch_.inputs.defined()) ++loader_->state_.next_batch;  // skipped without being read
  batch_ = {};
  if (left_ > 0) --left_;
  return *this;
}

}  // namespace apogee::data
