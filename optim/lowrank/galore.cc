// SPDX-License-Identifier: Apache-2.0

#include "apogee/optim/lowrank/galore.h"

#include <algorithm>

#include "apogee/core/text/text.h"
#include "apogee/tensor/ops/elementwise.h"
#include "apogee/tensor/ops/matmul.h"

namespace apogee::optim {
using internal::Concat;

Tensor GaLoreRotation::Apply(const Tensor& x, bool squared) const {
  const auto entries = [squared](const Tensor& m) { return squared ? ops::Mul(m, m) : m; };
  Tensor y = x;
  if (right.defined()) y = ops::MatMul(y, entries(right));
  if (left.defined()) y = ops::MatMul(entries(left), y);
  return y;
}

void CheckGaLore(const GaLoreSettings& s, OptionProblems& problems) {
  const auto one_of = [&](const char* name, const std::string& value,
                          const std::vector<std::string>& known) {
    if (std::ranges::find(known, value) != known.end()) return;
    problems.Add(Concat(name, " is \"", value, "\", must be one of ", JoinTexts(known, ", ")));
  };
  one_of("proj_type", s.proj_type, {"std", "reverse_std", "left", "right", "full"});
  one_of("svd", s.svd, {"randomized", "exact"});
  one_of("on_refresh", s.on_refresh, {"keep", "reset", "rotate"});
}

void CheckGaLoreRanks(const GaLoreSettings& s, const std::vector<autograd::ParameterPtr>& params,
                      std::vector<std::string>& problems) {
  if (!s.project || s.clamp_rank) return;
  for (const autograd::ParameterPtr& p : params) {
    if (p == nullptr || p->shape().rank() != 2) continue;
    const int64_t most = std::min(p->shape()[0], p->shape()[1]);
    if (s.rank <= most) continue;
    problems.push_back(Concat("rank ", s.rank, " is above ", most, ", the smaller side of \"",
                              p->name(), "\" ", p->shape(), "; lower it or set clamp_rank"));
  }
}

}  // namespace apogee::optim
