// SPDX-License-Identifier: Apache-2.0

// Comparison: compares values with recorded ones and keeps the worst ratio of deviation to
// tolerance.
//
//   Comparison comparison;
//   comparison.Elements(values, golden, {.atol = 1e-6, .rtol = 1e-6}, "param wide, step 3");
//   comparison.worst();                     // <= 1: everything is within its tolerance
#ifndef APOGEE_VERIFY_COMPARE_H_
#define APOGEE_VERIFY_COMPARE_H_

#include <string>
#include <vector>

namespace apogee::verify {

struct Tolerances {
  double atol = 0;
  double rtol = 0;
};

class Comparison {
 public:
  // Requires, for every element,
  //   |x - golden| <= atol + rtol |golden|
  // Sizes must be equal.
  void Elements(const std::vector<double>& x, const std::vector<double>& golden,
                const Tolerances& tolerances, const std::string& where);
  // Elements with `most`, except that a fraction `fraction` of the elements only needs `all`.
  void MostElements(const std::vector<double>& x, const std::vector<double>& golden,
                    const Tolerances& most, const Tolerances& all, double fraction,
                    const std::string& where);
  // Requires ||x - golden|| <= limit ||golden - from||; if the right side is 0, x must equal
  // golden.
  void RelativeNorm(const std::vector<double>& x, const std::vector<double>& golden,
                    const std::vector<double>& from, double limit, const std::string& where);
  void Number(double x, double golden, const Tolerances& tolerances, const std::string& where) {
    Elements({x}, {golden}, tolerances, where);
  }
  // Records a failure that no tolerance excuses.
  void Fail(const std::string& what);

  // The case needs what this build does not have.
  void Skip(const std::string& why) { skipped_ = why; }

  double worst() const { return worst_; }
  // Why the case is skipped; "" if it is not.
  const std::string& skipped() const { return skipped_; }
  const std::string& where() const { return where_; }
  bool passed() const { return failure_.empty() && worst_ <= 1 && num_compared_ > 0; }
  // "worst 0.12 of tolerance (param odd, step 8)", or the failure.
  std::string Summary() const;

 private:
  void Note(double ratio, const std::string& where);

  double worst_ = 0;
  std::string where_;
  std::string failure_;
  std::string skipped_;
  long num_compared_ = 0;
};

}  // namespace apogee::verify

#endif  // APOGEE_VERIFY_COMPARE_H_
