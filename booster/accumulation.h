// SPDX-License-Identifier: Apache-2.0

// Accumulation: several micro-batches for one step. Booster::accumulate makes it.
//
//   const Accumulation window = booster.accumulate(4);
//   for (const data::Batch& batch : loader) {
//     booster.backward(boosted.criterion(boosted.model(batch.inputs), batch.targets),
//                      boosted.optimizer);
//     if (!window.is_complete()) continue;
//     boosted.optimizer.step();
//     boosted.optimizer.zero_grad();
//   }
//
// While it lives, backward divides each loss by the number of micro-batches, and averages gradients
// over the ranks with the last micro-batch only. So a step uses the mean of the micro-batches'
// losses. With Booster::accumulation_window it is the mean over all targets of the window instead,
// and nothing is divided. The next backward after the last one of a window begins a new window. A
// step in the middle of a window throws Error. To give up a window, destroy this object, then call
// zero_grad().
//
// All ranks accumulate the same number of micro-batches.
#ifndef APOGEE_BOOSTER_ACCUMULATION_H_
#define APOGEE_BOOSTER_ACCUMULATION_H_

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "apogee/tensor/tensor.h"

namespace apogee {

namespace internal {

// Shared by a booster and the Accumulation it made.
struct Window {
  int64_t num_micro_batches = 0;  // 0: no Accumulation lives
  std::vector<Tensor> losses;     // of the micro-batches so far, divided by their number

  bool is_open() const { return num_micro_batches > 0; }
  bool is_complete() const {
    return is_open() && static_cast<int64_t>(losses.size()) == num_micro_batches;
  }
};

// One micro-batch that is about to run.
struct MicroBatch {
  double share = 1;     // by which its loss is multiplied
  bool is_last = true;  // gradients are averaged over the ranks
};

}  // namespace internal

class Accumulation {
 public:
  explicit Accumulation(std::shared_ptr<internal::Window> window) : window_(std::move(window)) {}
  ~Accumulation() { *window_ = {}; }
  Accumulation(const Accumulation&) = delete;
  Accumulation& operator=(const Accumulation&) = delete;

  // Whether the last backward was the last of its window: now call step().
  bool is_complete() const { return window_->is_complete(); }
  // This rank's loss in the window that is complete: the mean of its micro-batches' losses, or its
  // share of the mean over the window's targets. Waits for the GPU. Throws Error if the window is
  // not complete.
  double loss() const;

 private:
  std::shared_ptr<internal::Window> window_;
};

}  // namespace apogee

#endif  // APOGEE_BOOSTER_ACCUMULATION_H_
