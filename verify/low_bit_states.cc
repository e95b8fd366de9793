// SPDX-License-Identifier: Apache-2.0

#include "apogee/verify/low_bit_states.h"

#include <algorithm>
#include <cmath>

namespace apogee::verify {
namespace {

using internal::Concat;

// ">=99% equal and the rest within +-1" -> 0.01.
double FractionOff(const Json& tolerance) {
  const std::string text = tolerance.value("codes", ">=100% equal");
  const size_t digits = text.find_first_of("0123456789");
  return digits == std::string::npos ? 0 : 1 - std::stod(text.substr(digits)) / 100;
}

// If a block's recorded scale is 0, every code means 0, and the references leave arbitrary codes
// there.
void CompareCodes(const GoldenCase& golden, const std::string& prefix, const std::string& entry,
                  const std::vector<double>& codes, int64_t step, Comparison& comparison) {
  const std::vector<double> expected = golden.Values(entry);
  const std::string number = entry.substr(prefix.size() + 5, 1);  // state1, state2
  const std::vector<double> scales = golden.Values(Concat(prefix, "absmax", number, "/", step));
  APOGEE_CHECK(!scales.empty() && expected.size() == codes.size(), entry, ": ", codes.size(),
               " codes, recorded ", expected.size(), " in ", scales.size(), " blocks");
  const size_t block = scales.size() == 1 ? codes.size() : 256;
  std::vector<double> x, recorded;
  for (size_t i = 0; i < codes.size(); ++i) {
    if (scales[std::min(i / block, scales.size() - 1)] == 0) continue;
    x.push_back(codes[i]);
    recorded.push_back(expected[i]);
  }
  comparison.MostElements(x, recorded, {1e-9, 0}, {1, 0}, FractionOff(golden.required("tolerance")),
                          entry);
}

}  // namespace

bool HasLowBitTolerances(const Json& tolerance) { return tolerance.contains("atol_most"); }

void CompareLowBitWeights(const std::vector<double>& x, const std::vector<double>& golden,
                          const Json& tolerance, const std::string& where, Comparison& comparison) {
  const double rtol = tolerance.value("rtol", 1e-6);
  comparison.MostElements(x, golden, {tolerance.at("atol_most").get<double>(), rtol},
                          {tolerance.at("atol_all").get<double>(), rtol},
                          tolerance.at("fraction_allowed_beyond_most").get<double>(), where);
}

void CompareLowBitState(const GoldenCase& golden, const optim::ParamView& view,
                        const optim::NamedState& state, int64_t step, Comparison& comparison) {
  const std::string prefix = Concat("state/", view.name(), "/");
  const std::string entry = Concat(prefix, state.name, "/", step);
  if (!golden.contains(entry)) return;
  const std::vector<double> values = state.value.ToVector<double>();
  if (IsCodes(state.kind)) {
    return CompareCodes(golden, prefix, entry, values, step, comparison);
  }
  // A flipped code changes the values computed from it by a fraction of the codes' spacing.
  const std::vector<double> expected = golden.Values(entry);
  double largest = 0;
  for (const double value : expected) largest = std::max(largest, std::fabs(value));
  comparison.MostElements(values, expected, {3e-5 * largest, 1e-5}, {0.01 * largest, 0}, 0.1,
                          entry);
}

}  // namespace apogee::verify
