// SPDX-License-Identifier: Apache-2.0

// StepListener: hears what happens in training steps, in this order:
//
//   BeforeBackward           a backward begins
//     GradientReady            this rank's gradient of one parameter is final
//     GradientsReduced         a chunk of gradients has become means over the ranks
//   BeforeStep               the optimizer's step begins
//     Decided                  it will update, or skip
//   AfterStep                it has updated, or skipped
//     ValuesGathered           a chunk of updated values is whole on this rank
//   Loaded                   a state dict was loaded into the optimizer
//   BeforeWeightsReplaced    the weights will become averages, or themselves again
//   WeightsReplaced          they did
//
//   struct Norms : StepListener {
//     void AfterStep() override { Print(optimizer.last_step().grad_norm); }
//     optim::Optimizer& optimizer;
//   };
//   Norms norms{.optimizer = boosted.optimizer};
//   const Subscription own = boosted.optimizer.AddListener(norms);    // until `own` is destroyed
//
// Every optimizer has one StepListeners. The plugin and its chunks tell the listeners of the
// optimizer that they run. GradientReady and GradientsReduced come from plugins that average
// gradients, ValuesGathered from plugins that shard. Reductions may end after the backward of their
// gradients, and gathers after other steps have begun: an event is told when this rank knows of it.
//
// Each rank tells its own listeners, on its own thread. Listeners hear an event in the order in
// which they were added. If one throws, the others do not hear it, and the call that told the event
// throws.
#ifndef APOGEE_CORE_STEP_LISTENER_H_
#define APOGEE_CORE_STEP_LISTENER_H_

#include <cstddef>
#include <functional>
#include <string>

#include "apogee/core/hooks.h"

namespace apogee {

class StepListener {
 public:
  virtual ~StepListener() = default;
  virtual void BeforeBackward() {}
  virtual void GradientReady(const std::string& /*parameter*/) {}
  // `chunk`: its index, in the order in which backward completes chunks.
  virtual void GradientsReduced(size_t /*chunk*/) {}
  // Nothing has changed yet. If a listener throws here, nothing will.
  virtual void BeforeStep() {}
  // Optimizer::last_step() is the report of this step. No weight has changed yet, unless updates
  // are made inside backward. If the GPU decides, this comes when the host knows the decision: when
  // last_step() is first read, at the latest when the next step begins.
  virtual void Decided() {}
  virtual void AfterStep() {}
  virtual void ValuesGathered(size_t /*chunk*/) {}
  // Weights may have changed. A listener that holds copies of them renews these.
  virtual void Loaded() {}
  // optim::EvaluationWeights will write, and has written, this rank's part of the weights. Plugins
  // distribute them.
  virtual void BeforeWeightsReplaced() {}
  virtual void WeightsReplaced() {}
};

class StepListeners {
 public:
  // The listener must live as long as the subscription.
  [[nodiscard]] Subscription Add(StepListener& listener) {
    return listeners_.Add([&listener](const Event& event) { event(listener); });
  }
  // Tells an event: Tell(&StepListener::GradientsReduced, chunk).
  template <typename... Declared, typename... Given>
  void Tell(void (StepListener::*event)(Declared...), const Given&... args) {
    listeners_.Run([&](StepListener& listener) { (listener.*event)(args...); });
  }

 private:
  using Event = std::function<void(StepListener&)>;
  Hooks<const Event&> listeners_;
};

}  // namespace apogee

#endif  // APOGEE_CORE_STEP_LISTENER_H_
