// SPDX-License-Identifier: Apache-2.0

// PlanMatch: the modules and parameters that the rules of a plan select, and how tp ranks shard
// them.
//
//   PlanMatch match(model, plan, /*tp=*/2);
//   if (match.problems.empty()) ... match.modules, match.shards ...
//
// `problems` has one line per mistake; without mistakes it is empty.
#ifndef APOGEE_NN_PARALLEL_PLAN_MATCH_H_
#define APOGEE_NN_PARALLEL_PLAN_MATCH_H_

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "apogee/nn/convolution.h"
#include "apogee/nn/parallel/plan.h"
#include "apogee/nn/parallel/shard.h"
#include "apogee/nn/recurrent.h"

namespace apogee::nn::parallel {

class PlanMatch {
 public:
  // `plan` must outlive the match.
  PlanMatch(Module& model, const ParallelPlan& plan, int tp);

  std::vector<std::string> problems;
  std::vector<std::pair<Module*, const PlanRule*>> modules;
  std::map<const autograd::Parameter*, TensorShard> shards;
  Linear* output = nullptr;  // of plan.output_module

 private:
  void MatchModules(Module& model, const PlanRule& rule);
  void MatchParameters(Module& model, const PlanRule& rule);
  void Add(const std::string& name, Module& module, const PlanRule& rule);
  void AddRecurrent(const std::string& name, const Recurrent& module, const PlanRule& rule);
  void AddConvolution(const std::string& name, const Convolution& conv, const PlanRule& rule);
  void Cut(const autograd::ParameterPtr& parameter, const TensorShard& shard, const PlanRule& rule);
  void CutFactors(const Linear& linear, const TensorShard& shard, const PlanRule& rule);
  void CheckUnits(const PlanRule& rule);
  void CheckSectionUnits(const PlanRule& rule);
  void CheckShared(Module& model);
  void Problem(const PlanRule& rule, const std::string& what);

  const int tp_;
  std::map<const Module*, const PlanRule*> rule_of_;
  std::map<const autograd::Parameter*, const PlanRule*> cut_by_;
};

}  // namespace apogee::nn::parallel

#endif  // APOGEE_NN_PARALLEL_PLAN_MATCH_H_
