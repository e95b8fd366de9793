// SPDX-License-Identifier: Apache-2.0

#include "apogee/optim/cuda/device/adalomo_items.cuh"

namespace apogee::optim::cuda {

AdaLomoItems::AdaLomoItems(const DeviceContext& context, std::span<const AdaLomoChunk> chunks,
                           AdaLomoSums sums) {
  std::vector<PlacedSegment> segments;  // of all chunks, to send them in one copy
  std::vector<size_t> first;
  int64_t num_partials = 0;
  for (const AdaLomoChunk& chunk : chunks) {
    const std::vector<PlacedSegment> own = SortedSegments(*chunk.layout);
    AdaLomoItem item{};
    static_cast<UpdateChunk&>(item) = chunk;
    item.held = {chunk.layout->matrix(), nullptr, static_cast<int>(own.size())};
    item.exp_avg_sq = chunk.exp_avg_sq;
    item.factors = chunk.factors;
    item.weight_sum = chunk.weight_sum;
    item.update_sum = chunk.update_sum;
    item.numel = chunk.layout->logical_shape().numel();
    item.vectors = sums == AdaLomoSums::kAll && chunk.exp_avg_sq == nullptr;
    item.sums = chunk.sums;
    first.push_back(segments.size());
    segments.insert(segments.end(), own.begin(), own.end());
    num_partials += item.num_partials();
    items_.push_back(item);
  }
  const auto bytes = static_cast<int64_t>(segments.size() * sizeof(PlacedSegment));
  segments_ = std::make_unique<Workspace>(context, bytes);
  context.CopyFromHost(segments_->data<void>(), segments.data(), bytes);
  partials_ = std::make_unique<Workspace>(
      context, sums == AdaLomoSums::kNone ? 0 : num_partials * int64_t{sizeof(double)});
  double* partials = partials_->data<double>();
  for (size_t i = 0; i < items_.size(); ++i) {
    items_[i].held.segments = segments_->data<PlacedSegment>() + first[i];
    items_[i].partials = partials;
    partials += items_[i].num_partials();
  }
}

}  // namespace apogee::optim::cuda
