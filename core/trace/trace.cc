// SPDX-License-Identifier: Apache-2.0

#include "apogee/core/trace/trace.h"

#include <bit>

namespace apogee {

uint32_t TraceLane::Keep(std::string_view text) {
  const auto known = texts_.find(text);
  if (known != texts_.end()) return known->second;
  const auto number = static_cast<uint32_t>(texts_.size());
  texts_.emplace(text, number);
  return number;
}

TraceLane::Event& TraceLane::Add(std::string_view name, const TraceInfo& info) {
  for (const TraceArg& arg : info.args) {
    int64_t value = 0;
    switch (arg.kind_) {
      case TraceArg::Kind::kInteger:
        value = arg.integer_;
        break;
      case TraceArg::Kind::kReal:
        value = std::bit_cast<int64_t>(arg.real_);
        break;
      case TraceArg::Kind::kText:
        value = Keep(arg.text_);
        break;
    }
    args_.push_back({Keep(arg.key_), arg.kind_, value});
  }
  events_.push_back(
      {0, kOpen, Keep(name), Keep(info.category), static_cast<uint32_t>(info.args.size())});
  return events_.back();
}

size_t TraceLane::Begin(std::string_view name, const TraceInfo& info) {
  std::lock_guard lock(mutex_);
  Event& event = Add(name, info);
  // Last, so that the cost of recording is not part of the span.
  event.begin_ns = NowNs();
  return events_.size() - 1;
}

size_t TraceLane::BeginAround(size_t inner, std::string_view name, const TraceInfo& info) {
  std::lock_guard lock(mutex_);
  const int64_t begin_ns = events_[inner].begin_ns;
  Add(name, info).begin_ns = begin_ns;
  return events_.size() - 1;
}

void TraceLane::End(size_t event) {
  const int64_t now_ns = NowNs();
  std::lock_guard lock(mutex_);
  events_[event].end_ns = now_ns;
}

TraceLane* Trace::Lane(int rank, std::string_view name) {
  std::lock_guard lock(mutex_);
  for (const auto& lane : lanes_) {
    if (lane->rank_ == rank && lane->name_ == name) return lane.get();
  }
  lanes_.emplace_back(new TraceLane(rank, std::string(name), zero_));
  return lanes_.back().get();
}

}  // namespace apogee
