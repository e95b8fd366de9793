// SPDX-License-Identifier: Apache-2.0

#include "apogee/comm/gather_texts.h"

#include <algorithm>

namespace apogee::comm {

std::vector<std::string> GatherTexts(const std::string& text, Group& group,
                                     const ContextPtr& any_context) {
  const auto ranks = static_cast<size_t>(group.size());
  const ContextPtr& context = HostOf(any_context);
  const Tensor sizes = Tensor::Zeros({group.size()}, DType::kI64, context);
  const Tensor size =
      Tensor::FromVector<int64_t>({static_cast<int64_t>(text.size())}, {1}, context);
  group.AllGather(sizes, size);
  const std::vector<int64_t> bytes = sizes.ToVector<int64_t>();
  const int64_t largest = *std::ranges::max_element(bytes);
  if (largest == 0) return std::vector<std::string>(ranks);
  const Tensor mine = Tensor::Zeros({largest}, DType::kU8, context, MemoryCategory::kCommunication);
  std::ranges::copy(text, mine.data<uint8_t>());
  const Tensor all =
      Tensor::Empty({group.size() * largest}, DType::kU8, context, MemoryCategory::kCommunication);
  group.AllGather(all, mine);
  std::vector<std::string> texts;
  for (size_t rank = 0; rank < ranks; ++rank) {
    const uint8_t* begin = all.data<uint8_t>() + static_cast<int64_t>(rank) * largest;
    texts.emplace_back(begin, begin + bytes[rank]);
  }
  return texts;
}

}  // namespace apogee::comm
