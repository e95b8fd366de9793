// SPDX-License-Identifier: Apache-2.0

// Adam with 8-bit moments on one tensor in f64, for the tests of AdamW8bit and GaLoreAdamW8bit;
// codes are found by search.
//
//   Adam8Rule rule(n);
//   w -= rule.Step(g, t, options);                  // then the decay that the optimizer has
#ifndef APOGEE_TESTS_OPTIM_LOWBIT_ADAM8_RULE_H_
#define APOGEE_TESTS_OPTIM_LOWBIT_ADAM8_RULE_H_

#include <algorithm>
#include <cmath>
#include <vector>

#include "apogee/optim/lowbit/code_map.h"

namespace apogee::optim {

struct Adam8Rule {
  explicit Adam8Rule(size_t n) : m(n), v(n) {}
  std::vector<double> m, v;  // as the codes say

  // lr m / (sqrt(v) + eps) of update t, with moments that are not yet rounded.
  template <typename Options>
  std::vector<double> Step(const std::vector<double>& g, int t, const Options& o) {
    const double c1 = 1 - std::pow(o.betas[0], t), c2 = 1 - std::pow(o.betas[1], t);
    std::vector<double> u(m.size());
    for (size_t i = 0; i < m.size(); ++i) {
      m[i] = o.betas[0] * m[i] + (1 - o.betas[0]) * g[i];
      v[i] = o.betas[1] * v[i] + (1 - o.betas[1]) * g[i] * g[i];
      u[i] = o.lr / c1 * m[i] / (std::sqrt(v[i] / c2) + o.eps);
    }
    const size_t block = o.block_wise ? static_cast<size_t>(o.block_size) : m.size();
    Round(CodeMap::Signed(), m, block, o.kernel == "cuda");
    Round(CodeMap::Unsigned(), v, block, false);
    return u;
  }
  static void Round(const CodeMap& map, std::vector<double>& x, size_t block, bool keep_sign) {
    for (size_t begin = 0; begin < x.size(); begin += block) {
      const size_t end = std::min(x.size(), begin + block);
      double absmax = 0;
      for (size_t i = begin; i < end; ++i) absmax = std::max(absmax, std::fabs(x[i]));
      for (size_t i = begin; i < end && absmax > 0; ++i) {
        const float* best =
            std::min_element(map.values(), map.values() + 256, [&](float a, float b) {
              return std::fabs(a - x[i] / absmax) < std::fabs(b - x[i] / absmax);
            });
        if (keep_sign && x[i] < 0 && *best == 0) --best;
        x[i] = double{*best} * absmax;
      }
    }
  }
};

}  // namespace apogee::optim

#endif  // APOGEE_TESTS_OPTIM_LOWBIT_ADAM8_RULE_H_
