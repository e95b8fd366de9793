// SPDX-License-Identifier: Apache-2.0

#include "apogee/core/rng.h"

#include <utility>

namespace apogee {

PhiloxKey MakeKey(uint64_t seed, const std::string& name) {
  uint64_t hash = 0xcbf29ce484222325u;  // FNV-1a, 64 bits
  for (char c : name) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  // The hash passes through Philox with the seed as the key, so that nearby seeds, and similar
  // names, give unrelated keys.
  const PhiloxKey seed_key{static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)};
  const auto words = Philox(seed_key, hash);
  return {words[0], words[1]};
}

PhiloxKey SubKey(PhiloxKey key, uint64_t stream) {
  const auto words = Philox(key, stream, /*high=*/0x73747265616d0000u);
  return {words[0], words[1]};
}

void Generator::BeginBatch(const SamplePlace* place) {
  constexpr size_t kMaxWindows = 8;  // the most streams of samples that a loop alternates between
  unused_stream_ = std::max(unused_stream_, next_stream_);
  if (placed_) windows_.back().next_stream = next_stream_;
  if (place == nullptr) {
    if (placed_) {
      first_sample_ = 0;
      next_stream_ = unused_stream_;
    }
    placed_ = false;
    return;
  }
  placed_ = true;
  first_sample_ = place->first;
  const auto known = std::ranges::find_if(
      windows_, [&](const Window& window) { return window.place.stream == place->stream; });
  Window window{*place, unused_stream_, unused_stream_};
  if (known != windows_.end()) {
    // A place before the last one means that the same window begins again.
    if (known->place.window == place->window && known->place.first <= place->first) {
      window.first_stream = known->first_stream;
      window.next_stream =
          known->place.first == place->first ? known->next_stream : known->first_stream;
    }
    windows_.erase(known);
  }
  next_stream_ = window.next_stream;
  if (windows_.size() == kMaxWindows) windows_.erase(windows_.begin());
  windows_.push_back(std::move(window));
}

void Generator::Restart(uint64_t stream) {
  next_stream_ = unused_stream_ = stream;
  placed_ = false;
  windows_.clear();
}

}  // namespace apogee
