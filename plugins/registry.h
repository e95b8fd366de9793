// SPDX-License-Identifier: Apache-2.0

// PluginRegistry: plugins by name, with options as text, for programs, configuration files and the
// matrix.
//
//   PluginRegistry registry;                                  // the library's plugins ...
//   registry.Add<LocalSgdPlugin, LocalSgdOptions>("local_sgd");   // ... and your own
//   auto plugin = registry.Make("zero2", world, training, {{"offload_states", "true"}});
//   if (!plugin.ok()) ...     // unknown plugin "zero22" (did you mean "zero2"?); known: ...
//   Booster booster(**plugin);
//
// Make communicates only if the plugin's constructor does: hybrid makes a mesh, so every rank of
// the world makes the same plugin with the same options.
#ifndef APOGEE_PLUGINS_REGISTRY_H_
#define APOGEE_PLUGINS_REGISTRY_H_

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "apogee/comm/launch.h"
#include "apogee/core/text/name_table.h"
#include "apogee/nn/parallel/plan.h"
#include "apogee/optim/options.h"
#include "apogee/plugins/plugin.h"
#include "apogee/plugins/training_options.h"

namespace apogee {

class PluginRegistry {
 public:
  // Makes a plugin, which the world must outlive. Returns an error for options that do not fit.
  using Factory = std::function<absl::StatusOr<std::unique_ptr<Plugin>>(
      const comm::World& world, const TrainingOptions& training, const optim::OptionMap& options)>;

  // Has the plugins of the library: ddp, gemini, hybrid, single, zero1, zero2. `plan`: how hybrid
  // cuts a model that does not come with Apogee.
  explicit PluginRegistry(const std::optional<nn::parallel::ParallelPlan>& plan = {});

  // `defaults`: every option that `make` takes, with its default as text. Throws Error if the name
  // is taken or empty.
  void Add(const std::string& name, Factory make, optim::OptionMap defaults);
  // The same for a plugin whose constructor takes (world, training, options) or (world.group(),
  // training, options). Options has Fields() (optim/options.h); `defaults` holds for options that a
  // text does not name. An Error of the constructor becomes the error that Make returns.
  template <typename PluginType, typename Options>
  void Add(const std::string& name, const Options& defaults = {});

  // All names, sorted.
  std::vector<std::string> names() const { return entries_.names(); }
  bool contains(const std::string& name) const { return entries_.contains(name); }
  // Returns an error for an unknown name (NotFound), an unknown or malformed option, and everything
  // that the constructor refuses.
  absl::StatusOr<std::unique_ptr<Plugin>> Make(const std::string& name, const comm::World& world,
                                               const TrainingOptions& training,
                                               const optim::OptionMap& options = {}) const;
  // The options of a plugin with their defaults. An error for an unknown name.
  absl::StatusOr<optim::OptionMap> Defaults(const std::string& name) const;

 private:
  struct Entry {
    Factory make;
    optim::OptionMap defaults;
  };
  NameTable<Entry> entries_{"plugin"};
};

template <typename PluginType, typename Options>
void PluginRegistry::Add(const std::string& name, const Options& defaults) {
  const auto make = [name, defaults](
                        const comm::World& world, const TrainingOptions& training,
                        const optim::OptionMap& texts) -> absl::StatusOr<std::unique_ptr<Plugin>> {
    return optim::MakeWithOptions(texts, "plugin " + name, defaults, [&](const Options& options) {
      constexpr bool kTakesWorld = std::is_constructible_v<PluginType, const comm::World&,
                                                           const TrainingOptions&, const Options&>;
      if constexpr (kTakesWorld) {
        return std::make_unique<PluginType>(world, training, options);
      } else {
        return std::make_unique<PluginType>(world.group(), training, options);
      }
    });
  };
  Add(name, make, optim::GetOptions(defaults));
}

}  // namespace apogee

#endif  // APOGEE_PLUGINS_REGISTRY_H_
