// SPDX-License-Identifier: Apache-2.0

#include "apogee/pictures/held_parts.h"

#include <algorithm>
#include <utility>

namespace apogee {
namespace {

std::vector<int64_t> Describe(const optim::Optimizer& optimizer) {
  std::vector<int64_t> words;
  for (const optim::ParamView& view : optimizer.views()) {
    const Layout& layout = view.layout();
    words.push_back(layout.logical_shape().numel());
    words.push_back(view.value().numel() - layout.local_numel());
    words.push_back(static_cast<int64_t>(layout.segments().size()));
    for (const Segment& segment : layout.segments()) {
      words.push_back(segment.begin);
      words.push_back(segment.length);
    }
  }
  return words;
}

}  // namespace

std::vector<std::vector<HeldPart>> ExchangeHeldParts(const optim::Optimizer& optimizer,
                                                     const comm::GroupPtr& group) {
  std::vector<int64_t> words = Describe(optimizer);
  const auto num_ranks = static_cast<int64_t>(comm::GroupSize(group));
  std::vector<int64_t> sizes = {static_cast<int64_t>(words.size())}, all = words;
  int64_t largest = sizes[0];
  if (group != nullptr) {
    const ContextPtr context = optimizer.views()[0].value().context();
    const auto gather = [&](const std::vector<int64_t>& mine) {
      const auto count = static_cast<int64_t>(mine.size());
      const Tensor output = Tensor::Empty({num_ranks * count}, DType::kI64, context);
      group->AllGather(output, Tensor::FromVector<int64_t>(mine, {count}, context));
      return output.ToVector<int64_t>();
    };
    sizes = gather(sizes);
    largest = *std::ranges::max_element(sizes);
    words.resize(static_cast<size_t>(largest), 0);
    all = gather(words);
  }
  std::vector<std::vector<HeldPart>> parts;
  for (int64_t rank = 0; rank < num_ranks; ++rank) {
    auto word = all.begin() + rank * largest;
    const auto end = word + sizes[static_cast<size_t>(rank)];
    std::vector<HeldPart>& held = parts.emplace_back();
    for (const optim::ParamView& view : optimizer.views()) {
      APOGEE_CHECK(
          word != end && *word++ == view.layout().logical_shape().numel(), "shard_map: rank ", rank,
          " of the group holds other parameters than this rank, ", "from \"", view.name(), "\" on");
      HeldPart part{.padding = *word++, .segments = {}};
      for (int64_t left = *word++; left > 0; --left, word += 2) {
        part.segments.push_back({.begin = word[0], .length = word[1]});
      }
      held.push_back(std::move(part));
    }
    APOGEE_CHECK(word == end, "shard_map: rank ", rank,
                 " of the group holds more parameters than this rank");
  }
  return parts;
}
}  // namespace apogee
