// SPDX-License-Identifier: Apache-2.0

// ExpertLoads: how many tokens each expert of a model gets in training.
//
//   driver::ExpertLoads loads(rank, flags, boosted.model, plugin, run.step());    // after Start
//   ... forward ...
//   loads.Count();                                     // before nn::AuxiliaryLoss
//   ... optimizer step ...
//   run.Note(loads.AfterStep());                       // if it is not empty
//   loads.WritePicture();
//
// OUT/expert_loads.jsonl gets one row per step, {"step":3,"loads":[[130,126,..],..]}: the tokens of
// the step by layer and expert, over all ranks. A run that resumes keeps the rows up to its step.
// OUT/expert_loads.svg has a band per layer, a row per expert, and time from left to right; it is
// part of the page of --report.
#ifndef APOGEE_DRIVER_EXPERT_LOADS_H_
#define APOGEE_DRIVER_EXPERT_LOADS_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "apogee/booster/metrics/line_file.h"
#include "apogee/driver/program.h"
#include "apogee/nn/moe/moe.h"
#include "apogee/plugins/plugin.h"

namespace apogee::driver {

class ExpertLoads {
 public:
  // `done`: steps of the run that this one resumes. All references must outlive it.
  ExpertLoads(const Rank& rank, const RunFlags& flags, nn::Module& model, const Plugin& plugin,
              int64_t done);
  ~ExpertLoads();

  // Adds the tokens of the last forward.
  void Count();
  // Writes the row of the step. Returns a line for the log every flags.log_every steps, else "": by
  // layer the least and the greatest load, as a share of an even one. Collective: one all-reduce.
  std::string AfterStep();
  // Draws the steps since the program began. Not a collective.
  void WritePicture() const;

 private:
  const Rank rank_;
  const RunFlags& flags_;
  const std::vector<nn::Moe*> layers_;
  // Ranks that train on the same tokens.
  const double copies_;
  int64_t step_;
  const int64_t first_step_;
  std::vector<double> counts_;              // of the step, layer after layer
  std::vector<std::vector<float>> shares_;  // of each step, of an even load; on rank 0
  std::unique_ptr<LineFile> rows_;          // on rank 0, if there are files
};

}  // namespace apogee::driver

#endif  // APOGEE_DRIVER_EXPERT_LOADS_H_
