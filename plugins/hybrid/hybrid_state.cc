// SPDX-License-Identifier: Apache-2.0

#include "apogee/plugins/hybrid/hybrid_state.h"

#include <numeric>
#include <utility>
#include <vector>

#include "apogee/core/text/text.h"
#include "apogee/plugins/ddp.h"
#include "apogee/plugins/gemini.h"
#include "apogee/plugins/hybrid/elsewhere.h"
#include "apogee/plugins/hybrid/exchange_group.h"
#include "apogee/plugins/low_level_zero.h"
#include "apogee/plugins/replicas.h"
#include "apogee/plugins/sharding/engine.h"

namespace apogee {

HybridParallelPlugin::State::State(const comm::World& world, const TrainingOptions& training,
                                   const HybridParallelOptions& options)
    : world_(world),
      training_(training),
      options_(options),
      pipeline_(options_),
      sequence_(options_) {
  std::string errors;
  if (options.tp_size < 1) {
    AddProblem(errors, "tp_size must be at least 1, got ", options.tp_size);
  }
  if (options.ep_size < 1) {
    AddProblem(errors, "ep_size must be at least 1, got ", options.ep_size);
  }
  pipeline_.CheckOptions(errors);
  sequence_.CheckOptions(errors);
  const int stage = options.stage;
  if (stage < 0 || stage > 3) {
    AddProblem(errors,
               "stage must be 0 (nothing sharded), 1 (states), 2 (gradients too) or 3 (parameters "
               "too), got ",
               stage);
  }
  CheckTrainingOptions(training, errors);
  const auto needs_stage = [&](bool set, const char* name, const char* stages) {
    if (set) AddProblem(errors, name, " needs stage ", stages, ", got ", stage);
  };
  if (stage == 0 || stage == 3) {
    needs_stage(options.communication_dtype.has_value(), "communication_dtype", "1 or 2");
    needs_stage(!options.master_weights, "master_weights = false", "1 or 2");
    needs_stage(options.offload_states, "offload_states", "1 or 2");
  }
  if (stage == 3) {
    needs_stage(!training.overlap, "overlap = false", "0 to 2");
    needs_stage(!options.overlap_gather, "overlap_gather = false", "1 or 2");
    CheckPlacement(options.placement, errors);
  } else {
    needs_stage(options.placement != PlacementOptions{}, "placement", "3");
  }
  APOGEE_CHECK(errors.empty(), "hybrid_parallel plugin: invalid options:", errors);
  if (!WorldProblem().empty()) return;
  const int pp = options.pp_size, sp = sequence_.axis_size(), tp = options.tp_size;
  const int ep = options.ep_size;
  mesh_ = std::make_unique<comm::Mesh>(
      world, comm::MeshShape{
                 .pp = pp, .dp = world.size() / (pp * sp * ep * tp), .sp = sp, .ep = ep, .tp = tp});
  MakeInner();
}

std::string HybridParallelPlugin::State::WorldProblem() const {
  const int pp = options_.pp_size, sp = sequence_.axis_size(), tp = options_.tp_size;
  const int ep = options_.ep_size;
  if (world_.size() % (pp * sp * ep * tp) == 0) return "";
  std::string sizes;
  int num_sizes = 0;
  const auto add = [&](const char* name, int size) {
    if (size == 1) return;
    sizes += (num_sizes++ > 0 ? " x " : "") + std::string(name) + " " + std::to_string(size);
  };
  add("pp_size", pp);
  add("sp_size", sp);
  add("ep_size", ep);
  add("tp_size", tp);
  if (num_sizes > 1) sizes += " = " + std::to_string(pp * sp * ep * tp);
  return sizes + " does not divide the world of " + std::to_string(world_.size()) + " ranks";
}

void HybridParallelPlugin::State::MakeInner() {
  // Gradients of parts of a sequence are averaged like gradients of parts of a batch.
  const comm::GroupPtr dp = mesh_->group({comm::Axis::kDp, comm::Axis::kSp, comm::Axis::kEp});
  std::function<int(const autograd::Parameter&)> bucket_key;
  if (pipeline_.is_on()) {
    bucket_key = [this](const autograd::Parameter& p) { return pipeline_.ChunkOf(p); };
  }
  // The ranks that hold parts of one parameter: with shards, all.
  const comm::GroupPtr holders =
      options_.stage == 0 ? mesh_->group({comm::Axis::kPp, comm::Axis::kEp, comm::Axis::kTp})
                          : world_.group();
  CutParameters cut{
      .statistics_group = is_cut() ? holders : nullptr,
      .part_of = [this](const autograd::Parameter& parameter) { return PartOf(parameter); },
      .bucket_key = bucket_key,
      .is_synced = is_cut()};
  if (options_.ep_size > 1) {
    cut.is_expert = [this](const autograd::Parameter& parameter) { return IsExpert(parameter); };
    cut.expert_copies = mesh_->group({comm::Axis::kDp, comm::Axis::kSp});
    cut.expert_statistics = mesh_->group({comm::Axis::kDp, comm::Axis::kSp, comm::Axis::kTp});
  }
  if (options_.stage == 0) {
    inner_ = std::make_unique<DdpPlugin>(dp, training_, DdpOptions{}, cut);
    return;
  }
  if (options_.stage == 3) {
    inner_ = std::make_unique<GeminiPlugin>(dp, training_,
                                            GeminiOptions{.placement = options_.placement}, cut);
    return;
  }
  inner_ = std::make_unique<LowLevelZeroPlugin>(
      dp, training_,
      LowLevelZeroOptions{.stage = options_.stage,
                          .communication_dtype = options_.communication_dtype,
                          .overlap_gather = options_.overlap_gather,
                          .master_weights = options_.master_weights,
                          .offload_states = options_.offload_states},
      cut);
}

DataParallelPlugin& HybridParallelPlugin::State::inner() const {
  mesh();  // without one nothing runs
  return *inner_;
}

const comm::Mesh& HybridParallelPlugin::State::mesh() const {
  APOGEE_CHECK(mesh_ != nullptr, "hybrid_parallel: ", WorldProblem());
  return *mesh_;
}

void HybridParallelPlugin::State::CheckOptimizer(nn::Module& model, optim::Optimizer& optimizer,
                                                 std::string& problems) const {
  const auto check = [&problems](const auto& fn) {
    try {
      fn();
    } catch (const Error& error) {
      AddProblem(problems, error.what());
    }
  };
  if (is_cut()) check([&] { CheckWhole("hybrid_parallel", model); });
  if (inner_ != nullptr) check([&] { inner_->Check(model, optimizer); });
  if (is_cut() && options_.stage == 0) check([&] { CheckShardable("hybrid_parallel", optimizer); });
}

optim::Optimizer& HybridParallelPlugin::State::Configure(nn::Module& model,
                                                         optim::Optimizer& optimizer) {
  APOGEE_CHECK(!configured_,
               "hybrid_parallel: the plugin runs another model already; make one plugin per model");
  std::string problems;
  if (const std::string world = WorldProblem(); !world.empty()) AddProblem(problems, world);
  std::optional<nn::parallel::ParallelPlan> plan = options_.plan;
  if (!plan) plan = nn::parallel::ShippedPlan(model);
  if (plan) {
    for (const std::string& problem : nn::parallel::PlanProblems(model, *plan, options_.tp_size)) {
      AddProblem(problems, "plan \"", plan->name, "\", ", problem);
    }
  } else if (options_.tp_size > 1 || sequence_.is_on()) {
    AddProblem(problems,
               "no plan comes with Apogee for this model (or it contains several models); say in "
               "options.plan how its layers are cut over tp_size ",
               options_.tp_size, " ranks", sequence_.is_on() ? ", and where its attention is" : "",
               " (nn/parallel/plan.h)");
  }
  pipeline_.AddProblems(model, problems);
  if (pipeline_.is_on() && sequence_.is_on() && plan && !plan->sequence_module.empty()) {
    AddProblem(problems, "with pp_size ", pipeline_.size(),
               " sequences are cut before the model's first piece, but the plan's sequence_module "
               "is \"",
               plan->sequence_module, "\", not the model itself");
  }
  sequence_.AddProblems(model, plan ? &*plan : nullptr, optimizer, problems);
  if (options_.ep_size > 1) {
    for (const std::string& problem : nn::parallel::ExpertProblems(model, options_.ep_size)) {
      AddProblem(problems, problem);
    }
  }
  CheckOptimizer(model, optimizer, problems);
  for (const autograd::ParameterPtr& parameter : model.Parameters()) {
    if (!is_cut() || !parameter->has_grad()) continue;
    AddProblem(problems, "parameter \"", parameter->name(),
               "\" has a gradient, which would be lost; call zero_grad before boost");
    break;
  }
  APOGEE_CHECK(problems.empty(), "hybrid_parallel: cannot run this setup:", problems);

  if (plan) sequence_.Prepare(model, *plan, *mesh_);
  const optim::OptimizerTraits traits = optimizer.traits();
  std::vector<int64_t> cut_multiples;
  optimizer.ForEachView([&](const optim::ParamView& view, int group) {
    cut_multiples.push_back(traits.Of(view, group).cut_multiple);
  });
  if (is_cut()) SyncReplicasButValues("hybrid_parallel", model, optimizer, world_.group());
  if (pipeline_.is_on()) CutIntoStages(model);
  if (options_.ep_size > 1) SpreadExperts(model);
  const PrecisionPolicy policy(training_, model);
  const auto take = [&](autograd::Parameter& parameter) { TakeValue(parameter, policy); };
  if (options_.tp_size > 1) {
    parallel_ = std::make_unique<nn::parallel::TensorParallel>(
        model, *std::move(plan), mesh_->group(comm::Axis::kTp),
        nn::parallel::TensorParallelOptions{.cut_sequence = sequence_.uses_tp(),
                                            .keeps_experts = options_.ep_size > 1});
    parallel_->Apply(take);
  } else if (is_cut()) {
    for (const autograd::ParameterPtr& parameter : model.Parameters()) take(*parameter);
  }
  for (size_t i = 0; is_cut() && i < cut_multiples.size(); ++i) {
    optim::ParamView& view = optimizer.views()[i];
    if (!view.parameter()->is_here()) BindElsewhere(view, cut_multiples[i]);
  }
  configured_ = true;
  optim::Optimizer& configured = inner().Configure(model, optimizer);
  if (pipeline_.is_on()) pipeline_.Attach(model, world_);
  sequence_.Attach(model, configured, *mesh_, parallel_.get());
  if (mesh_->group({comm::Axis::kPp, comm::Axis::kSp, comm::Axis::kTp}) != nullptr) {
    watch_ = std::make_unique<FirstStepWatch>("hybrid_parallel", *mesh_, parallel_.get(),
                                              world_.context());
    watch_->Attach(model, configured);
  }
  return configured;
}

int HybridParallelPlugin::State::DataRank() const {
  return mesh().coordinate(comm::Axis::kDp) * mesh().size(comm::Axis::kEp) +
         mesh().coordinate(comm::Axis::kEp);
}

void HybridParallelPlugin::State::SpreadExperts(nn::Module& model) {
  experts_ = std::make_unique<nn::parallel::ExpertParallel>(
      model, ExchangeGroup(*mesh_, comm::Axis::kEp), mesh_->group(comm::Axis::kTp));
  experts_->Apply();
}

// One value after the other, so that no rank needs room for the whole model.
void HybridParallelPlugin::State::TakeValue(autograd::Parameter& parameter,
                                            const PrecisionPolicy& policy) {
  SyncValue(parameter, world_.group());
  if (pipeline_.is_on()) pipeline_.DropElsewhere(parameter, policy.Of(parameter));
  if (experts_ == nullptr || !parameter.is_here()) return;
  const int holder = experts_->HolderOf(parameter), own = experts_->group()->rank();
  if (holder < 0 || holder == own) return;
  DropValue(parameter, policy.Of(parameter),
            internal::Concat("it is an expert's on rank ", holder, " of the ep group, this is ",
                             own, "; tokens are sent there"));
}

void HybridParallelPlugin::State::CutIntoStages(nn::Module& model) {
  pipeline_.Cut(model, world_, *mesh_);
  const nn::parallel::SequenceParallel* sequence = sequence_.parallel();
  if (sequence == nullptr) return;
  pipeline_.set_ends([sequence](const Tensor& inputs) { return sequence->SplitInput(inputs); },
                     [this, sequence, &model](const Tensor& output, const Tensor& inputs) {
                       const bool stays_cut = keeps_tokens_cut_ && model.is_training();
                       return stays_cut ? sequence->KeepOutputCut(output)
                                        : sequence->GatherOutput(output, inputs.size(1));
                     });
}

Layout HybridParallelPlugin::State::PartOf(const autograd::Parameter& parameter) const {
  // A whole tensor is cut nowhere. This is a multiple of every size of a block of states.
  constexpr int64_t kNoCut = int64_t{1} << 40;
  const Layout here = parallel_ != nullptr
                          ? parallel_->LayoutOf(parameter)
                          : Layout(parameter.shape(), {.segments = {{0, parameter.shape().numel()}},
                                                       .cut_multiple = kNoCut});
  // At stage 0 the ranks of ep sum statistics, and each has a copy of what is no expert.
  const int copies = options_.stage == 0 && !IsExpert(parameter) ? options_.ep_size : 1;
  return Layout(here.logical_shape(),
                {.segments = {here.segments().begin(), here.segments().end()},
                 .num_replicas = here.num_replicas() * pipeline_.NumHolders(parameter) * copies,
                 .cut_multiple = here.cut_multiple()});
}

void HybridParallelPlugin::State::BindElsewhere(optim::ParamView& view, int64_t cut_multiple) {
  const autograd::Parameter& parameter = *view.parameter();
  const Layout part = PartOf(parameter);
  LayoutOptions layout{
      .segments = {}, .num_replicas = part.num_replicas(), .cut_multiple = part.cut_multiple()};
  // As on the ranks that hold the parameter; there the data-parallel axis may have cut it further.
  if (options_.stage > 0) {
    const bool whole = parallel_ == nullptr || parallel_->ShardOf(parameter) == nullptr;
    layout.cut_multiple = whole ? cut_multiple : std::gcd(layout.cut_multiple, cut_multiple);
  }
  pipeline_.BindEmpty(view, std::move(layout), part.logical_shape());
}

Layout HybridParallelPlugin::State::LayoutOf(const autograd::Parameter& parameter) const {
  if (!parameter.is_here()) {
    const Shape& shape =
        parallel_ != nullptr ? parallel_->LogicalShape(parameter) : parameter.shape();
    return Layout(shape, LayoutOptions{});
  }
  const Layout kept = inner().LayoutOf(parameter);
  if (parallel_ == nullptr) return kept;
  const Layout part = parallel_->LayoutOf(parameter);
  return options_.stage == 3 ? part.Part(kept) : part;
}

Tensor HybridParallelPlugin::State::WholeValue(const autograd::Parameter& parameter) const {
  if (!IsExpert(parameter)) return WholeOfStages(parameter);
  const comm::GroupPtr& ep = experts_->group();
  const int holder = experts_->HolderOf(parameter);
  const Tensor whole = ep->rank() == holder
                           ? WholeOfStages(parameter).Clone()
                           : Tensor::Empty(LayoutOf(parameter).logical_shape(), parameter.dtype(),
                                           parameter.context(), MemoryCategory::kParameter);
  ep->Broadcast(whole, holder);
  return whole;
}

Tensor HybridParallelPlugin::State::WholeOfStages(const autograd::Parameter& parameter) const {
  const auto of_stage = [&] {
    const Tensor part = inner().WholeValue(parameter);
    return parallel_ != nullptr ? parallel_->Whole(parameter, part) : part;
  };
  if (!pipeline_.is_on()) return of_stage();
  return pipeline_.Whole(parameter, LayoutOf(parameter).logical_shape(), of_stage);
}

Criterion HybridParallelPlugin::State::ConfigureCriterion(Criterion criterion) {
  const auto* cross_entropy = criterion.target<nn::CrossEntropyLoss>();
  if (cross_entropy == nullptr) return criterion;
  const int64_t ignore_index = cross_entropy->ignore_index;
  Criterion words = parallel_ != nullptr ? parallel_->KeepLogitsCut(*cross_entropy) : nullptr;
  if (words == nullptr) words = criterion;
  Criterion tokens = sequence_.KeepLogitsCut(words, ignore_index);
  keeps_tokens_cut_ = tokens != nullptr;
  return keeps_tokens_cut_ ? tokens : words;
}

void HybridParallelPlugin::State::Backward(const Tensor& loss, optim::Optimizer& optimizer) {
  APOGEE_CHECK(
      !pipeline_.is_on(), "hybrid_parallel: with pp_size ", pipeline_.size(),
      " no rank has a loss to run backward from; call booster.execute_pipeline, which runs "
      "forward and backward");
  inner().Backward(loss, optimizer);
}

PipelineResult HybridParallelPlugin::State::ExecutePipeline(const PipelineCall& call) {
  // Batches of different sizes would otherwise fail later, somewhere in the pipeline.
  if (call.optimizer != nullptr && call.inputs.defined()) watch_->Check(call.inputs, call.starts);
  const int64_t samples = call.inputs.defined() && call.inputs.rank() > 0 ? call.inputs.size(0) : 0;
  return pipeline_.Run(call, inner().engine(),
                       {.loss_scale = inner().loss_scale(), .first_sample = DataRank() * samples});
}

}  // namespace apogee
