// SPDX-License-Identifier: Apache-2.0

// Optimizers by name, with options as text: what programs, configuration files and plugins use.
//
//   auto optimizer = optim::MakeOptimizer("adamw", model.Parameters(), {{"lr", "3e-4"}});
//   if (!optimizer.ok()) ...  // unknown optimizer "adamv" (did you mean "adamw"?); known: adam,
//   adamw, ...
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

// An unknown name, an unknown or malformed option, and whatever the constructor refuses is an
// error. "distributed_" before a name makes the same optimizer (distributed.h).
absl::StatusOr<std::unique_ptr<Optimizer>> MakeOptimizer(const std::string& name,
                                                         std::vector<autograd::ParameterPtr> params,
                                                         const OptionMap& options = {});
absl::StatusOr<std::unique_ptr<Optimizer>> MakeOptimizer(const std::string& name,
                                                         std::vector<TextParamGroup> groups);

// Sorted.
std::vector<std::string> OptimizerNames();
// Whether it averages over ranks itself in some steps (local_gradients.h): plugins that shard
// refuse it. False for an unknown name.
bool TakesLocalGradients(const std::string& name);
// The options of an optimizer and their defaults.
absl::StatusOr<OptionMap> OptimizerDefaults(const std::string& name);

}  // namespace apogee::optim

#endif  // APOGEE_OPTIM_REGISTRY_H_
