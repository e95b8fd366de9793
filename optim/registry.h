// SPDX-License-Identifier: Apache-2.0

// Optimizers by name, with options as text, for programs, configuration files and plugins.
//
//   auto optimizer = optim::MakeOptimizer("adamw", model.Parameters(), {{"lr", "3e-4"}});
//   if (!optimizer.ok()) ...  // unknown optimizer "adamv" (did you mean "adamw"?); known: ...
//
// The list is in registry.cc, one line per optimizer.
#ifndef APOGEE_OPTIM_REGISTRY_H_
#define APOGEE_OPTIM_REGISTRY_H_

#include <memory>
#include <string>
#include <vector>

#include "apogee/optim/optimizer.h"

namespace apogee::optim {

struct TextParamGroup {
  std::vector<autograd::ParameterPtr> params;
  OptionMap options;
};

// Returns an error for an unknown name, an unknown or malformed option, and everything that the
// constructor refuses. A name with the prefix "distributed_" makes the same optimizer
// (distributed.h).
absl::StatusOr<std::unique_ptr<Optimizer>> MakeOptimizer(const std::string& name,
                                                         std::vector<autograd::ParameterPtr> params,
                                                         const OptionMap& options = {});
absl::StatusOr<std::unique_ptr<Optimizer>> MakeOptimizer(const std::string& name,
                                                         std::vector<TextParamGroup> groups);

// All names, sorted.
std::vector<std::string> OptimizerNames();
// Whether the optimizer averages over ranks itself in some steps (local_gradients.h). Plugins that
// shard refuse it. False for an unknown name.
bool TakesLocalGradients(const std::string& name);
// The options of an optimizer with their defaults.
absl::StatusOr<OptionMap> OptimizerDefaults(const std::string& name);

}  // namespace apogee::optim

#endif  // APOGEE_OPTIM_REGISTRY_H_
