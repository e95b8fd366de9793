// SPDX-License-Identifier: Apache-2.0

// HybridParallelPlugin: tensor, sequence, expert, data and pipeline parallelism and ZeRO together.
// Ranks form a mesh [pp, dp, sp, ep, tp]:
//
//   tp  tensor parallelism: the weights of each layer are sharded over neighbouring ranks
//   sp  sequence parallelism: the tokens of each sequence are sharded over ranks
//   dp  data parallelism: the batch is divided among replicas of the model
//   ep  expert parallelism: the batch is divided, too, and each rank holds some experts of each
//       layer; ep_size divides the data-parallel ranks, data_size() = dp x ep
//   pp  pipeline parallelism: each stage holds some of the layers
//
//   stage  sharded over the dp x sp ranks that hold the same weights
//   1      optimizer states
//   2      optimizer states, gradients
//   3      optimizer states, gradients, parameters (GeminiPlugin)
//
// Example:
//
//   const TrainingOptions training{.precision = Precision::kBf16, .max_norm = 1.0};
//   HybridParallelPlugin plugin(world, training, {.tp_size = 2, .stage = 2});
//   ... a loader of part plugin.data_rank() of plugin.data_size() of each batch ...
//   Booster booster(plugin);
//   auto boosted = booster.boost(model, optimizer, {.criterion = nn::CrossEntropyLoss()});
//   ... the ordinary loop, with boosted.criterion ...
//
// The model's code does not change: a plan (nn/parallel/plan.h) says how its layers are cut. Plans
// of nn::Gpt2, nn::Llama and nn::Mlp are found automatically; other models need options.plan when
// tp_size > 1 or with an sp_mode. The update equals that of one rank with the whole batch, for
// every optimizer: statistics of whole tensors are summed over the parts, with one gradient norm
// and one clip factor. Initial weights are those of one rank for every tp.
//
// If boost gets nn::CrossEntropyLoss and the model's output comes from a vocabulary-parallel layer,
// a model in training mode returns only this rank's columns of the logits. boosted.criterion takes
// them. In evaluation mode, and with other criteria, logits are whole.
//
// Memory. Let N be the number of elements of cut parameters, and R that of all others. Each rank
// takes the bytes that LowLevelZeroPlugin or GeminiPlugin takes for N / tp + R elements on
// n = dp x sp ranks.
//
// Tensor parallelism communicates, per step and besides the gradients:
//
//   forward   an all-reduce of the output of each row-parallel layer and of the embedding table
//   backward  an all-reduce of each input of column-parallel layers and the head; q, k and v share
//             one
//
// Sums of products travel in f32 (f64 for f64) and are rounded once, as one rank rounds its
// products. For a GPT-2 or Llama with L layers of width d that is, per token:
//
//   the embedding table  d numbers in the model's dtype
//   layers and head      (1 + 4 L) d numbers in f32
//   the loss             3 numbers in f32
//
// The first step checks that the ranks of a tp group got the same inputs. It also checks that they
// have the same gradients of parameters that each of them holds whole.
//
// Sequence parallelism (nn/parallel/sequence_parallel.h) cuts sequences inside the model. The model
// takes whole tokens, the criterion whole targets, and all ranks of an sp and tp group load the
// same batch. T, the tokens of a sequence, must be divisible by
//
//   split_gather (Megatron)  tp
//   all_to_all (Ulysses)     sp; a rank's heads and key-value heads must be divisible by sp, too
//   ring_attn (ring)         2 sp
//
// In training under all_to_all and ring_attn, nn::CrossEntropyLoss gets the logits of this rank's
// tokens; otherwise sequences are whole. All ranks of a group have the same loss. The bytes that a
// rank communicates per token of the whole sequence, forward and backward together, with H heads, K
// key-value heads and s bytes an element:
//
//   split_gather  All-gathers and reduce-scatters replace the all-reduces above, with as many bytes
//                 in all. Forward gathers (2 L + 1) d elements of s bytes, and scatters as many
//                 elements of 4 bytes (the table's of s bytes). Backward does the reverse. The
//                 tokens take 8 bytes. Each step has one all-reduce, in f32, of the gradients of
//                 parameters that are not cut.
//   all_to_all    4 L d (1 + K / H) s / sp, and 16 per loss
//   ring_attn     (2 (sp - 1) s + 4 sp) 2 L d K / H / sp sent, as many received, and 16 per loss
//
// Under split_gather, activations between tensor-parallel layers are those of T / tp tokens.
// Parameter::grad() of a parameter that is not cut is this rank's addend of a sum, which step()
// makes. LOMO and AdaLomo at stage 3 are refused.
//
// Pipeline stages. With pp_size p > 1 the model, an nn::Chain, is cut into stages, and
// booster.execute_pipeline replaces forward and backward (docs/pipelines.md). On a stage, N and R
// count only its own pieces; each stage that uses a tied parameter has a copy of it. A stage also
// keeps its pieces' outputs and activations for backward; the schedule tells of how many
// micro-batches (pipeline/schedule.h). Between the two halves of zbv's backward a chunk keeps the
// gradients of its layers' outputs instead of its own output.
//
// Stages communicate, per step of m micro-batches with v chunks a stage:
//
//   activations and their gradients  1f1b: 2 m (p - 1) messages in all
//                                    interleaved: 2 m (p v - 1)
//                                    zbv: 2 m (2 p - 2)
//   the form of a message            88 bytes before the first message of each shape
//   gradients of tied parameters     an all-reduce of the gradient and of its presence (4 bytes)
//   the loss                         32 bytes
//
// Statistics of whole tensors are summed over all ranks, and every rank gets the sums.
#ifndef APOGEE_PLUGINS_HYBRID_PARALLEL_H_
#define APOGEE_PLUGINS_HYBRID_PARALLEL_H_

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "apogee/comm/launch.h"
#include "apogee/comm/mesh.h"
#include "apogee/nn/parallel/plan.h"
#include "apogee/optim/options.h"
#include "apogee/plugins/gemini/placement.h"
#include "apogee/plugins/pipeline/schedule.h"
#include "apogee/plugins/plugin.h"
#include "apogee/plugins/training_options.h"

