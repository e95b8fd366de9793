// SPDX-License-Identifier: Apache-2.0

// The part of CudaAllocator that keeps memory for graphs: replays use the addresses of the capture.
#include <algorithm>

#include "apogee/tensor/cuda/runtime/cuda_allocator.cuh"

namespace apogee::cuda {

void* CudaAllocator::TakeFreedInGraph(int64_t rounded) {
  std::lock_guard lock(mutex_);
  const auto found = freed_in_graph_.find(rounded);
  if (found == freed_in_graph_.end()) return nullptr;
  void* block = found->second;
  freed_in_graph_.erase(found);
  ledger_.AddSlack(-rounded);
  return block;
}

void CudaAllocator::GiveToGraph(void* block) {
  std::lock_guard lock(mutex_);
  if (graph_ == nullptr || !made_in_graph_.insert(block).second) return;
  users_of_[block].push_back(graph_);
}

bool CudaAllocator::KeepForGraphs(void* block, int64_t rounded) {
  std::lock_guard lock(mutex_);
  if (graph_ != nullptr) {
    if (made_in_graph_.contains(block)) {
      freed_in_graph_.emplace(rounded, block);
      return true;
    }
    // Every replay starts with the block's present values, so nothing may overwrite them, not even
    // the graph's own later work.
    std::vector<const GraphRecorder*>& users = users_of_[block];
    if (std::ranges::find(users, graph_) == users.end()) users.push_back(graph_);
  }
  if (!users_of_.contains(block)) return false;
  kept_[block] = rounded;
  return true;
}

void CudaAllocator::BeginGraph(const GraphRecorder* graph) {
  ReleaseCache();
  std::lock_guard lock(mutex_);
  graph_ = graph;
}

void CudaAllocator::EndGraph() {
  {
    std::lock_guard lock(mutex_);
    graph_ = nullptr;
    for (const auto& [rounded, block] : freed_in_graph_) kept_[block] = rounded;
    freed_in_graph_.clear();
    made_in_graph_.clear();
  }
  if (!keep_) ReleaseCache();
}

void CudaAllocator::HoldFrees(bool hold) {
  {
    std::lock_guard lock(mutex_);
    holds_frees_ = hold;
  }
  if (!hold && !keep_) ReleaseCache();
}

void CudaAllocator::ReleaseGraph(const GraphRecorder* graph) {
  std::lock_guard lock(mutex_);
  for (auto entry = users_of_.begin(); entry != users_of_.end();) {
    auto& [block, users] = *entry;
    std::erase(users, graph);
    if (!users.empty()) {
      ++entry;
      continue;
    }
    const auto kept = kept_.find(block);
    if (kept != kept_.end()) {
      if (keep_ || IsCapturing()) {  // without a cache, it goes back after the capture
        cache_.emplace(kept->second, block);
      } else {
        GiveBack(block);
        ledger_.AddSlack(-kept->second);
      }
      kept_.erase(kept);
    }
    entry = users_of_.erase(entry);
  }
}

}  // namespace apogee::cuda
