// SPDX-License-Identifier: Apache-2.0

// --plugin: lets the user of a program choose the plugin, and its options.
//
//   driver::PluginFlags plugin;
//   plugin.Declare(line);                                   // after RunFlags::Declare
//   ... plugin.Settle(line, flags); ...                     // while the flags are checked
//   const std::unique_ptr<Plugin> made = plugin.Make(rank.world, flags);      // on every rank
//
// A program adds its own plugins to `registry` before Declare; --plugin then knows them. Options
// without a flag of their own are words: --plugin.KEY=VALUE. An option that has a flag is refused
// as a word.
#ifndef APOGEE_DRIVER_PLUGIN_FLAGS_H_
#define APOGEE_DRIVER_PLUGIN_FLAGS_H_

#include <memory>
#include <string>

#include "apogee/driver/run_flags.h"
#include "apogee/plugins/registry.h"

namespace apogee::driver {

struct PluginFlags {
  PluginRegistry registry;
  std::string name = {};  // Settle replaces "" by single or ddp
  bool reproducible = false;
  int tp_size = 1, zero_stage = 0;  // only for hybrid
  optim::OptionMap options = {};    // of the plugin; the flags above included

  // Adds --plugin, --tp-size, --zero-stage and --reproducible.
  void Declare(CommandLine& line);
  // Fills in the values that depend on each other, and checks them. Throws Error.
  void Settle(const CommandLine& line, const RunFlags& flags);

  // Throws Error for options that the plugin does not support.
  std::unique_ptr<Plugin> Make(const comm::World& world, const RunFlags& flags) const;

  // The settings that a checkpoint records, added to `own`.
  RunConfig::Texts Settings(RunConfig::Texts own) const;
  // For RunDescription::layout: ": tp 2, dp 2, ZeRO stage 2" for hybrid, else empty.
  std::string Layout(const comm::World& world) const;
};

}  // namespace apogee::driver

#endif  // APOGEE_DRIVER_PLUGIN_FLAGS_H_
