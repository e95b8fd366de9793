// SPDX-License-Identifier: Apache-2.0

#include <algorithm>

#include "apogee/verify/hf/hf_replay.h"

namespace apogee::verify {
namespace {

using internal::Concat;

// With the gradient G as a matrix [rows, everything else]: G v with v_j = 1 / (1 + j), then
// G^T u with u_i = 1 / (1 + i).
std::vector<double> Probe(const std::vector<double>& grad, const Shape& shape) {
  const auto rows = static_cast<size_t>(shape[0]);
  const size_t columns = grad.size() / rows;
  std::vector<double> probe(rows + columns, 0);
  for (size_t i = 0; i < rows; ++i) {
    for (size_t j = 0; j < columns; ++j) {
      const double element = grad[i * columns + j];
      probe[i] += element / static_cast<double>(1 + j);
      probe[rows + j] += element / static_cast<double>(1 + i);
    }
  }
  return probe;
}

}  // namespace

void CompareExactGradient(const std::string& start, const std::string& name,
                          const std::vector<double>& grad, const Shape& shape,
                          const HfReplay& replay) {
  const auto compare = [&](const std::string& entry, const std::vector<double>& values) {
    if (!replay.golden.contains(entry)) return;
    const std::vector<double> recorded = replay.golden.Values(entry);
    replay.comparison.Elements(values, recorded, replay.tolerances.ExactGradient(recorded), entry);
  };
  compare(start + "ref64/grad/" + name, grad);
  if (shape.rank() > 1) compare(start + "ref64/grad_probe/" + name, Probe(grad, shape));
}

void CompareGradients(const nn::HfModel& hf, const HfReplay& replay) {
  const GoldenCase& golden = replay.golden;
  int64_t num_compared = 0;
  for (const autograd::ParameterPtr& parameter : hf.module->Parameters()) {
    const std::string name = replay.NameInFiles(*parameter), entry = "grad/" + name;
    if (!golden.contains(entry)) {
      replay.comparison.Fail(entry + " is not recorded");
      continue;
    }
    ++num_compared;
    if (!parameter->has_grad()) {
      replay.comparison.Fail(entry + " is absent");
      continue;
    }
    const std::vector<double> grad = parameter->grad().ToVector<double>();
    const std::vector<double> recorded = golden.Values(entry);
    replay.comparison.Elements(grad, recorded, replay.tolerances.Gradient(name, recorded), entry);
    if (replay.dtype == DType::kF64)
      CompareExactGradient("", name, grad, parameter->shape(), replay);
    parameter->zero_grad();
  }
  const auto is_grad = [](const auto& entry) { return entry.first.starts_with("grad/"); };
  const int64_t num_recorded = std::ranges::count_if(golden.file().entries(), is_grad);
  if (num_compared != num_recorded) {
    replay.comparison.Fail(Concat("the model has ", num_compared, " of the ", num_recorded,
                                  " parameters with recorded gradients"));
  }
}

}  // namespace apogee::verify
