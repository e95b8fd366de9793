// SPDX-License-Identifier: Apache-2.0

// Optimizers by name, with options as text, for programs, configuration files and plugins.
//
//   auto optimizer = optim::MakeOptimizer("adamw", model.Parameters(), {{"lr", "3e-4"}});
//   if (!optimizer.ok()) ...  // unknown optimizer "adamv" (did you mean "adamw"?); known: ...
//
//   optim::OptimizerRegistry registry;                     // the library's optimizers ...
//   registry.Add<AdaMax>("adamax");       // ... and your own
//   optimizer = optim::MakeOptimizer("adamax", model.Parameters(), {{"lr", "1e-2"}}, registry);
//
// The list of the library's optimizers is in registry.cc, one line each. Not a collective: ranks
// that train together make the same optimizer with the same options.
#ifndef APOGEE_OPTIM_REGISTRY_H_
#define APOGEE_OPTIM_REGISTRY_H_

#include <functional>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "apogee/core/text/name_table.h"
#include "apogee/optim/core/local_gradients.h"
#include "apogee/optim/optimizer.h"

namespace apogee::optim {

struct TextParamGroup {
  std::vector<autograd::ParameterPtr> params;
  OptionMap options;
};

class OptimizerRegistry {
 public:
  // Has every optimizer of the library.
  OptimizerRegistry();

  // Adds an optimizer, an OptimizerOf a rule. `defaults` holds for options that a text does not
  // name. Throws Error if the name is taken, is empty or begins with "distributed_".
  template <typename OptimizerType>
  void Add(const std::string& name, const typename OptimizerType::Options& defaults = {});

  // Returns an error for an unknown name, an unknown or malformed option, and everything that the
  // constructor refuses. A name with the prefix "distributed_" makes the same optimizer
  // (distributed.h).
  absl::StatusOr<std::unique_ptr<Optimizer>> Make(const std::string& name,
                                                  std::vector<autograd::ParameterPtr> params,
                                                  const OptionMap& options = {}) const;
  absl::StatusOr<std::unique_ptr<Optimizer>> Make(const std::string& name,
                                                  std::vector<TextParamGroup> groups) const;
  // All names, sorted.
  std::vector<std::string> names() const { return entries_.names(); }
  // Whether the optimizer averages over ranks itself in some steps (core/local_gradients.h).
  // Plugins that shard refuse it. False for an unknown name.
  bool TakesLocalGradients(const std::string& name) const;
  // The options of an optimizer with their defaults, and a line of text about each. An error for
  // an unknown name.
  absl::StatusOr<OptionMap> Defaults(const std::string& name) const;
  absl::StatusOr<OptionMap> Help(const std::string& name) const;

 private:
  struct Entry {
    std::function<absl::StatusOr<std::unique_ptr<Optimizer>>(const std::string& what,
                                                             std::vector<TextParamGroup>)>
        make;
    OptionMap defaults, help;
    bool takes_local_gradients;
  };
  void AddEntry(const std::string& name, Entry entry);
  absl::StatusOr<const Entry*> Find(const std::string& name) const;

  NameTable<Entry> entries_{"optimizer"};
};

// The library's optimizers alone.
const OptimizerRegistry& BuiltInOptimizers();

// The same as the functions of the registry.
inline absl::StatusOr<std::unique_ptr<Optimizer>> MakeOptimizer(
    const std::string& name, std::vector<autograd::ParameterPtr> params,
    const OptionMap& options = {}, const OptimizerRegistry& registry = BuiltInOptimizers()) {
  return registry.Make(name, std::move(params), options);
}
inline absl::StatusOr<std::unique_ptr<Optimizer>> MakeOptimizer(
    const std::string& name, std::vector<TextParamGroup> groups,
    const OptimizerRegistry& registry = BuiltInOptimizers()) {
  return registry.Make(name, std::move(groups));
}
inline std::vector<std::string> OptimizerNames(
    const OptimizerRegistry& registry = BuiltInOptimizers()) {
  return registry.names();
}
inline bool TakesLocalGradients(const std::string& name,
                                const OptimizerRegistry& registry = BuiltInOptimizers()) {
  return registry.TakesLocalGradients(name);
}
inline absl::StatusOr<OptionMap> OptimizerDefaults(
    const std::string& name, const OptimizerRegistry& registry = BuiltInOptimizers()) {
  return registry.Defaults(name);
}

template <typename OptimizerType>
void OptimizerRegistry::Add(const std::string& name,
                            const typename OptimizerType::Options& defaults) {
  using Options = typename OptimizerType::Options;
  const auto make =
      [defaults](const std::string& what,
                 std::vector<TextParamGroup> groups) -> absl::StatusOr<std::unique_ptr<Optimizer>> {
    std::vector<ParamGroup<Options>> typed;
    for (TextParamGroup& group : groups) {
      typed.push_back({std::move(group.params), defaults});
      APOGEE_RETURN_IF_ERROR(SetOptions(group.options, what, typed.back().options));
    }
    return ErrorToStatus([&] { return std::make_unique<OptimizerType>(std::move(typed)); });
  };
  OptionMap help;
  for (const OptionField<Options>& field : Options::Fields()) help[field.name] = field.help;
  AddEntry(name, {make, GetOptions(defaults), std::move(help),
                  std::is_base_of_v<LocalGradients, typename OptimizerType::Rule>});
}

}  // namespace apogee::optim

#endif  // APOGEE_OPTIM_REGISTRY_H_
