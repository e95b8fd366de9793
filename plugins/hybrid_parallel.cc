#include "apogee/plugins/hybrid_parallel.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

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
  const int sp = sequence_.axis_size(), tp = options.tp_size;
  mesh_ = std::make_unique<comm::Mesh>(
      world, comm::MeshShape{.dp = world.size() / (sp * tp), .sp = sp, .tp = tp});
  MakeInner();
}

HybridParallelPlugin::~HybridParallelPlugin() = default;

std::string HybridParallelPlugin::WorldProblem() const {
  const int sp = sequence_.axis_size(), tp = options_.tp_size;
  if (world_.size() % (sp * tp) == 0) return "";
  const std::string sizes = "tp_size " + std::to_string(tp) +
                            (sp > 1 ? " times sp_size " + std::to_string(sp) : std::string());
  return sizes + " does not divide the world of " + std::to_string(world_.size()) + " ranks";
}

void HybridParallelPlugin::MakeInner() {
  // Gradients of parts of a sequence are averaged like those of parts of a batch.
  const comm::GroupPtr dp = mesh_->group({comm::Axis::kDp, comm::Axis::kSp});
  const bool cut = options_.tp_size > 1;
  if (options_.zero_stage == 0) {
    ddp_ = std::make_unique<DdpPlugin>(
        dp, DdpOptions{.precision = options_.precision,
                       .max_norm = options_.max_norm,
                       .bucket_bytes = options_.bucket_bytes,
                       .overlap = options_.overlap_communication,
                       .loss_scaler = options_.loss_scaler,
                       .statistics_group = cut ? mesh_->group(comm::Axis::kTp) : nullptr});
    return;
  }
  // Of all ranks that hold parts of one parameter.
  const comm::GroupPtr statistics =
      cut ? mesh_->group({comm::Axis::kDp, comm::Axis::kSp, comm::Axis::kTp}) : nullptr;
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
  if (options_.tp_size > 1) check([&] { CheckWhole("hybrid_parallel", model); });
  if (zero_ != nullptr) check([&] { zero_->Check(model, optimizer); });
  if (gemini_ != nullptr) check([&] { gemini_->Check(model, optimizer); });
  if (ddp_ != nullptr) {
    check([&] { ddp_->Check(model, optimizer); });
    if (options_.tp_size > 1) check([&] { CheckShardable("hybrid_parallel", optimizer); });
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
  sequence_.AddProblems(model, plan ? &*plan : nullptr, optimizer, options_.zero_stage, problems);
  CheckOptimizer(model, optimizer, problems);
  for (const autograd::ParameterPtr& parameter : model.Parameters()) {
    if (options_.tp_size == 1 || !parameter->has_grad()) continue;
    Append(problems, "parameter \"" + parameter->name() +
                         "\" has a gradient, which would be lost; call zero_grad before boost");
    break;
  }
  APOGEE_CHECK(problems.empty(), "hybrid_parallel: cannot run this setup:", problems);

  if (plan) sequence_.Prepare(model, *plan, *mesh_);
  if (options_.tp_size > 1) {
    SyncReplicas("hybrid_parallel", model, optimizer, world_.group());
    parallel_ = std::make_unique<nn::parallel::TensorParallel>(
        model, *std::move(plan), mesh_->group(comm::Axis::kTp),
        nn::parallel::TensorParallelOptions{.cut_sequence = sequence_.uses_tp()});
    parallel_->Apply();
    for (optim::ParamView& view : optimizer.views()) {
      view.BindParameter(parallel_->LayoutOf(*view.parameter()));
    }
  }
  configured_ = true;
  optim::Optimizer& configured = inner().Configure(model, optimizer);
  sequence_.Attach(model, configured, *mesh_, parallel_.get());
  if (parallel_ != nullptr || sequence_.is_on()) WatchFirstStep(model, configured);
  return configured;
}

comm::Layout HybridParallelPlugin::LayoutOf(const autograd::Parameter& parameter) const {
  if (gemini_ == nullptr) {
    return parallel_ != nullptr ? parallel_->LayoutOf(parameter) : comm::Layout(parameter.shape());
  }
  const comm::Layout kept = gemini_->LayoutOf(parameter);
  return parallel_ != nullptr ? parallel_->LayoutOf(parameter).Part(kept) : kept;
}

void HybridParallelPlugin::WatchFirstStep(nn::Module& model, optim::Optimizer& optimizer) {
  struct Watch {
    bool done = false;
    uint64_t inputs = 0;
  };
  const auto watch = std::make_shared<Watch>();
  model.AddPreForwardHook([watch](nn::Module& root, const Tensor& input) {
    if (!watch->done && root.is_training()) watch->inputs = Hash(input, watch->inputs);
  });
  optimizer.AddPreStepHook([this, watch](optim::Optimizer& stepped) {
    if (watch->done) return;
    comm::Group& group = *mesh_->group({comm::Axis::kSp, comm::Axis::kTp});
    // A double holds half of the bits exactly.
    const auto hash = static_cast<double>(watch->inputs >> 32);
    const Tensor ends = Tensor::FromVector<double>({hash, -hash}, {2}, world_.context());
    group.AllReduce(ends, comm::ReduceOp::kMax);
    const std::vector<double> all = ends.ToVector<double>();
    APOGEE_CHECK(all[0] == -all[1], "hybrid_parallel: ranks of one ",
                 sequence_.axis_size() > 1 ? "sp and " : "",
                 "tp group gave the model different inputs; load the part of each batch that the "
                 "plugin's data_rank() and data_size() say, not the world's rank and size");
    watch->done = parallel_ == nullptr;
    if (watch->done) return;
    std::vector<const optim::ParamView*> copies;
    for (const optim::ParamView& view : stepped.views()) {
      const bool is_copy = parallel_->ShardOf(*view.parameter()) == nullptr;
      if (is_copy && view.trainable()) copies.push_back(&view);
    }
    watch->done = CheckSameGradients("hybrid_parallel", copies,
                                     mesh_->group({comm::Axis::kDp, comm::Axis::kSp}),
                                     *mesh_->group(comm::Axis::kTp), world_.context());
  });
}

Tensor HybridParallelPlugin::WholeValue(const autograd::Parameter& parameter) const {
  const Tensor part = gemini_ != nullptr ? gemini_->WholeValue(parameter) : parameter.data();
  return parallel_ != nullptr ? parallel_->Whole(parameter, part) : part;
}

Criterion HybridParallelPlugin::ConfigureCriterion(Criterion criterion) {
  const auto* cross_entropy = criterion.target<nn::CrossEntropyLoss>();
  if (cross_entropy == nullptr) return criterion;
  const int64_t ignore_index = cross_entropy->ignore_index;
  Criterion words = parallel_ != nullptr ? parallel_->KeepLogitsCut(*cross_entropy) : nullptr;
  if (words == nullptr) words = criterion;
  Criterion tokens = sequence_.KeepLogitsCut(words, ignore_index);
  return tokens != nullptr ? tokens : words;
}

void HybridParallelPlugin::Backward(const Tensor& loss, optim::Optimizer& optimizer) {
  inner().Backward(loss, optimizer);
}

std::shared_ptr<void> HybridParallelPlugin::NoSync() { return inner().NoSync(); }

}  // namespace apogee
