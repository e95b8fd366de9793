// SPDX-License-Identifier: Apache-2.0

// HybridParallelPlugin: tensor, sequence, data and pipeline parallelism and ZeRO together. Ranks
// form a mesh [pp, dp, sp, tp]: the tp ranks next to each other share every layer (nn/parallel),
// the sp ranks that have the same layers share every sequence, the dp copies of these share the
// batch, and the pp stages the layers; dp x sp share the optimizer states (zero_stage 1), gradients
// (2) and parameters (3: GeminiPlugin, of what tensor parallelism leaves this rank).
//
//   HybridParallelPlugin plugin(world, {.tp_size = 2, .zero_stage = 2, .precision = "bf16"});
//   ... a loader of part plugin.data_rank() of plugin.data_size() of each batch ...
//   Booster booster(plugin);
//   auto boosted = booster.boost(model, optimizer, nn::CrossEntropyLoss());
//   ... the ordinary loop, with boosted.criterion ...
//
// The model stays as it was written: a plan (nn/parallel/plan.h) says how its layers are cut. Plans
// of nn::Gpt2, nn::Llama and nn::Mlp are found; other models need options.plan when tp_size > 1.
// The update is that of one rank with the whole batch, for every optimizer: statistics of whole
// tensors are summed over the parts, there is one gradient norm and one clip factor. Weights start
// as on one rank, whatever tp is.
//
// When boost gets nn::CrossEntropyLoss and the model's output is a vocabulary-parallel layer's, the
// logits of a model in training mode are this rank's columns; boosted.criterion knows. In
// evaluation mode, and with other criteria, they are whole.
//
// Bytes per rank, N elements in cut parameters, R in the others, otherwise as LowLevelZeroPlugin's
// or GeminiPlugin's with n = dp: (N / tp + R) takes the place of N. Communicated per step beside
// the gradients: an all-reduce of each row-parallel layer's output and of the table's in forward,
// and in backward one of each input that column-parallel layers and the head take (q, k and v share
// theirs). Sums of products travel in f32 (f64 for f64) and are rounded once, as one rank rounds
// its products: per token of a GPT-2 or Llama with L layers of width d, (1 + 4 L) d numbers, d of
// the table in the model's dtype, and 3 of the loss. (A table is a row-parallel layer, logits are a
// column-parallel one.) The first step checks that ranks of a tp group got the same inputs, and
// have the same gradients of what they all hold whole.
//
// Sequence parallelism (nn/parallel/sequence_parallel.h) cuts sequences by itself: the model takes
// whole tokens, the criterion whole targets, and all ranks of an sp and tp group load the same
// batch. T must divide by sp (tp for split_gather, 2 sp for ring_attn), and under all_to_all a
// rank's heads and key-value heads, too. In training the logits that nn::CrossEntropyLoss gets are
// this rank's tokens under all_to_all and ring_attn; otherwise sequences are whole. Losses are the
// same on all ranks of a group. Bytes per rank and token of the whole sequence, K key-value heads
// of H, s bytes an element, forward and backward together:
//   split_gather  in place of the all-reduces above gathers and scatters of as many bytes: forward
//                 (2 L + 1) d all-gathered in s and scattered in 4 (the table's in s), backward
//                 the other way round; 8 for the tokens. Per step one all-reduce, in f32, of the
//                 parameters that are not cut. Activations between cut layers are T / tp.
//   all_to_all    4 L d (1 + K / H) s / sp; 16 per loss.
//   ring_attn     (2 (sp - 1) s + 4 sp) 2 L d K / H / sp, sent, and received; 16 per loss.
// Under split_gather Parameter::grad() of what is not cut is this rank's addend of a sum that
// step() makes; LOMO and AdaLomo are refused there at zero_stage 3.
//
// With pp_size p > 1 the model, an nn::Chain, is cut into stages, and booster.execute_pipeline
// takes the place of forward and backward (docs/pipelines.md). A stage holds N and R of its own
// pieces, a tied parameter on each stage that uses it. Of m micro-batches it keeps what its pieces
// save for backward, and what they put out, of as many as the schedule says (pipeline/schedule.h);
// between the halves of zbv's backward a chunk keeps the gradients of its layers' outputs as well,
// instead of what it put out. Communicated per step between stages: a micro-batch's activations and
// their gradient, 2 m (p - 1) messages in all for 1f1b, 2 m (p v - 1) for interleaved with v
// chunks, 2 m (2 p - 2) for zbv, and 88 bytes before the first of each shape; all-reduces of a tied
// parameter's gradient and, 4 bytes, presence; 32 bytes that carry the loss. Statistics of whole
// tensors are summed over all ranks, and lie on each.
#ifndef APOGEE_PLUGINS_HYBRID_PARALLEL_H_
#define APOGEE_PLUGINS_HYBRID_PARALLEL_H_

#include <memory>
#include <optional>
#include <string>

#include "apogee/comm/mesh.h"
#include "apogee/nn/parallel/tensor_parallel.h"
#include "apogee/plugins/ddp.h"
#include "apogee/plugins/first_step_watch.h"
#include "apogee/plugins/gemini.h"
#include "apogee/plugins/hybrid_pipeline.h"
#include "apogee/plugins/hybrid_sequence.h"
#include "apogee/plugins/low_level_zero.h"

