// SPDX-License-Identifier: Apache-2.0

#include <cstring>

#include "apogee/optim/cuda/device/adalomo_items.cuh"

namespace apogee::optim::cuda {
namespace {

// Collects numbers of 8 bytes, to send them in one copy.
class Staging {
 public:
  template <typename T>
  size_t Add(const T* values, size_t count) {
    static_assert(sizeof(T) % sizeof(double) == 0 && std::is_trivially_copyable_v<T>);
    const size_t at = words_.size();
    words_.resize(at + count * sizeof(T) / sizeof(double));
    if (count > 0) std::memcpy(words_.data() + at, values, count * sizeof(T));
    return at;
  }
  std::unique_ptr<Workspace> Send(const DeviceContext& context) const {
    const auto bytes = static_cast<int64_t>(words_.size() * sizeof(double));
    auto memory = std::make_unique<Workspace>(context, bytes);
    context.CopyFromHost(memory->data<double>(), words_.data(), bytes);
    return memory;
  }

 private:
  std::vector<double> words_;
};

std::unique_ptr<Workspace> Doubles(const DeviceContext& context, int64_t n) {
  return std::make_unique<Workspace>(context, n * int64_t{sizeof(double)});
}

}  // namespace

AdaLomoItems::AdaLomoItems(const DeviceContext& context, std::span<const AdaLomoChunk> chunks,
                           AdaLomoSums sums)
    : context_(context) {
  struct Offsets {
    size_t segments, rows, columns;
  };
  Staging staging;
  std::vector<Offsets> offsets;
  int64_t num_partials = 0;
  for (const AdaLomoChunk& chunk : chunks) {
    const std::vector<PlacedSegment> segments = SortedSegments(*chunk.layout);
    AdaLomoItem item{};
    static_cast<UpdateChunk&>(item) = chunk;
    item.held = {chunk.layout->matrix(), nullptr, static_cast<int>(segments.size())};
    item.exp_avg_sq = chunk.exp_avg_sq;
    item.step_size = chunk.step_size;
    item.decay = chunk.decay;
    item.vectors = sums == AdaLomoSums::kAll && chunk.col_sums != nullptr;
    // In the phase of the sums there are no factors yet.
    const bool factors = sums != AdaLomoSums::kAll && chunk.exp_avg_sq == nullptr;
    const auto rows = factors ? static_cast<size_t>(item.rows()) : 0;
    const auto columns = factors ? static_cast<size_t>(item.columns()) : 0;
    offsets.push_back({staging.Add(segments.data(), segments.size()),
                       staging.Add(chunk.row_factors, rows),
                       staging.Add(chunk.col_factors, columns)});
    num_partials += item.num_partials();
    num_results_ += item.num_results();
    items_.push_back(item);
  }
  inputs_ = staging.Send(context);
  const bool reduces = sums != AdaLomoSums::kNone;
  partials_ = Doubles(context, reduces ? num_partials : 0);
  results_ = Doubles(context, reduces ? num_results_ : 0);
  double* partials = partials_->data<double>();
  double* results = results_->data<double>();
  for (size_t i = 0; i < items_.size(); ++i) {
    AdaLomoItem& item = items_[i];
    const double* inputs = inputs_->data<double>();
    item.held.segments = reinterpret_cast<const PlacedSegment*>(inputs + offsets[i].segments);
    item.row_factors = inputs + offsets[i].rows;
    item.col_factors = inputs + offsets[i].columns;
    item.partials = partials;
    item.results = results;
    partials += item.num_partials();
    results += item.num_results();
  }
}

std::vector<double> AdaLomoItems::Results() const {
  std::vector<double> results(static_cast<size_t>(num_results_));
  context_.CopyToHost(results.data(), results_->data<double>(),
                      num_results_ * int64_t{sizeof(double)});
  return results;
}

}  // namespace apogee::optim::cuda
