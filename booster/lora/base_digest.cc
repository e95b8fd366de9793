// SPDX-License-Identifier: Apache-2.0

#include "apogee/booster/lora/base_digest.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <cstdio>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "apogee/checkpoint/agreement.h"
#include "apogee/checkpoint/save_plan.h"
#include "apogee/nn/lora/lora.h"

namespace apogee {
namespace {

// Mixes all bits of `x` (the finaliser of SplitMix64).
uint64_t Mixed(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9U;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebU;
  return x ^ (x >> 31);
}

template <typename Bits>
uint64_t SumOf(const Bits* bits, const std::vector<PlacedSegment>& segments, uint64_t seed) {
  uint64_t sum = 0;
  for (const auto& [segment, local_begin] : segments) {
    for (int64_t i = 0; i < segment.length; ++i) {
      const auto place = static_cast<uint64_t>(segment.begin + i);
      sum += Mixed(Mixed(seed + place) + static_cast<uint64_t>(bits[local_begin + i]));
    }
  }
  return sum;
}

// A sum over elements, so that their order does not matter.
uint64_t SumOf(const checkpoint::TensorPart& part, const std::vector<PlacedSegment>& segments) {
  const Tensor host = part.value.Detach().ToHost();
  const std::string name = part.name + " " + DTypeName(host.dtype());
  const uint64_t seed = XXH3_64bits(name.data(), name.size());
  switch (DTypeSize(host.dtype())) {
    case 2:
      return SumOf(static_cast<const uint16_t*>(host.raw()), segments, seed);
    case 4:
      return SumOf(static_cast<const uint32_t*>(host.raw()), segments, seed);
    case 8:
      return SumOf(static_cast<const uint64_t*>(host.raw()), segments, seed);
    default:
      return SumOf(static_cast<const uint8_t*>(host.raw()), segments, seed);
  }
}

// The elements of a slice that no slice before it has: parts of quantized weights overlap.
std::vector<PlacedSegment> OwnElements(const checkpoint::TensorPart& part,
                                       const std::vector<checkpoint::Slice>& slices, size_t slice) {
  std::vector<PlacedSegment> own = SortedSegments(part.layout);
  for (size_t earlier = 0; earlier < slice; ++earlier) {
    const std::vector<Segment> taken = checkpoint::SegmentsOf(slices[earlier].runs);
    const std::vector<PlacedSegment> sorted =
        SortedSegments(Layout(part.layout.logical_shape(), {.segments = taken}));
    std::vector<PlacedSegment> left;
    size_t next = 0;
    for (PlacedSegment piece : own) {
      const int64_t end = piece.segment.begin + piece.segment.length;
      while (next < sorted.size() &&
             sorted[next].segment.begin + sorted[next].segment.length <= piece.segment.begin) {
        ++next;
      }
      int64_t at = piece.segment.begin;
      for (size_t i = next; i < sorted.size() && sorted[i].segment.begin < end; ++i) {
        const Segment& cut = sorted[i].segment;
        if (at < cut.begin) {
          left.push_back({{at, cut.begin - at}, piece.local_begin + at - piece.segment.begin});
        }
        at = std::max(at, cut.begin + cut.length);
      }
      if (at < end) left.push_back({{at, end - at}, piece.local_begin + at - piece.segment.begin});
    }
    own = std::move(left);
  }
  return own;
}

}  // namespace

std::set<const autograd::Parameter*> BaseOf(nn::Module& model) {
  std::set<const autograd::Parameter*> base;
  if (nn::AdaptedLayers(model).empty()) return base;
  for (const autograd::ParameterPtr& parameter : model.Parameters()) {
    if (!parameter->requires_grad()) base.insert(parameter.get());
  }
  return base;
}

absl::StatusOr<std::string> BaseDigest(nn::Module& model, const Plugin& plugin) {
  if (nn::AdaptedLayers(model).empty()) return std::string();
  const std::set<const autograd::Parameter*> base = BaseOf(model);
  std::vector<checkpoint::TensorPart> parts;
  for (const autograd::ParameterPtr& parameter : model.Parameters()) {
    if (!base.contains(parameter.get())) continue;
    parts.push_back({parameter->name(), parameter->data(), plugin.LayoutOf(*parameter)});
  }
  APOGEE_ASSIGN_OR_RETURN(const checkpoint::SavePlan plan,
                          checkpoint::MakeSavePlan(parts, plugin.group()));
  std::map<std::string, size_t> index_of;
  for (size_t i = 0; i < parts.size(); ++i) index_of[parts[i].name] = i;
  const comm::GroupPtr group = plugin.group();
  const auto rank = static_cast<size_t>(group == nullptr ? 0 : group->rank());
  uint64_t own = 0;
  for (const auto& [name, slice] : plan.written_by[rank]) {
    const checkpoint::TensorPart& part = parts[index_of.at(name)];
    own += SumOf(part, OwnElements(part, plan.tensors.at(name).slices, slice));
  }
  uint64_t sum = 0;
  for (const std::string& text : checkpoint::GatherTexts(std::to_string(own), plugin.group())) {
    sum += std::stoull(text);
  }
  char digits[17];
  std::snprintf(digits, sizeof(digits), "%016llx", static_cast<unsigned long long>(sum));
  return std::string(digits);
}

}  // namespace apogee