namespace apogee {

namespace nn::parallel {
class ExpertParallel;
class SequenceParallel;
class TensorParallel;
}  // namespace nn::parallel
namespace pipeline {
class Cut;
}  // namespace pipeline
class GeminiPlugin;

struct HybridParallelOptions {
  int tp_size = 1;
  int pp_size = 1;
  // Sequence parallelism: the number of ranks that share each sequence, and the mode. kAllToAll
  // and kRingAttention need an sp_size above 1; kSplitGather uses the tp group (sp_size 1 or
  // tp_size).
  int sp_size = 1;
  nn::parallel::SequenceMode sp_mode = nn::parallel::SequenceMode::kNone;
  // Expert parallelism: the number of data-parallel ranks over which the experts of each nn::Moe
  // are sharded (nn/parallel/experts/expert_parallel.h). Must divide the experts. ZeRO shards
  // experts over the ranks that hold the same ones.
  int ep_size = 1;
  // 0: every rank of dp keeps all states. 1, 2: as LowLevelZeroOptions::stage. 3: as GeminiPlugin,
  // with its rules for modules and for reading parameters.
  int stage = 0;
  // How the model is cut. Default: the plan that comes with Apogee for this model.
  std::optional<nn::parallel::ParallelPlan> plan = {};
  // As in LowLevelZeroOptions. Fields from here to offload_states need stage 1 or 2.
  std::optional<Precision> communication_dtype = {};
  bool overlap_gather = true;
  bool master_weights = true;
  bool offload_states = false;
  // Stage 3 only: where chunks live, as in GeminiOptions.
  PlacementOptions placement = PlacementOptions();
  // The fields from here on need pp_size > 1. See pipeline/schedule.h.
  pipeline::ScheduleKind schedule = pipeline::ScheduleKind::k1F1B;
  // Parts of the model per stage of the pipeline. 0: 1 for k1F1B, 2 for the others.
  int num_model_chunks = 0;
  // Set exactly one: the number of micro-batches of a batch (fewer if it has fewer samples), or the
  // most samples of a micro-batch.
  int num_microbatches = 0;
  int64_t microbatch_size = 0;
  // How the pieces of the model (nn/chain.h) are cut into parts: see pipeline::CutOptions.
  std::vector<double> piece_costs = {};
  std::vector<int> pieces_per_part = {};
  // All but the plan, which has no text, with those of the placement.
  static std::vector<optim::OptionField<HybridParallelOptions>> Fields();
};

class HybridParallelPlugin : public Plugin {
 public:
  // Throws Error listing every bad option; at stage 3 training.overlap must be true. boost checks
  // whether the world and the model fit, and lists all problems at once.
  explicit HybridParallelPlugin(const comm::World& world, const TrainingOptions& training = {},
                                const HybridParallelOptions& options = {});
  ~HybridParallelPlugin() override;

