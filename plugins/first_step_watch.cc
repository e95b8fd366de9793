// SPDX-License-Identifier: Apache-2.0

#include "apogee/plugins/first_step_watch.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <utility>
#include <vector>

#include "apogee/autograd/documents.h"
#include "apogee/plugins/replicas.h"

namespace apogee {

using enum comm::Axis;

namespace {

uint64_t HashOf(const Tensor& x, uint64_t seed) {
  const Tensor whole = x.Detach().Contiguous().ToHost();
  return XXH3_64bits_withSeed(whole.raw(), static_cast<size_t>(whole.bytes()), seed);
}

// Collective.
bool IsSameOver(comm::Group& group, uint64_t hash, const ContextPtr& context) {
  // A double holds half of the bits exactly.
  const auto half = static_cast<double>(hash >> 32);
  const Tensor ends = Tensor::FromVector<double>({half, -half}, {2}, context);
  group.AllReduce(ends, comm::ReduceOp::kMax);
  const std::vector<double> all = ends.ToVector<double>();
  return all[0] == -all[1];
}

}  // namespace

FirstStepWatch::FirstStepWatch(std::string plugin, const comm::Mesh& mesh,
                               const nn::parallel::TensorParallel* parallel, ContextPtr context)
    : plugin_(std::move(plugin)), mesh_(mesh), parallel_(parallel), context_(std::move(context)) {}

void FirstStepWatch::Attach(nn::Module& model, optim::Optimizer& optimizer) {
  hooks_.emplace_back(model.AddPreForwardHook([this](nn::Module& root, const Tensor& input) {
    if (!root.is_training()) return;
    Add(input);
    if (const auto& documents = autograd::CurrentDocuments()) Add(documents->FirstKeys({}, {}));
  }));
  optimizer_ = &optimizer;
  hooks_.push_back(optimizer.AddListener(*this));
  if (parallel_ != nullptr) WatchDropouts(model);
}

void FirstStepWatch::BeforeStep() {
  if (done_) return;
  CheckInputs(*mesh_.group({kPp, kSp, kTp}));
  done_ = parallel_ == nullptr || CheckGradients();
}

void FirstStepWatch::WatchDropouts(nn::Module& model) {
  for (nn::Module* module : model.Modules()) {
    const auto* dropout = dynamic_cast<const nn::Dropout*>(module);
    if (dropout == nullptr || dropout->p() == 0 || parallel_->IsNamed(*dropout)) continue;
    hooks_.emplace_back(
        module->AddPreForwardHook([this, dropout](nn::Module&, const Tensor& input) {
          if (!done_ && dropout->is_training()) CheckDropout(*dropout, input);
        }));
  }
}

void FirstStepWatch::CheckDropout(const nn::Dropout& dropout, const Tensor& input) const {
  const autograd::GraphMeta* meta = autograd::MetaOf(input);
  const bool graph_says = meta != nullptr && !meta->edge.node->edges().empty();
  if (graph_says || !dropout.sequence_part().is_whole()) return;
  comm::Group& group = *mesh_.group(kTp);
  if (IsSameOver(group, HashOf(input, 0), context_)) return;
  CheckInputs(group);  // perhaps the model's inputs differ
  dropout.RefuseCut(input);
}

void FirstStepWatch::Add(const Tensor& inputs) {
  if (done_) return;
  hash_ = HashOf(inputs, hash_);
}

void FirstStepWatch::Check(const Tensor& inputs, const Tensor& starts) {
  if (done_) return;
  Add(inputs);
  if (starts.defined()) Add(starts);
  CheckInputs(*mesh_.group({kPp, kSp, kTp}));
}

void FirstStepWatch::CheckInputs(comm::Group& group) const {
  APOGEE_CHECK(IsSameOver(group, hash_, context_), plugin_,
               ": ranks that share one copy of the model (its pp, sp and tp axes) gave it "
               "different inputs; load the part of each batch that the plugin's data_rank() and "
               "data_size() say, not the world's rank and size");
}

bool FirstStepWatch::CheckGradients() const {
  std::vector<const optim::ParamView*> copies;
  for (const optim::ParamView& view : optimizer_->views()) {
    const bool is_copy = parallel_->ShardOf(*view.parameter()) == nullptr;
    if (is_copy && view.trainable()) copies.push_back(&view);
  }
  const bool finite = CheckSameGradients(plugin_, copies, mesh_.group({kDp, kSp, kEp}),
                                         *mesh_.group(kTp), context_);
  // Some stages may have finite gradients and others not.
  const Tensor again = Tensor::Full({1}, DType::kF32, finite ? 0 : 1, context_);
  if (mesh_.size(kPp) > 1) mesh_.group(kPp)->AllReduce(again, comm::ReduceOp::kMax);
  return again.Item() == 0;
}

}  // namespace apogee
