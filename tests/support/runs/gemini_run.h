// SPDX-License-Identifier: Apache-2.0

// The whole weights of a model that GeminiPlugin has sharded, for tests.
//
//   Weights got = WholeWeightsOf(model, plugin);       // collective
#ifndef APOGEE_TESTS_SUPPORT_RUNS_GEMINI_RUN_H_
#define APOGEE_TESTS_SUPPORT_RUNS_GEMINI_RUN_H_

#include "apogee/plugins/gemini.h"
#include "apogee/tests/support/exactness.h"

namespace apogee::testing {

inline Weights WholeWeightsOf(const nn::Module& model, const GeminiPlugin& plugin) {
  Weights weights;
  for (const auto& parameter : model.Parameters()) {
    weights[parameter->name()] = plugin.WholeValue(*parameter).ToVector<double>();
  }
  return weights;
}

}  // namespace apogee::testing

#endif  // APOGEE_TESTS_SUPPORT_RUNS_GEMINI_RUN_H_
