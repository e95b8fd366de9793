// SPDX-License-Identifier: Apache-2.0

// OptionProblems: collects the invalid values of an options struct, so that one Error lists all.
// OptionCheck: what is valid for one field, as Fields() says (options.h). An options struct whose
// fields depend on each other has the function Check in addition:
//
//   void SgdOptions::Check(OptionProblems& problems) const {
//     if (nesterov && !(momentum > 0)) problems.Add("nesterov needs momentum above 0");
//   }
#ifndef APOGEE_OPTIM_CHECK_OPTIONS_H_
#define APOGEE_OPTIM_CHECK_OPTIONS_H_

#include <string>
#include <type_traits>
#include <vector>

namespace apogee::optim {

enum class OptionCheck {
  kAny,
  kFinite,
  kAtLeastZero,  // and finite
  kPositive,     // above 0 and finite
  kAboveZero,    // may be infinite
  kDecay,        // the decay rate of a moving average, in [0, 1)
  kAtLeastOne,
};

class OptionProblems {
 public:
  void Add(const std::string& problem) { problems_.push_back(problem); }
  // Adds a problem if `value` fails the check.
  void Run(OptionCheck check, const std::string& name, double value);
  // The same for a field: a number, or each element of an array. Text has no checks.
  template <typename T>
  void RunField(OptionCheck check, const std::string& name, const T& field) {
    if constexpr (std::is_arithmetic_v<T>) {
      Run(check, name, static_cast<double>(field));
    } else if constexpr (!std::is_same_v<T, std::string>) {
      for (size_t i = 0; i < field.size(); ++i) {
        Run(check, name + '[' + std::to_string(i) + ']', static_cast<double>(field[i]));
      }
    }
  }
  const std::vector<std::string>& list() const { return problems_; }

 private:
  std::vector<std::string> problems_;
};

}  // namespace apogee::optim

#endif  // APOGEE_OPTIM_CHECK_OPTIONS_H_
