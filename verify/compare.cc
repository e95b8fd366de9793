// SPDX-License-Identifier: Apache-2.0

#include "apogee/verify/compare.h"

#include <cmath>
#include <cstdio>
#include <limits>

#include "apogee/core/error.h"

namespace apogee::verify {
namespace {

double Ratio(double deviation, double tolerance) {
  if (deviation == 0) return 0;
  const double ratio = deviation / tolerance;
  return ratio == ratio ? ratio : std::numeric_limits<double>::infinity();
}

}  // namespace

void Comparison::Note(double ratio, const std::string& where) {
  ++num_compared_;
  if (ratio > worst_ || where_.empty()) {
    worst_ = ratio;
    where_ = where;
  }
}

void Comparison::Elements(const std::vector<double>& x, const std::vector<double>& golden,
                          const Tolerances& tolerances, const std::string& where) {
  if (x.size() != golden.size()) {
    return Fail(internal::Concat(where, ": ", x.size(), " elements, recorded ", golden.size()));
  }
  double worst = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    const double deviation = x[i] == golden[i] ? 0 : std::fabs(x[i] - golden[i]);
    worst = std::fmax(worst,
                      Ratio(deviation, tolerances.atol + tolerances.rtol * std::fabs(golden[i])));
  }
  Note(worst, where);
}

void Comparison::MostElements(const std::vector<double>& x, const std::vector<double>& golden,
                              const Tolerances& most, const Tolerances& all, double fraction,
                              const std::string& where) {
  if (x.size() != golden.size()) return Elements(x, golden, all, where);
  std::vector<double> near_x, near_golden, far_x, far_golden;
  for (size_t i = 0; i < x.size(); ++i) {
    const double limit = most.atol + most.rtol * std::fabs(golden[i]);
    const bool near = std::fabs(x[i] - golden[i]) <= limit;
    (near ? near_x : far_x).push_back(x[i]);
    (near ? near_golden : far_golden).push_back(golden[i]);
  }
  if (!near_x.empty()) Elements(near_x, near_golden, most, where);
  if (far_x.empty()) return;
  Elements(far_x, far_golden, all, internal::Concat(where, ", beyond most"));
  const auto allowed = std::ceil(fraction * static_cast<double>(x.size()));
  Note(static_cast<double>(far_x.size()) / allowed,
       internal::Concat(where, ", number beyond most"));
}

void Comparison::RelativeNorm(const std::vector<double>& x, const std::vector<double>& golden,
                              const std::vector<double>& from, double limit,
                              const std::string& where) {
  if (x.size() != golden.size() || x.size() != from.size()) {
    return Fail(internal::Concat(where, ": ", x.size(), " elements, recorded ", golden.size()));
  }
  double deviation = 0;
  double size = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    deviation += (x[i] - golden[i]) * (x[i] - golden[i]);
    size += (golden[i] - from[i]) * (golden[i] - from[i]);
  }
  Note(Ratio(std::sqrt(deviation), limit * std::sqrt(size)), where);
}

void Comparison::Fail(const std::string& what) {
  if (failure_.empty()) failure_ = what;
}

std::string Comparison::Summary() const {
  if (!failure_.empty()) return failure_;
  if (num_compared_ == 0) return "the file records nothing to compare with";
  char text[48];
  std::snprintf(text, sizeof(text), "worst %.2g of tolerance", worst_);
  return internal::Concat(text, " (", where_, ")");
}

}  // namespace apogee::verify
