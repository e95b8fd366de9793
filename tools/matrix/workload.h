// SPDX-License-Identifier: Apache-2.0

// Workload: what a cell of the matrix trains: a model and the loss of a range of samples. The data
// is a pure function of (step, sample), so that ranks and micro-steps split a batch as they like
// and the plain run sees the same one.
//
//   const Workload& work = FindWorkload("gpt2");
//   std::unique_ptr<nn::Module> model = work.MakeModel();
//   Tensor loss = work.Loss({*model, context, work.criterion()},
//                           {.step = 3, .first = 0, .count = work.num_samples()});
#ifndef APOGEE_TOOLS_MATRIX_WORKLOAD_H_
#define APOGEE_TOOLS_MATRIX_WORKLOAD_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "apogee/data/loader.h"
#include "apogee/nn/module.h"
#include "apogee/nn/parallel/plan.h"
#include "apogee/plugins/plugin.h"

namespace apogee::tools {

inline constexpr int64_t kNumSteps = 20;

// Samples [first, first + count) of the step's batch, after a permutation of the batch (0: as it
// is).
struct SampleRange {
  int64_t step = 0;
  int64_t first = 0;
  int64_t count = 0;
  int permutation = 0;
  // Not 0: targets are ignored, and not as many in every sample; so many samples that follow each
  // other are a micro-batch of all ranks. Some samples have no target that counts, and in some
  // steps neither half of the micro-batch has, so that all of a rank's are ignored.
  int64_t ignoring_window = 0;
};

// Of low-rank optimizers: how many directions of a gradient they keep, and for how many updates.
struct LowRank {
  int64_t rank = 4;
  int64_t update_proj_gap = 5;
};

// This rank's part of `whole`, which has the logical shape of the parameter.
using PartFunction =
    std::function<Tensor(const autograd::Parameter& parameter, const Tensor& whole)>;

// A model as it is trained.
struct TrainedModel {
  nn::Module& model;
  const ContextPtr& context;
  // What boost made of the workload's criterion.
  Criterion criterion = nullptr;
  PartFunction part = nullptr;  // null: all of it
};

class Workload {
 public:
  virtual ~Workload() = default;
  // Not initialised yet.
  virtual std::unique_ptr<nn::Module> MakeModel() const = 0;
  // In a batch: a multiple of 36, so that worlds of 1 to 4 and windows of 1 and 3 divide it.
  virtual int64_t num_samples() const = 0;
  // For boost.
  virtual Criterion criterion() const = 0;
  // How tensor parallelism cuts the model; nothing: as the plan that comes with it says.
  virtual std::optional<nn::parallel::ParallelPlan> plan() const { return std::nullopt; }
  // Once, after boost, of a model of MakeModel.
  virtual void Prepare(const TrainedModel& /*trained*/) const {}
  // What the model and the criterion get for the range's samples.
  virtual data::Batch Batch(const ContextPtr& context, const SampleRange& range) const = 0;
  // The mean over the range's samples, in the model's dtype.
  Tensor Loss(const TrainedModel& trained, const SampleRange& range) const;
  // What "clip" limits the gradient norm to: less than it is in most steps.
  virtual double max_norm() const = 0;
  // Small enough that the model fills several buckets.
  virtual int64_t bucket_bytes() const = 0;
  // Few directions, and rarely new ones, where gradients are noisy: at a refresh, directions of
  // nearly equal weight turn into each other at the slightest rounding.
  virtual LowRank low_rank() const = 0;
  // However the batch is cut, the mean gradient has the same bits. It then has no permutations.
  virtual bool has_exact_means() const = 0;
};

// "fed", "gpt2", "llama"; "gpt2_tied", "gpt2_untied", "llama_tied", "llama_untied" (LmWorkload);
// with enough layers for a pipeline, "gpt2_deep" (tied) and "llama_deep" (untied).
// Throws Error for another name.
const Workload& FindWorkload(const std::string& name);

}  // namespace apogee::tools

#endif  // APOGEE_TOOLS_MATRIX_WORKLOAD_H_
