// SPDX-License-Identifier: Apache-2.0

// FedGradients: a workload with made-up gradients. The loss is
//
//   sum over the parameters p of sum(p * G)
//
// where G is random, of full rank and of any scale, a function of (step, sample).
//
//   FedGradients fed;
//   Tensor loss = fed.Loss({model, context, fed.criterion()},
//                          {.step = 2, .first = 4, .count = 4});
//
// The parameters have shapes that break sharding: one row, one column, one element, fewer elements
// than ranks, three and four dims, and one so large that it is cut in the middle of a row. One is
// tied, one is frozen. Some get gradients from no sample, from some samples, or in some steps only.
//
// Every value of G is a small integer times a power of two that depends only on the element's
// position. Means over samples, micro-steps and ranks are therefore exact in f32, however they are
// nested. Runs can then differ only in the optimizer's own arithmetic: even optimizers that take
// signs must agree.
#ifndef APOGEE_MATRIX_MODELS_FED_GRADIENTS_H_
#define APOGEE_MATRIX_MODELS_FED_GRADIENTS_H_

#include <memory>

#include "apogee/matrix/workload.h"

namespace apogee::matrix {

class FedGradients : public Workload {
 public:
  FedGradients();
  ~FedGradients() override;

  std::unique_ptr<nn::Module> MakeModel() const override;
  int64_t num_samples() const override { return 36; }
  // Rows, columns and sections; every way of sharding a tall and a wide matrix; shards of unequal
  // sizes, the last of them empty. Parameters that no rule selects are whole on every rank.
  std::optional<nn::parallel::ParallelPlan> plan() const override;
  Criterion criterion() const override;
  // `trained.model` must come from MakeModel.
  void Prepare(const TrainedModel& trained) const override;
  data::Batch Batch(const ContextPtr& context, const SampleRange& range) const override;
  double max_norm() const override { return 8; }
  int64_t bucket_bytes() const override { return 6000; }
  LowRank low_rank() const override { return {.rank = 4, .update_proj_gap = 5}; }
  bool has_exact_means() const override { return true; }
  bool reads_values() const override { return true; }

 private:
  struct Table;
  class Model;
  std::unique_ptr<const Table> table_;
};

}  // namespace apogee::matrix

#endif  // APOGEE_MATRIX_MODELS_FED_GRADIENTS_H_
