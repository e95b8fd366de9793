#include "apogee/plugins/hybrid_parallel.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <numeric>
#include <utility>
#include <vector>

#include "apogee/plugins/precision.h"
#include "apogee/plugins/replicas.h"

namespace apogee {
namespace {

// Of a tensor's bytes, on from `hash`.
uint64_t Hash(const Tensor& tensor, uint64_t hash) {
  const Tensor whole = tensor.Detach().Contiguous();
  return XXH3_64bits_withSeed(whole.raw(), static_cast<size_t>(whole.bytes()), hash);
}

void Append(std::string& errors, const std::string& problem) { errors += "\n  " + problem; }

void CheckPipeline(const HybridParallelOptions& options, std::string& errors) {
  const int stages = options.pp_size, chunks = options.num_model_chunks;
  const std::string pp_size = "pp_size " + std::to_string(stages);
  if (stages < 1) Append(errors, "pp_size must be at least 1, got " + std::to_string(stages));
  if (stages <= 1) {
    const bool set = options.schedule != "1f1b" || chunks != 0 || options.num_microbatches != 0 ||
                     options.microbatch_size != 0 || !options.piece_costs.empty() ||
                     !options.pieces_per_part.empty();
    if (set) {
      Append(errors,
             "schedule, num_model_chunks, num_microbatches, microbatch_size, piece_costs and "
             "pieces_per_part need pp_size > 1, got " +
                 std::to_string(stages));
    }
    return;
  }
  if (options.zero_stage == 3) {
    Append(errors, "zero_stage 3 would gather every parameter anew for each micro-batch; with " +
                       pp_size + " it must be 0 to 2");
  }
  try {
    const pipeline::ScheduleKind kind = pipeline::ParseSchedule(options.schedule);
    const bool fits = chunks == 0 || (kind == pipeline::ScheduleKind::kOneFOneB      ? chunks == 1
                                      : kind == pipeline::ScheduleKind::kInterleaved ? chunks >= 2
                                                                                     : chunks == 2);
    if (!fits) {
      Append(errors,
             "num_model_chunks must be 1 for schedule 1f1b, 2 or more for interleaved and 2 for "
             "zbv, got " +
                 std::to_string(chunks) + " for " + options.schedule);
    }
  } catch (const Error& error) {
    Append(errors, error.what());
  }
  const int64_t micros = options.num_microbatches, size = options.microbatch_size;
  if (micros < 0 || size < 0 || (micros > 0) == (size > 0)) {
    Append(errors, pp_size + " needs one of num_microbatches and microbatch_size, positive, got " +
                       std::to_string(micros) + " and " + std::to_string(size));
  } else if (micros > 0 && micros < stages) {
    Append(errors, "num_microbatches " + std::to_string(micros) + " is less than " + pp_size +
                       ": some stages would have nothing to do at any time");
  }
}

}  // namespace

HybridParallelPlugin::HybridParallelPlugin(const comm::World& world,
                                           const HybridParallelOptions& options)
    : world_(world),
      options_(options),
      sequence_(options.sp_size, options.sp_mode, options.tp_size) {
  std::string errors;
  if (options.tp_size < 1) {
    Append(errors, "tp_size must be at least 1, got " + std::to_string(options.tp_size));
  }
  CheckPipeline(options, errors);
  sequence_.CheckOptions(errors);
  const int stage = options.zero_stage;
  if (stage < 0 || stage > 3) {
    Append(errors,
           "zero_stage must be 0 (nothing sharded), 1 (states), 2 (gradients too) or 3 (parameters "
           "too), got " +
               std::to_string(stage));
  }
  ParsePrecision(options.precision, errors);
  if (!options.communication_dtype.empty()) ParsePrecision(options.communication_dtype, errors);
  CheckMaxNorm(options.max_norm, errors);
  CheckBucketBytes(options.bucket_bytes, errors);
  const auto needs_stage = [&](bool set, const std::string& name, const char* stages) {
    if (set) {
      Append(errors, name + " needs zero_stage " + stages + ", got " + std::to_string(stage));
    }
  };
  if (stage == 0 || stage == 3) {
    needs_stage(!options.communication_dtype.empty(), "communication_dtype", "1 or 2");
    needs_stage(!options.master_weights, "master_weights = false", "1 or 2");
    needs_stage(options.offload_states, "offload_states", "1 or 2");
  }
  if (stage == 3) {
    needs_stage(!options.overlap_communication, "overlap_communication = false", "0 to 2");
    needs_stage(!options.overlap_gather, "overlap_gather = false", "1 or 2");
    CheckPlacement(options.placement, errors);
  } else {
    needs_stage(options.placement != PlacementOptions{}, "placement", "3");
  }
  APOGEE_CHECK(errors.empty(), "hybrid_parallel plugin: invalid options:", errors);
  if (!WorldProblem().empty()) return;
  const int pp = options.pp_size, sp = sequence_.axis_size(), tp = options.tp_size;
  mesh_ = std::make_unique<comm::Mesh>(
      world, comm::MeshShape{.pp = pp, .dp = world.size() / (pp * sp * tp), .sp = sp, .tp = tp});
  MakeInner();
}

HybridParallelPlugin::~HybridParallelPlugin() {
  for (const autograd::ParameterPtr& parameter : elsewhere_) parameter->set_grad_keeper("");
}

std::string HybridParallelPlugin::WorldProblem() const {
  const int pp = options_.pp_size, sp = sequence_.axis_size(), tp = options_.tp_size;
  if (world_.size() % (pp * sp * tp) == 0) return "";
  std::string sizes = "tp_size " + std::to_string(tp);
  if (sp > 1) sizes += " times sp_size " + std::to_string(sp);
  if (pp > 1) sizes += " times pp_size " + std::to_string(pp);
  return sizes + " does not divide the world of " + std::to_string(world_.size()) + " ranks";
}

pipeline::PipelineShape HybridParallelPlugin::StageShape() const {
  const pipeline::ScheduleKind kind = pipeline::ParseSchedule(options_.schedule);
  const int chunks = kind == pipeline::ScheduleKind::kOneFOneB ? 1 : 2;
  return {.kind = kind,
          .num_stages = options_.pp_size,
          .num_chunks = options_.num_model_chunks > 0 ? options_.num_model_chunks : chunks};
}

void HybridParallelPlugin::MakeInner() {
  // Gradients of parts of a sequence are averaged like those of parts of a batch.
  const comm::GroupPtr dp = mesh_->group({comm::Axis::kDp, comm::Axis::kSp});
  const bool cut = options_.tp_size > 1 || options_.pp_size > 1;
  if (options_.zero_stage == 0) {
    ddp_ = std::make_unique<DdpPlugin>(
        dp, DdpOptions{.precision = options_.precision,
                       .max_norm = options_.max_norm,
                       .bucket_bytes = options_.bucket_bytes,
                       .overlap = options_.overlap_communication,
                       .loss_scaler = options_.loss_scaler,
                       .statistics_group = mesh_->group({comm::Axis::kPp, comm::Axis::kTp})});
    return;
  }
  // Of all ranks that hold parts of one parameter.
  const comm::GroupPtr statistics = cut ? world_.group() : nullptr;
  if (options_.zero_stage == 3) {
    gemini_ = std::make_unique<GeminiPlugin>(dp, GeminiOptions{.placement = options_.placement,
                                                               .precision = options_.precision,
                                                               .max_norm = options_.max_norm,
                                                               .chunk_bytes = options_.bucket_bytes,
                                                               .loss_scaler = options_.loss_scaler,
                                                               .statistics_group = statistics});
    return;
  }
  zero_ = std::make_unique<LowLevelZeroPlugin>(
      dp, LowLevelZeroOptions{.stage = options_.zero_stage,
                              .precision = options_.precision,
                              .max_norm = options_.max_norm,
                              .bucket_bytes = options_.bucket_bytes,
                              .communication_dtype = options_.communication_dtype,
                              .overlap_communication = options_.overlap_communication,
                              .overlap_gather = options_.overlap_gather,
                              .master_weights = options_.master_weights,
                              .offload_states = options_.offload_states,
                              .loss_scaler = options_.loss_scaler,
                              .statistics_group = statistics});
}

Plugin& HybridParallelPlugin::inner() const {
  mesh();  // without one nothing runs
  if (gemini_ != nullptr) return *gemini_;
  if (zero_ != nullptr) return *zero_;
  return *ddp_;
}

const comm::Mesh& HybridParallelPlugin::mesh() const {
  APOGEE_CHECK(mesh_ != nullptr, "hybrid_parallel: ", WorldProblem());
  return *mesh_;
}

double HybridParallelPlugin::loss_scale() const {
  if (gemini_ != nullptr) return gemini_->loss_scale();
  if (zero_ != nullptr) return zero_->loss_scale();
  mesh();  // without one nothing runs
  return ddp_->loss_scale();
}

void HybridParallelPlugin::CheckOptimizer(nn::Module& model, optim::Optimizer& optimizer,
                                          std::string& problems) const {
  const auto check = [&problems](const auto& fn) {
    try {
      fn();
    } catch (const Error& error) {
      Append(problems, error.what());
    }
  };
  const bool cut = options_.tp_size > 1 || options_.pp_size > 1;
  if (cut) check([&] { CheckWhole("hybrid_parallel", model); });
  if (zero_ != nullptr) check([&] { zero_->Check(model, optimizer); });
  if (gemini_ != nullptr) check([&] { gemini_->Check(model, optimizer); });
  if (ddp_ != nullptr) {
    check([&] { ddp_->Check(model, optimizer); });
    if (cut) check([&] { CheckShardable("hybrid_parallel", optimizer); });
  }
  for (const optim::ParamView& view : optimizer.views()) {
    if (!view.sharded()) continue;
    Append(problems, "parameter \"" + view.name() + "\" of optimizer " + optimizer.name() +
                         " is a shard already; an optimizer can be boosted once");
    break;
  }
}

optim::Optimizer& HybridParallelPlugin::Configure(nn::Module& model, optim::Optimizer& optimizer) {
  APOGEE_CHECK(!configured_,
               "hybrid_parallel: the plugin runs another model already; make one plugin per model");
  std::string problems;
  if (const std::string world = WorldProblem(); !world.empty()) Append(problems, world);
  std::optional<nn::parallel::ParallelPlan> plan = options_.plan;
  if (!plan) plan = nn::parallel::ShippedPlan(model);
  if (plan) {
    for (const std::string& problem : nn::parallel::PlanProblems(model, *plan, options_.tp_size)) {
      Append(problems, "plan \"" + plan->name + "\", " + problem);
    }
  } else if (options_.tp_size > 1 || sequence_.is_on()) {
    Append(problems,
           "no plan comes with Apogee for this model (or it contains several models); say in "
           "options.plan how its layers are cut over tp_size " +
               std::to_string(options_.tp_size) + " ranks" +
               (sequence_.is_on() ? ", and where its attention is" : "") + " (nn/parallel/plan.h)");
  }
  if (options_.pp_size > 1) {
    for (const std::string& problem : pipeline::CutProblems(
             model, StageShape(), {options_.piece_costs, options_.pieces_per_part})) {
      Append(problems, problem);
    }
    if (sequence_.is_on() && plan && !plan->sequence_module.empty()) {
      Append(problems, "with pp_size " + std::to_string(options_.pp_size) +
                           " sequences are cut before the model's first piece, but the plan's "
                           "sequence_module is \"" +
                           plan->sequence_module + "\", not the model itself");
    }
  }
  sequence_.AddProblems(model, plan ? &*plan : nullptr, optimizer, options_.zero_stage, problems);
  CheckOptimizer(model, optimizer, problems);
  for (const autograd::ParameterPtr& parameter : model.Parameters()) {
    if ((options_.tp_size == 1 && options_.pp_size == 1) || !parameter->has_grad()) continue;
    Append(problems, "parameter \"" + parameter->name() +
                         "\" has a gradient, which would be lost; call zero_grad before boost");
    break;
  }
  APOGEE_CHECK(problems.empty(), "hybrid_parallel: cannot run this setup:", problems);

  if (plan) sequence_.Prepare(model, *plan, *mesh_);
  std::vector<int64_t> cut_multiples;
  optimizer.ForEachView([&](const optim::ParamView& view, int group) {
    cut_multiples.push_back(optimizer.CutMultiple(view, group));
  });
  if (options_.pp_size > 1) {
    CutModel(model, optimizer);
  } else if (options_.tp_size > 1) {
    SyncReplicas("hybrid_parallel", model, optimizer, world_.group());
  }
  if (options_.tp_size > 1) {
    parallel_ = std::make_unique<nn::parallel::TensorParallel>(
        model, *std::move(plan), mesh_->group(comm::Axis::kTp),
        nn::parallel::TensorParallelOptions{.cut_sequence = sequence_.uses_tp()});
    parallel_->Apply();
  }
  for (size_t i = 0; i < cut_multiples.size(); ++i)
    BindView(optimizer.views()[i], cut_multiples[i]);
  configured_ = true;
  optim::Optimizer& configured = inner().Configure(model, optimizer);
  if (cut_ != nullptr) {
    stage_gradients_ = std::make_unique<pipeline::StageGradients>(
        model, *cut_,
        [this](const std::vector<int>& stages) {
          std::vector<int> ranks;
          for (const int stage : stages) {
            ranks.push_back(
                mesh_->group(comm::Axis::kPp)->world_ranks()[static_cast<size_t>(stage)]);
          }
          return world_.NewGroup(ranks);
        },
        [this](const autograd::Parameter& parameter) {
          return executor_->IsOfOneChunk(parameter);
        });
  }
  sequence_.Attach(model, configured, *mesh_, parallel_.get());
  const bool shares = parallel_ != nullptr || sequence_.is_on() || cut_ != nullptr;
  if (shares) WatchFirstStep(model, configured);
  return configured;
}

void HybridParallelPlugin::CutModel(nn::Module& model, optim::Optimizer& optimizer) {
  auto& chain = dynamic_cast<nn::Chain&>(model);
  const int stage = mesh_->coordinate(comm::Axis::kPp);
  cut_ = std::make_unique<pipeline::Cut>(
      chain, StageShape(), pipeline::CutOptions{options_.piece_costs, options_.pieces_per_part});
  pipeline::ExecutorParts parts{chain, *cut_, StageShape(), mesh_->group(comm::Axis::kPp),
                                world_.lane("compute")};
  if (const auto* sequence = sequence_.parallel(); sequence != nullptr) {
    parts.prepare = [sequence](const Tensor& inputs) { return sequence->SplitInput(inputs); };
    parts.complete = [this, sequence, &model](const Tensor& output, const Tensor& inputs) {
      const bool stays_cut = keeps_tokens_cut_ && model.is_training();
      return stays_cut ? output : sequence->GatherOutput(output, inputs.size(1));
    };
  }
  executor_ = std::make_unique<pipeline::Executor>(parts);
  SyncReplicasButValues("hybrid_parallel", model, optimizer, world_.group());
  std::string errors;
  const DType dtype = ParsePrecision(options_.precision, errors);
  for (const autograd::ParameterPtr& parameter : model.Parameters()) {
    SyncValue(*parameter, world_.group());
    const std::vector<int>& holders = cut_->HoldersOf(*parameter);
    if (std::ranges::find(holders, stage) != holders.end()) continue;
    const std::string where = "it lies on pipeline stage " + std::to_string(holders[0]) +
                              ", this is stage " + std::to_string(stage);
    parameter->GiveAway(
        Tensor::Empty({0}, dtype, parameter->context(), MemoryCategory::kParameter),
        where +
            "; run the model with booster.execute_pipeline, and if a piece here uses the "
            "parameter, list it in nn::Piece::tied");
  }
}

void HybridParallelPlugin::BindView(optim::ParamView& view, int64_t cut_multiple) {
  if (parallel_ == nullptr && cut_ == nullptr) return;
  const autograd::Parameter& parameter = *view.parameter();
  // A whole tensor is cut nowhere; this is a multiple of the size of every block of states.
  constexpr int64_t kNoCut = int64_t{1} << 40;
  const comm::Layout here =
      parallel_ != nullptr
          ? parallel_->LayoutOf(parameter)
          : comm::Layout(parameter.shape(),
                         {.segments = {{0, parameter.shape().numel()}}, .cut_multiple = kNoCut});
  comm::LayoutOptions layout{.segments = {here.segments().begin(), here.segments().end()},
                             .num_replicas = here.num_replicas(),
                             .cut_multiple = here.cut_multiple()};
  if (cut_ != nullptr) {
    layout.num_replicas *= static_cast<int>(cut_->HoldersOf(parameter).size());
  }
  if (!parameter.is_elsewhere()) {
    return view.BindParameter(comm::Layout(here.logical_shape(), std::move(layout)));
  }
  // As on the ranks that hold it, where the data-parallel axis may have cut it further.
  if (zero_ != nullptr) {
    const bool whole = parallel_ == nullptr || parallel_->ShardOf(parameter) == nullptr;
    layout.cut_multiple = whole ? cut_multiple : std::gcd(layout.cut_multiple, cut_multiple);
  }
  layout.segments.clear();
  view.BindShard(parameter.data(), comm::Layout(here.logical_shape(), std::move(layout)));
  elsewhere_.push_back(view.parameter());
  view.parameter()->set_grad_keeper("it lies on another pipeline stage; set the plugin's max_norm");
}

comm::Layout HybridParallelPlugin::LayoutOf(const autograd::Parameter& parameter) const {
  if (parameter.is_elsewhere()) {
    const Shape& shape =
        parallel_ != nullptr ? parallel_->LogicalShape(parameter) : parameter.shape();
    return comm::Layout(shape, comm::LayoutOptions{});
  }
  if (gemini_ == nullptr) {
    return parallel_ != nullptr ? parallel_->LayoutOf(parameter) : comm::Layout(parameter.shape());
  }
  const comm::Layout kept = gemini_->LayoutOf(parameter);
  return parallel_ != nullptr ? parallel_->LayoutOf(parameter).Part(kept) : kept;
}

void HybridParallelPlugin::WatchInputs(const Tensor& inputs) {
  if (watches_) inputs_hash_ = Hash(inputs, inputs_hash_);
}

void HybridParallelPlugin::CheckSameInputs() const {
  // A double holds half of the bits exactly.
  const auto hash = static_cast<double>(inputs_hash_ >> 32);
  const Tensor ends = Tensor::FromVector<double>({hash, -hash}, {2}, world_.context());
  mesh_->group({comm::Axis::kPp, comm::Axis::kSp, comm::Axis::kTp})
      ->AllReduce(ends, comm::ReduceOp::kMax);
  const std::vector<double> all = ends.ToVector<double>();
  APOGEE_CHECK(
      all[0] == -all[1],
      "hybrid_parallel: ranks that share one copy of the model (its pp, sp and tp axes) gave "
      "it different inputs; load the part of each batch that the plugin's data_rank() and "
      "data_size() say, not the world's rank and size");
}

void HybridParallelPlugin::WatchFirstStep(nn::Module& model, optim::Optimizer& optimizer) {
  model.AddPreForwardHook(
      [this, alive = std::weak_ptr<void>(alive_)](nn::Module& root, const Tensor& input) {
        if (!alive.expired() && root.is_training()) WatchInputs(input);
      });
  optimizer.AddPreStepHook([this](optim::Optimizer& stepped) {
    if (!watches_) return;
    CheckSameInputs();
    if (parallel_ == nullptr) {
      watches_ = false;
      return;
    }
    std::vector<const optim::ParamView*> copies;
    for (const optim::ParamView& view : stepped.views()) {
      const bool is_copy = parallel_->ShardOf(*view.parameter()) == nullptr;
      if (is_copy && view.trainable()) copies.push_back(&view);
    }
    const bool checked = CheckSameGradients("hybrid_parallel", copies,
                                            mesh_->group({comm::Axis::kDp, comm::Axis::kSp}),
                                            *mesh_->group(comm::Axis::kTp), world_.context());
    // Gradients that are not finite may be those of some stages only.
    const Tensor again = Tensor::Full({1}, DType::kF32, checked ? 0 : 1, world_.context());
    if (cut_ != nullptr) mesh_->group(comm::Axis::kPp)->AllReduce(again, comm::ReduceOp::kMax);
    watches_ = again.Item() != 0;
  });
}

Tensor HybridParallelPlugin::WholeValue(const autograd::Parameter& parameter) const {
  const auto of_stage = [&] {
    const Tensor part = gemini_ != nullptr ? gemini_->WholeValue(parameter) : parameter.data();
    return parallel_ != nullptr ? parallel_->Whole(parameter, part) : part;
  };
  if (cut_ == nullptr) return of_stage();
  const Tensor whole = parameter.is_elsewhere()
                           ? Tensor::Empty(LayoutOf(parameter).logical_shape(), parameter.dtype(),
                                           parameter.context(), MemoryCategory::kParameter)
                           : of_stage().Clone();
  mesh_->group(comm::Axis::kPp)->Broadcast(whole, cut_->HoldersOf(parameter)[0]);
  return whole;
}

Criterion HybridParallelPlugin::ConfigureCriterion(Criterion criterion) {
  const auto* cross_entropy = criterion.target<nn::CrossEntropyLoss>();
  if (cross_entropy == nullptr) return criterion;
  const int64_t ignore_index = cross_entropy->ignore_index;
  Criterion words = parallel_ != nullptr ? parallel_->KeepLogitsCut(*cross_entropy) : nullptr;
  if (words == nullptr) words = criterion;
  Criterion tokens = sequence_.KeepLogitsCut(words, ignore_index);
  keeps_tokens_cut_ = tokens != nullptr;
  return keeps_tokens_cut_ ? tokens : words;
}

void HybridParallelPlugin::Backward(const Tensor& loss, optim::Optimizer& optimizer) {
  APOGEE_CHECK(
      options_.pp_size == 1, "hybrid_parallel: with pp_size ", options_.pp_size,
      " no rank has a loss to run backward from; call booster.execute_pipeline, which runs "
      "forward and backward");
  inner().Backward(loss, optimizer);
}

int HybridParallelPlugin::NumMicros(int64_t num_samples) const {
  const int64_t wanted =
      options_.num_microbatches > 0
          ? options_.num_microbatches
          : (num_samples + options_.microbatch_size - 1) / options_.microbatch_size;
  return static_cast<int>(std::min(wanted, num_samples));
}

PipelineResult HybridParallelPlugin::ExecutePipeline(const PipelineCall& call) {
  if (cut_ == nullptr) return Plugin::ExecutePipeline(call);
  const bool training = call.optimizer != nullptr;
  const int64_t samples = call.inputs.defined() && call.inputs.rank() > 0 ? call.inputs.size(0) : 0;
  APOGEE_CHECK(samples > 0, "execute_pipeline: the batch has no samples");
  const bool fits =
      call.criterion == nullptr ||
      (call.targets.defined() && call.targets.rank() > 0 && call.targets.size(0) == samples);
  APOGEE_CHECK(fits, "execute_pipeline: inputs have ", samples, " samples, targets ",
               call.targets.defined() ? call.targets.shape().ToString() : "are undefined");
  APOGEE_CHECK(!training || call.criterion != nullptr,
               "execute_pipeline: training needs a criterion");
  const int micros = NumMicros(samples);
  APOGEE_CHECK(!training || has_trained_ || micros >= options_.pp_size,
               "execute_pipeline: ", samples, " samples make ", micros,
               " micro-batches, fewer than the ", options_.pp_size,
               " stages; use larger batches or smaller micro-batches");
  pipeline::ExecutorCall executor_call{
      .inputs = call.inputs,
      .targets = call.targets,
      .criterion = call.criterion,
      .num_micros = micros,
      .first_sample = mesh_->coordinate(comm::Axis::kDp) * samples,
      .return_outputs = call.return_outputs,
      .loss_scale = loss_scale(),
  };
  if (!training) return executor_->Run(executor_call);
  has_trained_ = true;
  WatchInputs(call.inputs);
  BackwardPasses& passes = zero_ != nullptr ? static_cast<BackwardPasses&>(*zero_) : *ddp_;
  executor_call.passes = &passes;
  executor_call.reduce = passes.BeginBackward();
  stage_gradients_->Begin();
  const PipelineResult result = executor_->Run(executor_call);
  stage_gradients_->End(passes, executor_call.reduce);
  return result;
}

std::shared_ptr<void> HybridParallelPlugin::NoSync() { return inner().NoSync(); }

}  // namespace apogee
