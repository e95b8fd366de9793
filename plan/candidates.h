// SPDX-License-Identifier: Apache-2.0

// The plugins and meshes that `apogee plan` compares.
//
//   for (const plan::Candidate& candidate : plan::Candidates(setup, /*num_ranks=*/8))
//     std::cout << candidate.name << "\n" << plan::CodeOf(candidate, setup);
#ifndef APOGEE_PLAN_CANDIDATES_H_
#define APOGEE_PLAN_CANDIDATES_H_

#include <string>
#include <vector>

#include "apogee/optim/options.h"
#include "apogee/plan/training_setup.h"

namespace apogee::plan {

struct Candidate {
  std::string name = {};          // "zero2", "hybrid pp2 dp2 tp2 zero1"
  std::string plugin = {};        // of PluginRegistry
  optim::OptionMap options = {};  // of the plugin
  int num_ranks = 1;
  int pp = 1, tp = 1;  // the rest of the ranks is data parallel
  int ep = 1;          // of these, the ranks that share the experts of a layer

  int dp() const { return num_ranks / (pp * tp); }
  // One rank of each role: the first of every pipeline stage. And the one that has the role of
  // `rank`. The mesh is [pp, dp, tp].
  std::vector<int> Roles() const;
  int RoleOf(int rank) const { return rank - rank % (dp() * tp); }
};

// The simplest first: one rank, ddp, zero1, zero2, gemini, then hybrid meshes, and with experts
// those of expert parallelism. Tensor parallelism stays within 8 ranks. The micro-batches of a
// pipeline have one sample. `offload`: with optimizer data in the host's memory, where a plugin
// can.
std::vector<Candidate> Candidates(const TrainingSetup& setup, int num_ranks, bool offload = false);

// Why the candidate cannot train this setup; empty: it can. Names all sizes that do not divide.
std::string Misfit(const Candidate& candidate, const TrainingSetup& setup);

// The C++ lines that make the plugin.
std::string CodeOf(const Candidate& candidate, const TrainingSetup& setup);

}  // namespace apogee::plan

#endif  // APOGEE_PLAN_CANDIDATES_H_
