// SPDX-License-Identifier: Apache-2.0

// FedGradients: a workload whose gradients are made, not computed: the loss is the sum over the
// parameters p of sum(p * G), with G random, of full rank and any scale, by (step, sample).
//
//   FedGradients fed;
//   Tensor loss = fed.Loss({model, context, fed.criterion()},
//                          {.step = 2, .first = 4, .count = 4});
//
// The parameters have the shapes that sharding trips over: one row, one column, one element, fewer
// elements than ranks, three and four dims, one large enough to be cut mid-row; one is tied, one is
// frozen, some get gradients from no sample, from some samples, or in some steps only.
//
// Every value of G is a small integer times a power of two that depends on the place alone, so that
// the means over samples, micro-steps and ranks are exact in f32 however they are nested. What is
// left to differ is the optimizer's own arithmetic: even one that takes signs must agree.
#ifndef APOGEE_TOOLS_MATRIX_FED_GRADIENTS_H_
#define APOGEE_TOOLS_MATRIX_FED_GRADIENTS_H_

#include <memory>

#include "apogee/tools/matrix/workload.h"

namespace apogee::tools {

class FedGradients : public Workload {
 public:
  FedGradients();
  ~FedGradients() override;

  std::unique_ptr<nn::Module> MakeModel() const override;
  int64_t num_samples() const override { return 36; }
  // Rows, columns and sections; every way of cutting a tall and a wide matrix; parts of unequal
  // sizes, of which the last is empty. What it does not name every rank holds whole.
  std::optional<nn::parallel::ParallelPlan> plan() const override;
  Criterion criterion() const override;
  // Models of MakeModel only.
  void Prepare(const TrainedModel& trained) const override;
  data::Batch Batch(const ContextPtr& context, const SampleRange& range) const override;
  double max_norm() const override { return 8; }
  int64_t bucket_bytes() const override { return 6000; }
  LowRank low_rank() const override { return {.rank = 4, .update_proj_gap = 5}; }
  bool has_exact_means() const override { return true; }

 private:
  struct Table;
  class Model;
  std::unique_ptr<const Table> table_;
};

}  // namespace apogee::tools

#endif  // APOGEE_TOOLS_MATRIX_FED_GRADIENTS_H_
