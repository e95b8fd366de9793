// SPDX-License-Identifier: Apache-2.0

// ExpertLoads: how many tokens each expert of a model gets in training.
//
//   driver::ExpertLoads loads(rank, flags, boosted.model, plugin, run);    // after Start
//   ... forward ...
//   loads.Count();                                     // before nn::AuxiliaryLoss
//   ... optimizer step, run.AfterStep() ...
//   loads.AfterStep(run);
//   loads.WritePicture(run.step());
//
// OUT/expert_loads.jsonl gets one row per step, {"step":3,"loads":[[130,126,..],..]}: the tokens of
// the step by layer and expert, over all ranks. A run that resumes keeps the rows up to its step.
// OUT/expert_loads.svg has a band per layer, a row per expert, and time from left to right; it is
// part of the page of --report.
#ifndef APOGEE_DRIVER_EXPERT_LOADS_H_
#define APOGEE_DRIVER_EXPERT_LOADS_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "apogee/booster/metrics/line_file.h"
#include "apogee/driver/program.h"
#include "apogee/driver/text_run.h"
#include "apogee/nn/moe/moe.h"
#include "apogee/plugins/plugin.h"

namespace apogee::driver {

class ExpertPicture;

class ExpertLoads {
 public:
  // All references must outlive it, but for the run.
  ExpertLoads(const Rank& rank, const RunFlags& flags, nn::Module& model, const Plugin& plugin,
              const TextRun& run);
  ~ExpertLoads();

  // Adds the tokens of the last forward.
  void Count();
  // Writes the row of the run's step. Every flags.log_every steps a line in the log has, by layer,
  // the least and the greatest load as a share of an even one. Collective: one all-reduce.
  void AfterStep(TextRun& run);
  // Draws the steps since the program began. Not a collective.
  void WritePicture(int64_t last_step) const;

 private:
  const Rank rank_;
  const RunFlags& flags_;
  const std::vector<nn::Moe*> layers_;
  const double copies_;         // ranks that train on the same tokens
  std::vector<double> counts_;  // of the step, layer after layer
  // On rank 0, if there are files.
  std::unique_ptr<LineFile> rows_;
  std::unique_ptr<ExpertPicture> picture_;
};

}  // namespace apogee::driver

#endif  // APOGEE_DRIVER_EXPERT_LOADS_H_
