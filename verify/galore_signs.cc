// SPDX-License-Identifier: Apache-2.0

#include "apogee/verify/galore_signs.h"

namespace apogee::verify {

using internal::Concat;

void AlignSigns(const GoldenCase& golden, const std::string& name, int64_t step,
                const optim::NewBasis& basis, Comparison& comparison) {
  std::string entry = Concat("projector/", name, "/", step);
  if (basis.both_sides) entry += basis.right ? "/right" : "/left";
  if (!golden.contains(entry)) {
    return comparison.Fail("a basis was computed where none is recorded: " + entry);
  }
  const Tensor recorded = golden.Load(entry, basis.vectors.dtype());
  if (recorded.shape() != basis.vectors.shape()) {
    return comparison.Fail(Concat(entry, " is recorded with shape ", recorded.shape(),
                                  ", computed with ", basis.vectors.shape()));
  }
  std::vector<double> values = basis.vectors.ToVector<double>();
  const std::vector<double> golden_values = recorded.ToVector<double>();
  const auto rows = static_cast<size_t>(recorded.size(0));
  const auto cols = static_cast<size_t>(recorded.size(1));
  const size_t count = basis.right ? rows : cols, length = basis.right ? cols : rows;
  for (size_t k = 0; k < count; ++k) {  // right vectors are rows, left vectors columns
    const auto at = [&](size_t i) { return basis.right ? k * cols + i : i * cols + k; };
    double overlap = 0;
    for (size_t i = 0; i < length; ++i) overlap += values[at(i)] * golden_values[at(i)];
    if (overlap >= 0) continue;
    for (size_t i = 0; i < length; ++i) values[at(i)] *= -1;
  }
  basis.vectors.CopyFrom(Tensor::FromVector(values, recorded.shape(), golden.context()));
}

}  // namespace apogee::verify
