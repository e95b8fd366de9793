// SPDX-License-Identifier: Apache-2.0

#include "apogee/chunk/gather_schedule.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "apogee/core/error.h"

namespace apogee::chunk {
namespace {

constexpr size_t kNever = std::numeric_limits<size_t>::max();
constexpr size_t kAny = 0;  // every chunk that is not held has a farther next use

}  // namespace

GatherSchedule::GatherSchedule(const GatherScheduleOptions& options)
    : chunks_(options.chunk_bytes.size()), max_ahead_(options.max_ahead) {
  for (size_t c = 0; c < chunks_.size(); ++c) {
    chunks_[c].bytes = options.chunk_bytes[c];
    chunks_[c].keep = !options.keep.empty() && options.keep[c];
  }
}

size_t GatherSchedule::NextUse(size_t chunk) const {
  const Pass& now = pass();
  if (!now.follows || now.learned.empty()) return kNever;
  const auto begin = now.learned.begin() + static_cast<std::ptrdiff_t>(now.current.size());
  auto found = std::find(begin, now.learned.end(), chunk);
  if (found != now.learned.end()) return static_cast<size_t>(found - begin) + 1;
  found = std::find(now.learned.begin(), begin, chunk);  // in the next iteration
  if (found == begin) return kNever;
  return static_cast<size_t>(now.learned.end() - begin) +
         static_cast<size_t>(found - now.learned.begin()) + 1;
}

void GatherSchedule::Gather(size_t chunk) {
  chunks_[chunk].gathered = true;
  if (!chunks_[chunk].keep) gathered_bytes_ += chunks_[chunk].bytes;
}

void GatherSchedule::Drop(size_t chunk, std::vector<size_t>& drop) {
  chunks_[chunk].gathered = false;
  if (!chunks_[chunk].keep) gathered_bytes_ -= chunks_[chunk].bytes;
  drop.push_back(chunk);
}

bool GatherSchedule::MakeRoom(int64_t bytes, size_t beyond, std::vector<size_t>& drop) {
  int64_t excess = gathered_bytes_ + bytes - capacity_bytes_;
  if (excess <= 0) return true;
  std::vector<std::pair<size_t, size_t>> candidates;  // next use, chunk
  for (size_t c = 0; c < chunks_.size(); ++c) {
    const Chunk& chunk = chunks_[c];
    if (!chunk.gathered || chunk.keep || chunk.num_holders > 0 || chunk.bytes == 0) continue;
    if (const size_t next = NextUse(c); next > beyond) candidates.emplace_back(next, c);
  }
  std::ranges::sort(candidates, std::greater());
  size_t count = 0;
  for (; count < candidates.size() && excess > 0; ++count) {
    excess -= chunks_[candidates[count].second].bytes;
  }
  if (excess > 0 && beyond != kAny) return false;
  for (size_t i = 0; i < count; ++i) Drop(candidates[i].second, drop);
  return excess <= 0;
}

GatherSchedule::Actions GatherSchedule::Acquire(size_t index) {
  Chunk& chunk = chunks_[index];
  Actions actions;
  if (chunk.num_holders++ > 0) return actions;
  Pass& now = pass();
  const size_t at = now.current.size();
  now.current.push_back(index);
  now.follows = now.follows && at < now.learned.size() && now.learned[at] == index;
  if (!chunk.gathered) {
    actions.gather = true;
    if (!chunk.keep) MakeRoom(chunk.bytes, kAny, actions.drop);
    Gather(index);
  }
  held_bytes_ += chunk.bytes;
  peak_held_bytes_ = std::max(peak_held_bytes_, held_bytes_);
  FetchAhead(actions);
  return actions;
}

void GatherSchedule::FetchAhead(Actions& actions) {
  const Pass& now = pass();
  if (!now.follows || capacity_bytes_ == 0) return;
  std::vector<size_t> seen;
  for (size_t at = now.current.size(); at < now.learned.size() && seen.size() < max_ahead_; ++at) {
    const size_t next = now.learned[at];
    if (std::ranges::find(seen, next) != seen.end()) continue;
    seen.push_back(next);
    if (chunks_[next].gathered) continue;
    if (!chunks_[next].keep && !MakeRoom(chunks_[next].bytes, NextUse(next), actions.drop)) return;
    Gather(next);
    actions.ahead.push_back(next);
  }
}

std::vector<size_t> GatherSchedule::Release(size_t index) {
  Chunk& chunk = chunks_[index];
  APOGEE_CHECK(chunk.num_holders > 0, "GatherSchedule: a chunk was released twice");
  std::vector<size_t> drop;
  if (--chunk.num_holders > 0) return drop;
  held_bytes_ -= chunk.bytes;
  MakeRoom(0, kAny, drop);
  return drop;
}

void GatherSchedule::Forget(size_t index) {
  std::vector<size_t> ignored;
  if (std::exchange(chunks_[index].num_holders, 0) > 0) held_bytes_ -= chunks_[index].bytes;
  if (chunks_[index].gathered) Drop(index, ignored);
}

std::vector<size_t> GatherSchedule::DropUnheld() {
  std::vector<size_t> drop;
  for (size_t c = 0; c < chunks_.size(); ++c) {
    if (chunks_[c].gathered && chunks_[c].num_holders == 0) Drop(c, drop);
  }
  return drop;
}

bool GatherSchedule::End(Pass& pass) {
  const bool changed = !pass.learned.empty() && pass.current != pass.learned;
  pass.learned = std::exchange(pass.current, {});
  pass.follows = true;
  return changed;
}

void GatherSchedule::BeginEvaluation() { in_evaluation_ = true; }

void GatherSchedule::EndEvaluation() {
  End(evaluation_);
  in_evaluation_ = false;
}

bool GatherSchedule::EndIteration() { return End(training_); }

}  // namespace apogee::chunk
