#include "apogee/plugins/first_step_watch.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <utility>
#include <vector>

#include "apogee/plugins/replicas.h"

namespace apogee {

using enum comm::Axis;

FirstStepWatch::FirstStepWatch(std::string plugin, const comm::Mesh& mesh,
                               const nn::parallel::TensorParallel* parallel, ContextPtr context)
    : plugin_(std::move(plugin)), mesh_(mesh), parallel_(parallel), context_(std::move(context)) {}

void FirstStepWatch::Attach(nn::Module& model, optim::Optimizer& optimizer) {
  model.AddPreForwardHook(
      [this, alive = std::weak_ptr<void>(alive_)](nn::Module& root, const Tensor& input) {
        if (!alive.expired() && root.is_training()) Add(input);
      });
  optimizer.AddPreStepHook([this](optim::Optimizer& stepped) {
    if (done_) return;
    CheckInputs();
    done_ = parallel_ == nullptr || CheckGradients(stepped);
  });
}

void FirstStepWatch::Add(const Tensor& inputs) {
  if (done_) return;
  const Tensor whole = inputs.Detach().Contiguous().ToHost();
  hash_ = XXH3_64bits_withSeed(whole.raw(), static_cast<size_t>(whole.bytes()), hash_);
}

void FirstStepWatch::Check(const Tensor& inputs) {
  if (done_) return;
  Add(inputs);
  CheckInputs();
}

void FirstStepWatch::CheckInputs() const {
  // A double holds half of the bits exactly.
  const auto hash = static_cast<double>(hash_ >> 32);
  const Tensor ends = Tensor::FromVector<double>({hash, -hash}, {2}, context_);
  mesh_.group({kPp, kSp, kTp})->AllReduce(ends, comm::ReduceOp::kMax);
  const std::vector<double> all = ends.ToVector<double>();
  APOGEE_CHECK(all[0] == -all[1], plugin_,
               ": ranks that share one copy of the model (its pp, sp and tp axes) gave it "
               "different inputs; load the part of each batch that the plugin's data_rank() and "
               "data_size() say, not the world's rank and size");
}

bool FirstStepWatch::CheckGradients(optim::Optimizer& optimizer) const {
  std::vector<const optim::ParamView*> copies;
  for (const optim::ParamView& view : optimizer.views()) {
    const bool is_copy = parallel_->ShardOf(*view.parameter()) == nullptr;
    if (is_copy && view.trainable()) copies.push_back(&view);
  }
  const bool finite =
      CheckSameGradients(plugin_, copies, mesh_.group({kDp, kSp}), *mesh_.group(kTp), context_);
  // They may be not finite on some stages only.
  const Tensor again = Tensor::Full({1}, DType::kF32, finite ? 0 : 1, context_);
  if (mesh_.size(kPp) > 1) mesh_.group(kPp)->AllReduce(again, comm::ReduceOp::kMax);
  return again.Item() == 0;
}

}  // namespace apogee
