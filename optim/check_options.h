// SPDX-License-Identifier: Apache-2.0

// OptionProblems: collects the invalid values of an options struct, so that one Error lists all.
//
//   OptionProblems problems;
//   problems.AtLeastZero("lr", lr);          // "lr is -1, must be at least 0 and finite"
//   return problems.list();
#ifndef APOGEE_OPTIM_CHECK_OPTIONS_H_
#define APOGEE_OPTIM_CHECK_OPTIONS_H_

#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "apogee/optim/options.h"

namespace apogee::optim {

class OptionProblems {
 public:
  void Add(const std::string& problem) { problems_.push_back(problem); }
  void Finite(const char* name, double value) {
    if (!std::isfinite(value)) Got(name, value, "must be finite");
  }
  void AtLeastZero(const char* name, double value) {
    if (!(value >= 0) || std::isinf(value)) Got(name, value, "must be at least 0 and finite");
  }
  void Positive(const char* name, double value) {
    if (!(value > 0) || std::isinf(value)) Got(name, value, "must be above 0 and finite");
  }
  // The decay rate of a moving average.
  void Decay(const char* name, double value) {
    if (!(value >= 0 && value < 1)) Got(name, value, "must be in [0, 1)");
  }
  const std::vector<std::string>& list() const { return problems_; }

 private:
  void Got(const char* name, double value, const char* expected) {
    Add(internal::Concat(name, " is ", value, ", ", expected));
  }
  std::vector<std::string> problems_;
};

}  // namespace apogee::optim

#endif  // APOGEE_OPTIM_CHECK_OPTIONS_H_
