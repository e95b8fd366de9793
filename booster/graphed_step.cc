// SPDX-License-Identifier: Apache-2.0

#include "apogee/booster/graphed_step.h"

#include <algorithm>
#include <bit>
#include <optional>
#include <utility>

#include "apogee/autograd/documents.h"
#include "apogee/autograd/functions/arithmetic.h"
#include "apogee/autograd/grad_mode.h"
#include "apogee/nn/layers.h"
#include "apogee/optim/step/step_in_graph.h"
#include "apogee/tensor/cuda/cuda_graph.h"
#include "apogee/tensor/cuda/cuda_graph_call.h"

namespace apogee {
namespace {

// A tensor's address; 0 if it is absent.
int64_t PlaceOf(const Tensor& tensor) {
  return tensor.defined() ? std::bit_cast<int64_t>(tensor.raw()) : 0;
}

void AddShape(const Tensor& tensor, std::vector<int64_t>& key) {
  key.push_back(static_cast<int64_t>(tensor.dtype()));
  key.push_back(tensor.rank());
  for (int i = 0; i < tensor.rank(); ++i) key.push_back(tensor.size(i));
}

// Decisions about indices (whether a graph accepts the batch, and its checks) are made on the host,
// so read them once.
Tensor OnHostIfIndices(const Tensor& tensor) {
  return tensor.dtype() == DType::kI64 ? tensor.Detach().ToHost() : tensor.Detach();
}

}  // namespace

struct GraphedMicroStep::Case {
  std::vector<int64_t> kind;                // the case that a first eager run prepares
  std::vector<int64_t> weights, gradients;  // their addresses
  double factor;
  bool operator==(const Case&) const = default;
};

// Holds handles on everything that the graph reads and writes outside its own memory, so that no
// address is reused for another tensor.
struct GraphedMicroStep::Graph {
  Case of;
  std::vector<Tensor> weights, present;
  std::vector<Tensor> written;  // by parameter: its gradient if it was absent, else undefined
  Tensor loss;
  std::optional<CudaGraph> graph;
};

GraphedMicroStep::GraphedMicroStep(Booster& booster, nn::Module& model, Criterion criterion,
                                   optim::Optimizer& optimizer,
                                   const GraphedMicroStepOptions& options)
    : booster_(booster),
      model_(model),
      criterion_(std::move(criterion)),
      optimizer_(optimizer),
      options_(options),
      parameters_(model.Parameters()) {
  APOGEE_CHECK(criterion_ != nullptr, "GraphedMicroStep: needs a criterion");
  APOGEE_CHECK(options.max_graphs >= 1, "GraphedMicroStep: max_graphs must be at least 1, got ",
               options.max_graphs);
  APOGEE_CHECK(!parameters_.empty() && parameters_[0]->has_value(),
               "GraphedMicroStep: the model has no parameters with values; call "
               "model.Initialize(context) and boost first");
  context_ = parameters_[0]->context();
  APOGEE_CHECK(context_->device().type == DeviceType::kCuda, "GraphedMicroStep: the model is on ",
               context_->device().ToString(),
               ", which has no graphs; run the micro-batch eagerly there");
  APOGEE_CHECK(booster.plugin().backward_is_only_kernels(), "GraphedMicroStep: the plugin is ",
               booster.plugin().name(),
               ", whose backward does more than kernels (collectives, hooks, a loss scale); use "
               "SingleRankPlugin or run the micro-batch eagerly");
  APOGEE_CHECK(
      !optimizer.traits().fused_backward, "GraphedMicroStep: the optimizer ", optimizer.name(),
      " updates parameters inside backward, and a graph would replay that with the learning "
      "rate and step count of its capture; run the micro-batch eagerly");
  CheckSetup();
}

GraphedMicroStep::~GraphedMicroStep() = default;

void GraphedMicroStep::CheckSetup() const {
  APOGEE_CHECK(autograd::GradModeEnabled(),
               "GraphedMicroStep: gradients are switched off here (NoGradGuard)");
  APOGEE_CHECK(
      autograd::CurrentDocuments() == nullptr,
      "GraphedMicroStep: a DocumentsGuard is in force, and a replay would use the documents "
      "of the batch that was captured; run packed documents eagerly");
  // Makes names only for messages, because this runs every time.
  const auto name_of = [this](const nn::Module* module) {
    for (const auto& [name, each] : model_.NamedModules()) {
      if (each == module) return name;
    }
    return std::string();
  };
  for (const nn::Module* module : model_.Modules()) {
    APOGEE_CHECK(!module->has_hooks(), "GraphedMicroStep: the module \"", name_of(module),
                 "\" has hooks (a trace sets some), which a replay would not call; remove them or "
                 "run the micro-batch eagerly");
    const auto* dropout = dynamic_cast<const nn::Dropout*>(module);
    APOGEE_CHECK(
        dropout == nullptr || dropout->p() == 0 || !dropout->is_training(),
        "GraphedMicroStep: the module \"", name_of(module),
        "\" drops elements at random, and a replay would drop the same ones again; set p = 0 or "
        "run the micro-batch eagerly");
  }
  for (const autograd::ParameterPtr& parameter : parameters_) {
    APOGEE_CHECK(!parameter->has_grad_hooks() && parameter->grad_place() == nullptr,
                 "GraphedMicroStep: the parameter \"", parameter->name(),
                 "\" has hooks on its gradient, which a replay would not call; remove them or run "
                 "the micro-batch eagerly");
    APOGEE_CHECK(!parameter->is_part() && parameter->context() == context_,
                 "GraphedMicroStep: the parameter \"", parameter->name(),
                 "\" is not whole on the model's GPU");
  }
}

void GraphedMicroStep::Step() {
  optim::CheckStepInGraph(optimizer_);
  // The first one makes states and tables, which last longer than a step.
  if (!std::exchange(has_stepped_, true)) {
    optimizer_.step();
    return;
  }
  if (step_ == nullptr) step_ = std::make_unique<CudaGraphCall>(context_);
  step_->Run([this] { optimizer_.step(); });
}

int64_t GraphedMicroStep::num_step_graphs_made() const {
  return step_ == nullptr ? 0 : step_->num_made();
}
int64_t GraphedMicroStep::num_step_graphs_reused() const {
  return step_ == nullptr ? 0 : step_->num_updated();
}

GraphedMicroStep::Case GraphedMicroStep::CaseOf(const data::Batch& batch, double factor) const {
  Case of{.kind = {model_.is_training()}, .weights = {}, .gradients = {}, .factor = factor};
  AddShape(batch.inputs, of.kind);
  AddShape(batch.targets, of.kind);
  for (const autograd::ParameterPtr& parameter : parameters_) {
    of.kind.push_back(parameter->requires_grad());
    of.kind.push_back(static_cast<int64_t>(parameter->dtype()));
    of.kind.push_back(static_cast<int64_t>(parameter->grad_dtype()));
    of.kind.push_back(parameter->has_grad() ? static_cast<int64_t>(parameter->grad().dtype()) : -1);
    of.weights.push_back(PlaceOf(parameter->data()));
    of.gradients.push_back(PlaceOf(parameter->grad()));
  }
  for (const autograd::ParameterPtr& buffer : model_.Buffers()) {
    of.weights.push_back(PlaceOf(buffer->data()));
  }
  return of;
}

Tensor GraphedMicroStep::Compute(const Tensor& inputs, const Tensor& targets, double factor) const {
  Tensor loss = criterion_(model_(inputs), targets);
  if (factor != 1) loss = autograd::Scale(loss, factor);
  booster_.RunBackward(loss, optimizer_, {});  // Run counts the micro-batch
  return loss.Detach();
}

Tensor GraphedMicroStep::Run(const data::Batch& batch, double factor) {
  APOGEE_CHECK(batch.inputs.defined() && batch.targets.defined(),
               "GraphedMicroStep: the batch needs inputs and targets");
  APOGEE_CHECK(!batch.Has("starts"),
               "GraphedMicroStep: the batch has packed documents (\"starts\"), which a graph does "
               "not take; run them eagerly");
  booster_.CheckBoosted("GraphedMicroStep");
  CheckSetup();
  Tensor loss = RunCase(batch, factor * booster_.BeginMicroBatch().share);
  booster_.EndMicroBatch(loss);
  return loss;
}

Tensor GraphedMicroStep::RunCase(const data::Batch& batch, double factor) {
  const Case of = CaseOf(batch, factor);
  const data::Batch host{OnHostIfIndices(batch.inputs), OnHostIfIndices(batch.targets)};
  const auto found = std::ranges::find_if(graphs_, [&](const std::unique_ptr<Graph>& graph) {
    return graph->of == of && graph->graph->Takes({host.inputs, host.targets});
  });
  if (found != graphs_.end()) {
    graphs_.splice(graphs_.begin(), graphs_, found);
    Tensor loss = Replay(*graphs_.front(), host);
    ++num_replayed_;
    return loss;
  }
  if (!seen_.contains(of.kind)) {
    const Tensor loss =
        Compute(batch.inputs.Detach().To(context_), batch.targets.Detach().To(context_), factor);
    seen_.insert(of.kind);
    ++num_eager_;
    return loss;
  }
  // Graphs for weights that are gone are useless; free their memory for the new one.
  std::erase_if(graphs_, [&](const auto& graph) { return graph->of.weights != of.weights; });
  while (static_cast<int>(graphs_.size()) >= options_.max_graphs) graphs_.pop_back();
  graphs_.push_front(Capture(host, of));
  ++num_captured_;
  return Replay(*graphs_.front(), host);
}

std::unique_ptr<GraphedMicroStep::Graph> GraphedMicroStep::Capture(const data::Batch& batch,
                                                                   const Case& of) const {
  auto graph = std::make_unique<Graph>();
  graph->of = of;
  for (const autograd::ParameterPtr& parameter : parameters_) {
    graph->weights.push_back(parameter->data());
    graph->present.push_back(parameter->grad());
  }
  // The gradients that the capture gives to parameters have no values yet. If the capture fails,
  // its random numbers were not drawn.
  const Generator generator = model_.generator();
  const auto restore = [&] {
    model_.generator() = generator;
    for (size_t i = 0; i < parameters_.size(); ++i) parameters_[i]->set_grad(graph->present[i]);
  };
  try {
    graph->graph.emplace(CudaGraph::Capture(
        context_, {batch.inputs, batch.targets}, [&](const CudaGraph::Tensors& in) {
          graph->loss = Compute(in[0], in[1], of.factor);
          for (size_t i = 0; i < parameters_.size(); ++i) {
            const bool was_absent = !graph->present[i].defined();
            graph->written.push_back(was_absent ? parameters_[i]->grad() : Tensor());
          }
        }));
  } catch (...) {
    restore();
    throw;
  }
  restore();
  return graph;
}

Tensor GraphedMicroStep::Replay(Graph& graph, const data::Batch& batch) const {
  for (size_t i = 0; i < parameters_.size(); ++i) {
    const Tensor& written = graph.written[i];
    // Graphs that add to this gradient have a handle on it, too.
    const auto handles = std::ranges::count_if(graphs_, [&](const std::unique_ptr<Graph>& other) {
      return written.defined() && other->present[i].defined() &&
             other->present[i].storage() == written.storage();
    });
    APOGEE_CHECK(!written.defined() || written.storage().use_count() == 1 + handles,
                 "GraphedMicroStep: the gradient of \"", parameters_[i]->name(),
                 "\" would overwrite an earlier gradient to which you still have a handle; keep a "
                 "Clone() of that one instead");
  }
  graph.graph->Launch({batch.inputs, batch.targets});
  for (size_t i = 0; i < parameters_.size(); ++i) {
    if (graph.written[i].defined()) parameters_[i]->set_grad(graph.written[i]);
  }
  return graph.loss.Clone();
}

}  // namespace apogee
