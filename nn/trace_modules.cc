// SPDX-License-Identifier: Apache-2.0

#include "apogee/nn/trace_modules.h"

#include <algorithm>

namespace apogee::nn {
namespace {

// The open spans, outermost first.
class OpenSpans {
 public:
  OpenSpans(TraceLane* lane, const char* category) : lane_(lane), category_(category) {}

  void Begin(const Module& module, const std::string& path) {
    const std::string name = path.empty() ? "whole model" : path;
    // If a child's output is also its parent's output, the child's hook runs first: then the
    // parent's span must begin around the child's.
    auto inner = open_.end();
    while (inner != open_.begin() && IsInside((inner - 1)->path, path)) --inner;
    const TraceInfo info = {.category = category_};
    const size_t event = inner == open_.end() ? lane_->Begin(name, info)
                                              : lane_->BeginAround(inner->event, name, info);
    open_.insert(inner, {&module, path, event});
  }
  // Also ends the spans that are open inside, or spans would overlap without nesting. Modules whose
  // input needs no gradient report their end only at the end of backward, parents first.
  void End(const Module& module) {
    const auto last = std::find_if(open_.rbegin(), open_.rend(),
                                   [&](const Span& span) { return span.module == &module; });
    if (last == open_.rend()) return;
    const auto first_ended = last.base() - 1;
    for (auto it = open_.end(); it != first_ended;) lane_->End((--it)->event);
    open_.erase(first_ended, open_.end());
  }
  void EndAll() {
    for (; !open_.empty(); open_.pop_back()) lane_->End(open_.back().event);
  }

 private:
  struct Span {
    const Module* module;
    std::string path;
    size_t event;
  };
  static bool IsInside(const std::string& path, const std::string& outer) {
    return path != outer && (outer.empty() || path.starts_with(outer + "."));
  }

  TraceLane* lane_;
  const char* category_;
  std::vector<Span> open_;
};

}  // namespace

void TraceModules(Module& model, TraceLane* lane) {
  if (lane == nullptr) return;
  auto forward = std::make_shared<OpenSpans>(lane, "forward");
  auto backward = std::make_shared<OpenSpans>(lane, "backward");
  // An exception in the last call may have left spans open.
  model.AddPreForwardHook([forward, backward](Module&, const Tensor&) {
    forward->EndAll();
    backward->EndAll();
  });
  for (const auto& [path, module] : model.NamedModules()) {
    module->AddPreForwardHook(
        [forward, path = path](Module& self, const Tensor&) { forward->Begin(self, path); });
    module->AddPostForwardHook([forward](Module& self) { forward->End(self); });
    module->AddPreBackwardHook(
        [backward, path = path](Module& self) { backward->Begin(self, path); });
    module->AddPostBackwardHook([backward](Module& self) { backward->End(self); });
  }
}

}  // namespace apogee::nn
