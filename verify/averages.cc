// SPDX-License-Identifier: Apache-2.0

#include "apogee/verify/averages.h"

#include <string>
#include <vector>

#include "apogee/optim/averaged/evaluation_weights.h"

namespace apogee::verify {

using internal::Concat;

void CompareAverages(const GoldenCase& golden, optim::Optimizer& optimizer, int64_t step,
                     Comparison& comparison) {
  if (!optimizer.traits().averages_weights) return;
  const Json tolerance = golden.required("eval_tolerance");
  std::vector<std::vector<double>> before;
  for (const optim::ParamView& view : std::as_const(optimizer).views()) {
    before.push_back(view.value().ToVector<double>());
  }
  {
    const optim::EvaluationWeights averages(optimizer);
    for (const optim::ParamView& view : std::as_const(optimizer).views()) {
      const std::string entry = Concat("eval/", view.name(), "/", step);
      const std::string exact = "ref64/" + entry;
      const std::vector<double> values = view.value().ToVector<double>();
      if (golden.contains(entry)) {
        comparison.Elements(values, golden.Values(entry),
                            {tolerance.at("atol_per_param").at(view.name()).get<double>(),
                             tolerance.at("rtol").get<double>()},
                            Concat("average of ", view.name(), ", step ", step));
      }
      if (view.dtype() == DType::kF64 && golden.contains(exact)) {
        comparison.Elements(values, golden.Values(exact), {1e-12, 1e-11},
                            Concat("float64 average of ", view.name(), ", step ", step));
      }
    }
  }
  for (size_t i = 0; i < before.size(); ++i) {
    if (std::as_const(optimizer).views()[i].value().ToVector<double>() != before[i]) {
      comparison.Fail(Concat("step ", step, ": the average has changed the weights of training"));
    }
  }
}

void CompareGroupStates(const GoldenCase& golden, const optim::Optimizer& optimizer, int group,
                        int64_t step, Comparison& comparison) {
  for (const auto& [name, values] : optimizer.group_state(group)) {
    const std::string state = Concat("state/_group", group, "/", name, "/", step);
    if (!golden.contains(state)) continue;
    comparison.Elements(values, golden.Values(state), {1e-7, 1e-5}, state);
  }
}

}  // namespace apogee::verify