namespace apogee {

struct HybridParallelOptions {
  int tp_size = 1;
  int pp_size = 1;
  // Ranks that share each sequence, and how: "all_to_all" or "ring_attn" with an sp_size above 1,
  // or "split_gather", which uses the tp group (sp_size 1 or tp_size).
  int sp_size = 1;
  std::string sp_mode = "";
  // 0: every rank of dp keeps all states. 1, 2: as LowLevelZeroOptions::stage. 3: as GeminiPlugin,
  // whose rules for modules and for reading parameters then hold.
  int zero_stage = 0;
  // "f32", "bf16" or "fp16" (fp32 masters and gradients; fp16 with a dynamic loss scale), "f64".
  std::string precision = "f32";
  double max_norm = 0;
  // How the model is cut; by default the shipped plan of the model.
  std::optional<nn::parallel::ParallelPlan> plan = {};
  // As in DdpOptions and LowLevelZeroOptions; stages 1 and 2 only from communication_dtype on. At
  // stage 3 bucket_bytes is GeminiOptions::chunk_bytes, and overlap_communication stays true.
  int64_t bucket_bytes = 25 << 20;
  bool overlap_communication = true;
  optim::LossScalerOptions loss_scaler = {};
  std::string communication_dtype = "";
  bool overlap_gather = true;
  bool master_weights = true;
  bool offload_states = false;
  // Stage 3 only: where its chunks live, as in GeminiOptions.
  PlacementOptions placement = {};
  // What follows needs pp_size > 1. "1f1b", "interleaved" or "zbv": see pipeline/schedule.h.
  std::string schedule = "1f1b";
  // Parts of the model that each stage has. 0: 1 for 1f1b, 2 for the others.
  int num_model_chunks = 0;
  // A batch becomes so many micro-batches (fewer if it has fewer samples), or ones of at most so
  // many samples: exactly one of the two.
  int num_microbatches = 0;
  int64_t microbatch_size = 0;
  // How the pieces of the model (nn/chain.h) are cut into parts: see pipeline::CutOptions.
  std::vector<double> piece_costs = {};
  std::vector<int> pieces_per_part = {};
};

class HybridParallelPlugin : public Plugin {
 public:
  // Throws Error listing every bad option. Whether the world and the model fit is checked in boost,
  // in one list.
  explicit HybridParallelPlugin(const comm::World& world,
                                const HybridParallelOptions& options = {});
  ~HybridParallelPlugin() override;

  std::string name() const override { return "hybrid_parallel"; }
  // Collective. Throws Error, before anything has changed, that lists every problem: a world that
  // tp_size does not divide, a plan that does not fit the model, an optimizer that does not support
  // shards.
  optim::Optimizer& Configure(nn::Module& model, optim::Optimizer& optimizer) override;
  Criterion ConfigureCriterion(Criterion criterion) override;
  // Throws Error when pp_size > 1.
  void Backward(const Tensor& loss, optim::Optimizer& optimizer) override;
  // Throws Error for a first batch that gives fewer micro-batches than there are stages. Later ones
  // may be shorter.
  PipelineResult ExecutePipeline(const PipelineCall& call) override;
  std::shared_ptr<void> NoSync() override;
  comm::GroupPtr group() const override { return world_.group(); }
  comm::GroupPtr data_group() const override { return mesh().group(comm::Axis::kDp); }
  comm::Layout LayoutOf(const autograd::Parameter& parameter) const override;
  optim::LossScaler* loss_scaler() override { return inner().loss_scaler(); }

  // Which part of each batch this rank trains on: ranks of one sp and tp group have the same.
  // Throws Error when tp_size times sp_size does not divide the world.
  int data_rank() const { return mesh().coordinate(comm::Axis::kDp); }
  int data_size() const { return mesh().size(comm::Axis::kDp); }
  const comm::Mesh& mesh() const;
  double loss_scale() const;
  // The value of one of the model's parameters as the model had it before boost, whole. Collective
  // over the tp and pp groups, with zero_stage 3 over the dp group as well.
  Tensor WholeValue(const autograd::Parameter& parameter) const;
  // After boost, of tp_size > 1: how the model is cut; else null.
  const nn::parallel::TensorParallel* tensor_parallel() const { return parallel_.get(); }
  // After boost, with an sp_mode: which tokens this rank has; else null.
  const nn::parallel::SequenceParallel* sequence_parallel() const { return sequence_.parallel(); }
  // Of zero_stage 3: what shards this rank's part of the model over dp; else null.
  const GeminiPlugin* gemini() const { return gemini_.get(); }
  // After boost, of pp_size > 1: which stage has which piece; else null.
  const pipeline::Cut* cut() const { return pipeline_.cut(); }

 private:
  std::string WorldProblem() const;
  void MakeInner();
  // Whether ranks hold parts of a model.
  bool is_cut() const { return options_.tp_size > 1 || pipeline_.is_on(); }
  void CutIntoStages(nn::Module& model, optim::Optimizer& optimizer);
  // Tells a view what this rank has of its parameter, beside what the data-parallel axis cuts.
  void BindView(optim::ParamView& view, int64_t cut_multiple);
  // What runs the data-parallel axis. Throws Error when the world does not fit.
  Plugin& inner() const;
  void CheckOptimizer(nn::Module& model, optim::Optimizer& optimizer, std::string& problems) const;

  const comm::World& world_;
  HybridParallelOptions options_;
  std::unique_ptr<comm::Mesh> mesh_;  // null when the world does not fit
  std::unique_ptr<nn::parallel::TensorParallel> parallel_;
  HybridPipeline pipeline_;
  HybridSequence sequence_;
  std::unique_ptr<FirstStepWatch> watch_;  // of a model that ranks share
  // One of the three runs the data-parallel axis.
  std::unique_ptr<DdpPlugin> ddp_;
  std::unique_ptr<LowLevelZeroPlugin> zero_;
  std::unique_ptr<GeminiPlugin> gemini_;
  bool keeps_tokens_cut_ = false;  // the criterion takes this rank's tokens
  bool configured_ = false;
};

}  // namespace apogee

#endif  // APOGEE_PLUGINS_HYBRID_PARALLEL_H_
