#include "apogee/tools/verify/compare.h"

#include <cmath>
#include <cstdio>
#include <limits>

#include "apogee/core/error.h"

namespace apogee::tools {
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

}  // namespace apogee::tools
