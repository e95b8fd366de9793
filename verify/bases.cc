// SPDX-License-Identifier: Apache-2.0

#include "apogee/verify/bases.h"

#include <algorithm>

namespace apogee::verify {

void StartFromBases(const GoldenCase& golden, optim::Optimizer& optimizer) {
  optim::StateStore& states = optimizer.states();
  states.ForEachView([&](optim::ParamView& view, int group) {
    const std::string entry = internal::Concat("state/", view.name(), "/Q/0");
    if (!golden.contains(entry)) return;
    states.Make(view, group);
    view.state("Q").SetValues(golden.Values(entry));
  });
}

void InjectBases(const GoldenCase& golden, optim::Optimizer& optimizer, int64_t step) {
  const Json names = golden.json("inject");
  for (optim::ParamView& view : optimizer.views()) {
    if (!names.is_array() || std::ranges::find(names, Json(view.name())) == names.end()) continue;
    for (int axis = 0; view.step() == 1 && axis < view.shape().rank(); ++axis) {
      const std::string entry =
          internal::Concat("projector/", view.name(), "/", step, "/axis", axis);
      const Tensor basis = view.state(internal::Concat("Q", axis));
      if (golden.contains(entry) && basis.defined()) basis.SetValues(golden.Values(entry));
    }
  }
}

void AlignColumns(const GoldenCase& golden, const std::string& entry, std::vector<double>& basis) {
  const std::vector<double> recorded = golden.Values(entry);
  if (recorded.size() != basis.size()) return;  // the comparison says so
  const auto columns = static_cast<size_t>(golden.Load(entry).size(-1));
  for (size_t c = 0; c < columns; ++c) {
    double overlap = 0;
    for (size_t i = c; i < basis.size(); i += columns) overlap += basis[i] * recorded[i];
    if (overlap >= 0) continue;
    for (size_t i = c; i < basis.size(); i += columns) basis[i] = -basis[i];
  }
}

}  // namespace apogee::verify
