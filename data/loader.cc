// SPDX-License-Identifier: Apache-2.0

#include "apogee/data/loader.h"

#include <algorithm>
#include <limits>
#include <tuple>
#include <utility>

#include "apogee/data/batch_maker.h"
#include "apogee/data/prefetcher.h"

namespace apogee::data {

bool Batch::Has(const std::string& name) const {
  if (name == "inputs") return inputs.defined();
  if (name == "targets") return targets.defined();
  return more.contains(name);
}

const Tensor& Batch::operator[](const std::string& name) const {
  if (!Has(name)) {
    std::string names = targets.defined() ? "inputs, targets" : "inputs";
    for (const auto& [known, tensor] : more) names += ", " + known;
    Throw("Batch: no field \"", name, "\"; the dataset gives ", names);
  }
  return name == "inputs" ? inputs : name == "targets" ? targets : more.at(name);
}

Loader::Loader(std::shared_ptr<const Dataset> dataset, std::shared_ptr<const Sampler> sampler,
               ContextPtr context, const LoaderOptions& options)
    : options_(options),
      context_(std::move(context)),
      maker_(std::make_shared<BatchMaker>(std::move(dataset), std::move(sampler), HostOf(context_),
                                          options)) {}

Loader::~Loader() { StopPrefetching(); }
Loader::Loader(Loader&&) noexcept = default;

void Loader::StopPrefetching() {
  // A forked child has a copy of the prefetcher, but not its threads, and perhaps a mutex that one
  // of them held. Nothing can be done with it there.
  if (prefetcher_ != nullptr && !prefetcher_->has_threads()) std::ignore = prefetcher_.release();
  prefetcher_.reset();
}

int64_t Loader::block() const { return maker_->dataset().block(); }

int64_t Loader::size() const { return BatchesFrom(0, 0); }

int64_t Loader::BatchesFrom(int64_t origin, int64_t position) const {
  const int64_t samples = maker_->SizeFrom(origin);
  if (samples == Sampler::kEndless) return Sampler::kEndless;
  const int64_t left = std::max<int64_t>(0, samples - position);
  return (left + (options_.drop_last ? 0 : options_.batch - 1)) / options_.batch;
}

int64_t Loader::Left() const {
  const int64_t remaining = BatchesFrom(origin_, position_);
  if (remaining == Sampler::kEndless) return options_.num_batches;
  return options_.num_batches == LoaderOptions::kAll ? remaining
                                                     : std::min(options_.num_batches, remaining);
}

LoaderState Loader::state() const {
  const Sampler::Share& share = maker_->share();
  APOGEE_CHECK(position_ % share.window == 0, "Loader::state: this rank has used ",
               position_ % share.window, " of its ", share.window,
               " samples of a window; ask after the window's last batch, or make the sampler with "
               "the window of one optimizer step");
  return {.samples = origin_ + position_ * share.num_ranks};
}

void Loader::set_state(const LoaderState& state) {
  APOGEE_CHECK(state.samples >= 0, "Loader: samples must not be negative, got ", state.samples);
  StopPrefetching();
  origin_ = state.samples;
  position_ = 0;
}

void Loader::Skip(int64_t num_batches) {
  for (int64_t i = 0; i < num_batches; ++i) position_ += maker_->RowsAt(origin_, position_);
}

MadeBatch Loader::NextMade() {
  const int64_t first = position_, rows = maker_->RowsAt(origin_, first);
  APOGEE_CHECK(rows > 0, "Loader: the stream has no further batch: ", maker_->SizeFrom(origin_),
               " samples of this rank end after ", first);
  position_ += rows;
  if (options_.threads == 0) return maker_->Make(origin_, first);
  const bool goes_on = prefetcher_ != nullptr && prefetcher_->has_threads() &&
                       prefetched_from_ + prefetcher_->next() * options_.batch == first;
  if (!goes_on) StartPrefetching(first);
  return prefetcher_->Take();
}

void Loader::StartPrefetching(int64_t first) {
  StopPrefetching();
  const int64_t num_batches = BatchesFrom(origin_, first);
  prefetcher_ = std::make_unique<Prefetcher>(
      [maker = maker_, origin = origin_, first, batch = options_.batch](int64_t k) {
        return maker->Make(origin, first + k * batch);
      },
      num_batches == Sampler::kEndless ? std::numeric_limits<int64_t>::max() : num_batches,
      Prefetcher::Options{
          .threads = options_.threads,
          .ahead = options_.prefetch > 0 ? options_.prefetch : int64_t{2} * options_.threads});
  prefetched_from_ = first;
}

Batch Loader::Moved(MadeBatch made) const {
  Batch batch{made.batch.inputs.To(context_), made.batch.targets};
  if (batch.targets.defined()) batch.targets = batch.targets.To(context_);
  for (const auto& [name, tensor] : made.batch.more) batch.more.emplace(name, tensor.To(context_));
  if (made.place) batch.inputs.storage()->set_sample_place(*made.place, made.sample_numel);
  return batch;
}

Batch Loader::At(int64_t index) const {
  APOGEE_CHECK(index >= 0 && (size() == Sampler::kEndless || index < size()), "Loader: batch ",
               index, " is outside [0, ", size(), ")");
  return Moved(maker_->Make(0, index * options_.batch));
}

Batch Loader::Next() { return Moved(NextMade()); }

Window Loader::NextWindow(int64_t num_batches) {
  APOGEE_CHECK(num_batches >= 1, "Loader: a window needs at least one batch, got ", num_batches);
  const int64_t left = BatchesFrom(origin_, position_);
  APOGEE_CHECK(left == Sampler::kEndless || left >= num_batches, "Loader: a window of ",
               num_batches, " batches, but the stream has only ", left, " more");
  Window window;
  for (int64_t i = 0; i < num_batches; ++i) {
    MadeBatch made = NextMade();
    window.num_targets += made.num_targets;
    window.batches.push_back(Moved(std::move(made)));
  }
  return window;
}

Loader::WindowRange Loader::Windows(int64_t num_batches) {
  APOGEE_CHECK(num_batches >= 1, "Loader: a window needs at least one batch, got ", num_batches);
  APOGEE_CHECK(
      options_.num_batches == LoaderOptions::kAll || options_.num_batches % num_batches == 0,
      "Loader: num_batches is ", options_.num_batches, ", which is no multiple of a window of ",
      num_batches, " batches");
  return {this, num_batches};
}

}  // namespace apogee::data