  std::string name() const override { return "hybrid_parallel"; }
  // Collective. Before anything changes, throws Error that lists every problem: a world size that
  // pp_size, sp_size and tp_size do not divide, a plan that does not fit the model, an optimizer
  // that does not support shards.
  optim::Optimizer& Configure(nn::Module& model, optim::Optimizer& optimizer) override;
  Criterion ConfigureCriterion(Criterion criterion) override;
  // Throws Error when pp_size > 1.
  void Backward(const Tensor& loss, optim::Optimizer& optimizer) override;
  // Throws Error if the first training batch gives fewer micro-batches than there are stages. Later
  // batches may be smaller. Collective over all ranks that train the replica.
  PipelineResult ExecutePipeline(const PipelineCall& call) override;
  // With pp_size > 1 the stages run one after the other, and the last one broadcasts its output.
  Tensor Evaluate(nn::Module& model, const Tensor& inputs) override;
  std::shared_ptr<void> NoSync() override;
  comm::GroupPtr group() const override;
  comm::GroupPtr data_group() const override;
  comm::GroupPtr batch_group() const override;
  Layout LayoutOf(const autograd::Parameter& parameter) const override;
  optim::LossScaler* loss_scaler() override;

  // The part of each batch that this rank trains on; ranks of one sp, tp and pp group have the same
  // part. Throws Error when pp_size, sp_size and tp_size do not divide the world.
  int data_rank() const override;
  int data_size() const override;
  const comm::Mesh& mesh() const;
  // Collective over the tp and pp groups, with stage 3 over the dp and sp groups as well.
  Tensor WholeValue(const autograd::Parameter& parameter) const override;
  // After boost, with tp_size > 1: how the model is cut (nn/parallel/tensor_parallel.h); else null.
  const nn::parallel::TensorParallel* tensor_parallel() const;
  // After boost, with an sp_mode: the tokens this rank has (nn/parallel/sequence_parallel.h); else
  // null.
  const nn::parallel::SequenceParallel* sequence_parallel() const;
  // After boost, with ep_size above 1: the ranks that hold each expert
  // (nn/parallel/experts/expert_parallel.h); else null.
  const nn::parallel::ExpertParallel* expert_parallel() const;
  // With stage 3: the plugin that shards this rank's part of the model over dp x sp
  // (plugins/gemini.h); else null.
  const GeminiPlugin* gemini() const;
  comm::GroupPtr gather_group() const override;
  // After boost, with pp_size > 1: the pieces of each stage (pipeline/cut.h); else null.
  const pipeline::Cut* cut() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace apogee

#endif  // APOGEE_PLUGINS_HYBRID_PARALLEL_H_
