// SPDX-License-Identifier: Apache-2.0

#include "apogee/data/batch_maker.h"

#include <algorithm>
#include <array>
#include <set>
#include <utility>

namespace apogee::data {
namespace {

void CheckFields(const std::vector<Field>& fields) {
  APOGEE_CHECK(!fields.empty() && fields[0].name == "inputs",
               "Loader: the dataset's first field must be \"inputs\", it is ",
               fields.empty() ? "missing" : "\"" + fields[0].name + "\"");
  std::set<std::string> names;
  for (const Field& field : fields) {
    APOGEE_CHECK(names.insert(field.name).second, "Loader: the dataset has two fields \"",
                 field.name, "\"; give each a name of its own");
    APOGEE_CHECK(field.shape.rank() < Shape::kMaxRank, "Loader: field \"", field.name,
                 "\" has shape ", field.shape.ToString(), "; a batch has one dim more, at most ",
                 Shape::kMaxRank);
  }
}

Shape BatchShape(int64_t rows, const Shape& sample) {
  std::vector<int64_t> dims = {rows};
  dims.insert(dims.end(), sample.dims().begin(), sample.dims().end());
  return Shape(dims);
}

int64_t CountTargets(const Tensor& targets) {
  if (!targets.defined()) return 0;
  if (targets.dtype() != DType::kI64) return targets.numel();
  const auto* ids = targets.data<int64_t>();
  return targets.numel() - std::count(ids, ids + targets.numel(), kIgnoredTarget);
}

}  // namespace

BatchMaker::BatchMaker(std::shared_ptr<const Dataset> dataset,
                       std::shared_ptr<const Sampler> sampler, ContextPtr host,
                       const LoaderOptions& options)
    : dataset_(std::move(dataset)),
      sampler_(std::move(sampler)),
      host_(std::move(host)),
      batch_(options.batch),
      drop_last_(options.drop_last) {
  APOGEE_CHECK(dataset_ != nullptr && sampler_ != nullptr && host_ != nullptr,
               "Loader: dataset, sampler and context must not be null");
  APOGEE_CHECK(batch_ >= 1, "Loader: batch must be at least 1, got ", batch_);
  APOGEE_CHECK(options.num_batches >= LoaderOptions::kAll,
               "Loader: num_batches must be kAll or at least 0, got ", options.num_batches);
  APOGEE_CHECK(options.threads >= 0 && options.threads <= 1024,
               "Loader: threads must be 0 to 1024, got ", options.threads);
  APOGEE_CHECK(options.prefetch >= 0, "Loader: prefetch must not be negative, got ",
               options.prefetch);
  APOGEE_CHECK(options.prefetch == 0 || options.threads > 0, "Loader: prefetch is ",
               options.prefetch, ", but without threads nothing is filled ahead; set threads");
  APOGEE_CHECK(sampler_->num_samples() <= dataset_->num_samples(),
               "Loader: the sampler draws from ", sampler_->num_samples(),
               " samples, the dataset has ", dataset_->num_samples(),
               "; make the sampler for dataset->num_samples()");
  const std::optional<Sampler::Share> share = sampler_->share();
  is_shared_ = share.has_value();
  share_ = share.value_or(Sampler::Share{});
  APOGEE_CHECK(RowsAt(0, 0) > 0, "Loader: ", sampler_->size(), " samples do not fill one batch of ",
               batch_, "; lower the batch");
  fields_ = dataset_->fields();
  CheckFields(fields_);
}

int64_t BatchMaker::SizeFrom(int64_t origin) const {
  const int64_t whole = sampler_->shared_stream().size();
  if (whole == Sampler::kEndless) return Sampler::kEndless;
  const int64_t left = std::max<int64_t>(0, whole - origin);
  return left / (share_.num_ranks * share_.window) * share_.window;
}

int64_t BatchMaker::RowsAt(int64_t origin, int64_t first) const {
  const int64_t size = SizeFrom(origin);
  if (size == Sampler::kEndless) return batch_;
  const int64_t rows = std::clamp<int64_t>(size - first, 0, batch_);
  return drop_last_ && rows < batch_ ? 0 : rows;
}

int64_t BatchMaker::SampleAt(int64_t origin, int64_t index) const {
  const int64_t position = origin + share_.PositionOf(index);
  const int64_t sample = sampler_->shared_stream().Sample(position);
  APOGEE_CHECK(sample >= 0 && sample < dataset_->num_samples(), "Loader: at place ", position,
               " of the stream the sampler names sample ", sample, ", the dataset has ",
               dataset_->num_samples(), "; make the sampler for dataset->num_samples()");
  return sample;
}

std::optional<SamplePlace> BatchMaker::PlaceOf(int64_t origin, int64_t first, int64_t rows) const {
  const int64_t within = first % share_.window;
  if (!is_shared_ || within + rows > share_.window) return std::nullopt;
  // Windows from another origin get other numbers than those before it.
  const int64_t window_samples = share_.num_ranks * share_.window;
  return SamplePlace{
      .stream = stream_,
      .window = (origin + window_samples - 1) / window_samples + first / share_.window,
      .first = share_.rank * share_.window + within};
}

MadeBatch BatchMaker::Make(int64_t origin, int64_t first) const {
  const int64_t rows = RowsAt(origin, first);
  APOGEE_CHECK(first >= 0 && rows > 0, "Loader: the batch at sample ", first,
               " is outside of the stream of ", SizeFrom(origin), " samples of this rank");
  std::vector<Tensor> tensors;
  std::vector<std::byte*> data;
  std::vector<size_t> sample_bytes;
  for (const Field& field : fields_) {
    tensors.push_back(Tensor::Empty(BatchShape(rows, field.shape), field.dtype, host_));
    data.push_back(static_cast<std::byte*>(tensors.back().storage()->data()));
    sample_bytes.push_back(static_cast<size_t>(field.shape.numel() * DTypeSize(field.dtype)));
  }
  const SampleMemory sample(fields_, data);
  for (int64_t row = 0; row < rows; ++row) {
    dataset_->FillFields(SampleAt(origin, first + row), sample);
    for (size_t f = 0; f < data.size(); ++f) data[f] += sample_bytes[f];
  }
  MadeBatch made;
  for (size_t f = 0; f < fields_.size(); ++f) {
    if (fields_[f].name == "inputs") {
      made.batch.inputs = tensors[f];
    } else if (fields_[f].name == "targets") {
      made.batch.targets = tensors[f];
    } else {
      made.batch.more.emplace(fields_[f].name, tensors[f]);
    }
  }
  made.num_targets = CountTargets(made.batch.targets);
  made.place = PlaceOf(origin, first, rows);
  made.sample_numel = fields_[0].shape.numel();
  return made;
}

}  // namespace apogee::data
