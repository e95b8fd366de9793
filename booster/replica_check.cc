// SPDX-License-Identifier: Apache-2.0

#include "apogee/booster/replica_check.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <cstring>
#include <map>
#include <string>
#include <utility>

#include "apogee/checkpoint/agreement.h"
#include "apogee/optim/core/local_gradients.h"

namespace apogee {
namespace {

uint64_t HashOfPlaces(const Layout& layout) {
  uint64_t hash = 0;
  for (const Segment& segment : layout.segments()) {
    if (segment.length > 0) hash = XXH3_64bits_withSeed(&segment, sizeof(segment), hash);
  }
  return hash;
}

uint64_t HashOfValues(const checkpoint::TensorPart& part) {
  const Tensor host = part.value.Detach().ToHost();
  const int64_t bytes = part.layout.local_numel() * DTypeSize(host.dtype());
  return XXH3_64bits(host.raw(), static_cast<size_t>(bytes));
}

// Per part: its name, a zero byte, and two hashes.
std::string Pack(const std::vector<checkpoint::TensorPart>& parts) {
  std::string text;
  for (const checkpoint::TensorPart& part : parts) {
    if (part.layout.local_numel() == 0) continue;
    const uint64_t hashes[] = {HashOfPlaces(part.layout), HashOfValues(part)};
    text += part.name + '\0';
    text.append(reinterpret_cast<const char*>(hashes), sizeof(hashes));
  }
  return text;
}

}  // namespace

void SyncReplicas(Plugin& plugin, optim::Optimizer& optimizer) {
  plugin.BeforeSave(optimizer);
  optim::LocalGradients* const local = optimizer.traits().local_gradients;
  if (local != nullptr) local->SyncReplicas();
}

absl::Status CheckReplicas(const char* what, const std::vector<checkpoint::TensorPart>& parts,
                           const comm::GroupPtr& group) {
  if (group == nullptr) return absl::OkStatus();
  const std::vector<std::string> texts = checkpoint::GatherTexts(Pack(parts), group);
  struct Held {
    uint64_t values;
    size_t rank;
  };
  std::map<std::pair<std::string, uint64_t>, Held> first;  // by name and places
  for (size_t rank = 0; rank < texts.size(); ++rank) {
    const std::string& text = texts[rank];
    for (size_t at = 0; at < text.size();) {
      const std::string name = text.c_str() + at;
      uint64_t hashes[2];
      at += name.size() + 1;
      std::memcpy(hashes, text.data() + at, sizeof(hashes));
      at += sizeof(hashes);
      const auto [held, is_new] = first.try_emplace({name, hashes[0]}, Held{hashes[1], rank});
      if (is_new || held->second.values == hashes[1]) continue;
      return absl::FailedPreconditionError(internal::Concat(
          what, ": rank ", group->world_ranks()[held->second.rank], " and rank ",
          group->world_ranks()[rank], " hold the same elements of \"", name,
          "\" with different values, which a save would mix; nothing was written. Make them equal "
          "first: a plugin whose ranks step apart does so in Plugin::BeforeSave; a loop that sets "
          "values by hand must set the same on every rank"));
    }
  }
  return absl::OkStatus();
}

}  // namespace apogee
