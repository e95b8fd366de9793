// SPDX-License-Identifier: Apache-2.0

// Workload: the model that a cell of the matrix trains, and the loss of a range of samples. The
// data is a pure function of (step, sample): ranks and micro-steps can divide a batch in any way,
// and the plain run sees the same batch.
//
//   const Workload& work = LibraryCatalog().FindWorkload("gpt2");
//   std::unique_ptr<nn::Module> model = work.MakeModel();
//   Tensor loss = work.Loss({*model, context, work.criterion()},
//                           {.step = 3, .first = 0, .count = work.num_samples()});
#ifndef APOGEE_MATRIX_WORKLOAD_H_
#define APOGEE_MATRIX_WORKLOAD_H_

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

namespace apogee::matrix {

inline constexpr int64_t kNumSteps = 20;

// Samples [first, first + count) of the step's batch, after a permutation of the batch (0: none).
struct SampleRange {
  int64_t step = 0;
  int64_t first = 0;
  int64_t count = 0;
  int permutation = 0;
  // If not 0, targets are ignored, and `ignoring_window` consecutive samples are one micro-batch of
  // all ranks. The number of ignored targets varies: some samples have no target left, and in some
  // steps one half of the micro-batch has none, so that all targets of a rank are ignored.
  int64_t ignoring_window = 0;
};

// For low-rank optimizers: the number of directions of a gradient that they keep, and the number of
// updates that they keep them for.
struct LowRank {
  int64_t rank = 4;
  int64_t update_proj_gap = 5;
};

// This rank's shard of `whole`, a tensor of the parameter's logical shape.
using PartFunction =
    std::function<Tensor(const autograd::Parameter& parameter, const Tensor& whole)>;

// A model in training.
struct TrainedModel {
  nn::Module& model;
  const ContextPtr& context;
  // The criterion that boost returned for the workload's criterion.
  Criterion criterion = nullptr;
  PartFunction part = nullptr;  // null: everything
};

class Workload {
 public:
  virtual ~Workload() = default;
  // Makes the model; the caller initialises it.
  virtual std::unique_ptr<nn::Module> MakeModel() const = 0;
  // The model of the one-rank run, with the same parameters: without an option that must not change
  // what is computed.
  virtual std::unique_ptr<nn::Module> MakePlainModel() const { return MakeModel(); }
  // The samples of a batch: a multiple of 36, so that worlds of 1 to 4 and windows of 1 and 3
  // divide it.
  virtual int64_t num_samples() const = 0;
  // The criterion to give to boost.
  virtual Criterion criterion() const = 0;
  // The tensor-parallel plan; nothing: the model's own plan.
  virtual std::optional<nn::parallel::ParallelPlan> plan() const { return std::nullopt; }
  // Called once, after boost, with a model of MakeModel.
  virtual void Prepare(const TrainedModel& /*trained*/) const {}
  // The inputs and targets of the range's samples.
  virtual data::Batch Batch(const ContextPtr& context, const SampleRange& range) const = 0;
  // What is added to the criterion's loss after a forward; null: nothing.
  virtual apogee::Auxiliary Auxiliary() const { return nullptr; }
  // The mean over the range's samples, in the model's dtype.
  Tensor Loss(const TrainedModel& trained, const SampleRange& range) const;
  // The gradient norm limit of "clip" cells: below the norm in most steps.
  virtual double max_norm() const = 0;
  // Small enough that the model fills several buckets.
  virtual int64_t bucket_bytes() const = 0;
  // With noisy gradients: few directions, rarely refreshed. At a refresh, directions of nearly
  // equal weight can swap after the slightest rounding.
  virtual LowRank low_rank() const = 0;
  // The same for cells that ignore targets.
  virtual LowRank low_rank_of_few_targets() const { return low_rank(); }
  // True if the mean gradient has the same bits however the batch is divided. The batch then has no
  // permutations.
  virtual bool has_exact_means() const = 0;
  // True if the loss of a micro-batch is not the mean of its samples' own losses (batch norm). The
  // one-rank run then cuts a batch into the same micro-batches as the boosted run.
  virtual bool mixes_samples() const { return false; }
  // True if the model reads values of its inputs on the host: a dry run cannot price it.
  virtual bool reads_values() const { return false; }
  // Whether there are cells in f64 only.
  virtual bool is_f64_only() const { return false; }
};

}  // namespace apogee::matrix

#endif  // APOGEE_MATRIX_WORKLOAD_H_
