// SPDX-License-Identifier: Apache-2.0

// StepLog: writes the events of training steps into a trace, or as lines of text.
//
//   StepLog log(world.trace()->Lane(rank, "step events"), {});
//   StepLog text(nullptr, [](const std::string& line) { std::cerr << line << '\n'; });
//   const Subscription own = optimizer.AddListener(text);
//   // step 1: gradient ready: h.0.mlp.c_fc.weight
//
// An event has no duration. Events after a step, such as gathers of its values, count to that step
// until the next backward begins. Internal: programs have --trace and --print-events.
#ifndef APOGEE_CORE_TRACE_STEP_LOG_H_
#define APOGEE_CORE_TRACE_STEP_LOG_H_

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <utility>

#include "apogee/core/step_listener.h"
#include "apogee/core/trace/trace.h"

namespace apogee {

class StepLog : public StepListener {
 public:
  using Print = std::function<void(const std::string& line)>;
  // Either may be null.
  StepLog(TraceLane* lane, Print print) : lane_(lane), print_(std::move(print)) {}

  void BeforeBackward() override {
    step_ += std::exchange(ended_, false) ? 1 : 0;
    Write("before backward");
  }
  void GradientReady(const std::string& parameter) override { Write("gradient ready", parameter); }
  void GradientsReduced(size_t chunk) override { Write("gradients reduced", ChunkName(chunk)); }
  void BeforeStep() override { Write("before step"); }
  void Decided() override { Write("decided"); }
  void AfterStep() override {
    Write("after step");
    ended_ = true;
  }
  void ValuesGathered(size_t chunk) override { Write("values gathered", ChunkName(chunk)); }
  void Loaded() override { Write("loaded"); }
  void WeightsReplaced() override { Write("weights replaced"); }

 private:
  static std::string ChunkName(size_t chunk) { return "chunk " + std::to_string(chunk); }
  void Write(std::string_view event, std::string_view what = "") {
    const TraceSpan span(lane_, event,
                         {.category = "step", .args = {{"step", step_}, {"what", what}}});
    if (!print_) return;
    std::string line = "step " + std::to_string(step_) + ": " + std::string(event);
    if (!what.empty()) line += ": " + std::string(what);
    print_(line);
  }

  TraceLane* lane_;
  Print print_;
  int64_t step_ = 1;
  bool ended_ = false;
};

}  // namespace apogee

#endif  // APOGEE_CORE_TRACE_STEP_LOG_H_
