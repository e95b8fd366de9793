// SPDX-License-Identifier: Apache-2.0

// Errors relative to the *update*. A weight barely moves in a short run, so an error relative to
// the weight itself would look small.
//
//   Weights start = WeightsOf(model), want = …, got = …;
//   WorstUpdateError(start, want, got).error <= 1e-9
#ifndef APOGEE_MATRIX_UPDATE_ERROR_H_
#define APOGEE_MATRIX_UPDATE_ERROR_H_

#include <cmath>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include "apogee/nn/module.h"

namespace apogee::matrix {

// By parameter name.
using Weights = std::map<std::string, std::vector<double>>;

inline Weights WeightsOf(const nn::Module& model) {
  Weights weights;
  for (const auto& p : model.Parameters()) weights[p->name()] = p->data().ToVector<double>();
  return weights;
}

// The relative error of one parameter's update:
//
//   ||got - want|| / ||want - start||
//
// It is 0 if both vectors equal the start, and infinite if only `want` does.
inline double UpdateError(const std::vector<double>& start, const std::vector<double>& want,
                          const std::vector<double>& got) {
  double error = 0, update = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    error += (got[i] - want[i]) * (got[i] - want[i]);
    update += (want[i] - start[i]) * (want[i] - start[i]);
  }
  if (error == 0) return 0;
  return update == 0 ? std::numeric_limits<double>::infinity() : std::sqrt(error / update);
}

inline std::map<std::string, double> UpdateErrors(const Weights& start, const Weights& want,
                                                  const Weights& got) {
  std::map<std::string, double> errors;
  for (const auto& [name, values] : want)
    errors[name] = UpdateError(start.at(name), values, got.at(name));
  return errors;
}

struct WorstError {
  std::string name;
  double error = 0;
};

inline WorstError WorstUpdateError(const Weights& start, const Weights& want, const Weights& got) {
  WorstError worst;
  for (const auto& [name, error] : UpdateErrors(start, want, got)) {
    if (!(error <= worst.error)) worst = {name, error};
  }
  return worst;
}

}  // namespace apogee::matrix

#endif  // APOGEE_MATRIX_UPDATE_ERROR_H_
