// SPDX-License-Identifier: Apache-2.0

#include "apogee/plan/machine/fit.h"

#include <Eigen/Dense>
#include <cmath>

namespace apogee::plan {

KernelRate Fit(const std::vector<MeasuredCall>& calls) {
  const auto count = static_cast<Eigen::Index>(calls.size());
  Eigen::MatrixXd features(count, 3);
  Eigen::VectorXd ones(count);
  for (Eigen::Index i = 0; i < count; ++i) {
    const MeasuredCall& call = calls[static_cast<size_t>(i)];
    const double weight = 1 / std::sqrt(call.seconds);
    features.row(i) << weight, weight * call.flops, weight * call.bytes;
    ones(i) = weight * call.seconds;
  }
  // Numbers of a similar size solve well.
  Eigen::Vector3d scale;
  for (int f = 0; f < 3; ++f) {
    const double norm = count == 0 ? 0 : features.col(f).norm();
    scale(f) = norm > 0 ? norm : 1;
    features.col(f) /= scale(f);
  }
  // Three rates have seven subsets: the best solution without a negative rate is among theirs.
  Eigen::Vector3d best = Eigen::Vector3d::Zero();
  double smallest = ones.squaredNorm();
  for (int subset = 1; subset < 8; ++subset) {
    Eigen::MatrixXd chosen = features;
    for (int f = 0; f < 3; ++f) {
      if ((subset >> f & 1) == 0) chosen.col(f).setZero();
    }
    const Eigen::VectorXd rates = chosen.completeOrthogonalDecomposition().solve(ones);
    const double error = (chosen * rates - ones).squaredNorm();
    if (rates.minCoeff() >= 0 && error < smallest) {
      smallest = error;
      best = rates;
    }
  }
  best = best.cwiseQuotient(scale);
  return {.seconds_per_call = best(0), .seconds_per_flop = best(1), .seconds_per_byte = best(2)};
}

}  // namespace apogee::plan
