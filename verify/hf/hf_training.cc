// SPDX-License-Identifier: Apache-2.0

#include "apogee/autograd/engine.h"
#include "apogee/nn/losses.h"
#include "apogee/optim/adam/adam.h"
#include "apogee/verify/hf/hf_replay.h"

namespace apogee::verify {
namespace {

using internal::Concat;

optim::AdamWOptions RecordedOptions(const Json& optimizer) {
  APOGEE_CHECK(optimizer.at("name") == "torch.optim.AdamW", "the recorded optimizer is ",
               optimizer.at("name").dump(), ", not torch.optim.AdamW");
  return {.lr = optimizer.at("lr").get<double>(),
          .betas = optimizer.at("betas").get<std::array<double, 2>>(),
          .eps = optimizer.at("eps").get<double>(),
          .weight_decay = optimizer.at("weight_decay").get<double>()};
}

// Moves the elements of `ranges` to the end of the result's second vector, the others to its first.
std::pair<std::vector<double>, std::vector<double>> Split(const std::vector<double>& values,
                                                          const Json& ranges) {
  std::vector<bool> inside(values.size(), false);
  for (const Json& range : ranges) {
    for (size_t i = range.at(0); i < range.at(1).get<size_t>(); ++i) inside.at(i) = true;
  }
  std::pair<std::vector<double>, std::vector<double>> split;
  for (size_t i = 0; i < values.size(); ++i) {
    (inside[i] ? split.second : split.first).push_back(values[i]);
  }
  return split;
}

// `loose`: ranges of elements whose gradient is 0 in exact arithmetic. Adam turns its rounding
// noise into steps of size lr.
void CompareFinal(const autograd::Parameter& parameter, const Json& loose, const HfReplay& replay) {
  const std::string name = replay.NameInFiles(parameter), entry = "final/" + name;
  if (!replay.golden.contains(entry)) return replay.comparison.Fail(entry + " is not recorded");
  const std::vector<double> values = parameter.data().ToVector<double>();
  const std::vector<double> recorded = replay.golden.Values(entry);
  const Tolerances tolerances = replay.tolerances.Final(name, recorded);
  if (!loose.contains(name) || values.size() != recorded.size()) {
    return replay.comparison.Elements(values, recorded, tolerances, entry);
  }
  const Json& ranges = loose.at(name).at("ranges");
  const auto [exact, noisy] = Split(values, ranges);
  const auto [recorded_exact, recorded_noisy] = Split(recorded, ranges);
  replay.comparison.Elements(exact, recorded_exact, tolerances, entry);
  replay.comparison.Elements(noisy, recorded_noisy,
                             {.atol = loose.at(name).at("atol").get<double>(), .rtol = 0},
                             entry + ", without exact gradients");
}

}  // namespace

void CompareTraining(const nn::HfModel& hf, const HfReplay& replay) {
  const Json recorded = replay.golden.required("optimizer");
  const std::vector<double> curve = replay.golden.Values("ref64/loss_curve");
  optim::AdamW optimizer(hf.module->Parameters(), RecordedOptions(recorded));
  const int64_t steps = recorded.at("steps");
  for (int64_t step = 0; step <= steps; ++step) {
    const Tensor loss = nn::CrossEntropyLoss()(replay.Logits(hf), replay.Targets(hf));
    replay.comparison.Number(loss.Item(), curve.at(static_cast<size_t>(step)),
                             replay.tolerances.LossCurve(), Concat("loss after step ", step));
    if (step == steps) break;
    autograd::Backward(loss);
    optimizer.step();
    optimizer.zero_grad();
  }
  const Json loose = replay.golden.json("final_loose");
  for (const autograd::ParameterPtr& parameter : hf.module->Parameters()) {
    CompareFinal(*parameter, loose, replay);
  }
}

}  // namespace apogee::verify
