#include "apogee/plugins/ddp.h"

#include <algorithm>
#include <vector>

#include "apogee/optim/fused_backward.h"
#include "apogee/plugins/precision.h"

namespace apogee {
namespace {

// A line per parameter: what all ranks must agree on.
std::vector<std::string> DescribeModel(const nn::Module& model) {
  std::vector<std::string> lines;
  for (const auto& p : model.Parameters()) {
    lines.push_back("\"" + p->name() + "\" " + p->shape().ToString() + " " +
                    DTypeName(p->data().dtype()) + (p->requires_grad() ? "" : " frozen"));
  }
  return lines;
}

// The text of rank `root`, on every rank.
std::string BroadcastText(comm::Group& group, const std::string& text, int root,
                          const ContextPtr& context) {
  const Tensor size =
      Tensor::FromVector<int64_t>({static_cast<int64_t>(text.size())}, {1}, context);
  group.Broadcast(size, root);
  const int64_t bytes = size.data<int64_t>()[0];
  const Tensor buffer = Tensor::Zeros({bytes}, DType::kU8, context, MemoryCategory::kCommunication);
  if (group.rank() == root) std::copy(text.begin(), text.end(), buffer.data<uint8_t>());
  group.Broadcast(buffer, root);
  const std::vector<uint8_t> values = buffer.ToVector<uint8_t>();
  return std::string(values.begin(), values.end());
}

}  // namespace

DdpPlugin::DdpPlugin(comm::GroupPtr group, const DdpOptions& options)
    : group_(std::move(group)), options_(options) {
  std::string errors;
  dtype_ = ParsePrecision(options.precision, errors);
  if (!(options.max_norm >= 0)) {
    errors += "\n  max_norm must be 0 (off) or positive, got " + std::to_string(options.max_norm);
  }
  if (options.bucket_bytes < 1) {
    errors += "\n  bucket_bytes must be positive, got " + std::to_string(options.bucket_bytes);
  }
  APOGEE_CHECK(errors.empty(), "ddp plugin: invalid options:", errors);
  if (dtype_ == DType::kF16) scaler_ = std::make_unique<optim::LossScaler>(options.loss_scaler);
}

DdpPlugin::~DdpPlugin() = default;

void DdpPlugin::CheckSameModel(const nn::Module& model) const {
  const std::vector<std::string> mine = DescribeModel(model);
  std::string text;
  for (const std::string& line : mine) text += line + "\n";
  const ContextPtr context = model.Parameters()[0]->data().context();
  const std::string first = BroadcastText(*group_, text, 0, context);
  // The lowest rank that differs tells everybody how.
  const bool same = first == text;
  const Tensor differs =
      Tensor::Full({1}, DType::kF64, same ? 0 : group_->size() - group_->rank(), context);
  group_->AllReduce(differs, comm::ReduceOp::kMax);
  if (differs.Item() == 0) return;
  const int culprit = group_->size() - static_cast<int>(differs.Item());
  std::string message;
  if (group_->rank() == culprit) {
    size_t line = 0, begin = 0, index = 0;
    while (begin < std::min(first.size(), text.size()) && first[begin] == text[begin]) {
      if (first[begin++] == '\n') {
        line = begin;
        ++index;
      }
    }
    auto at = [line](const std::string& all) {
      return line < all.size() ? all.substr(line, all.find('\n', line) - line)
                               : std::string("nothing");
    };
    message = "ddp: the ranks' models differ: parameter " + std::to_string(index) + " is " +
              at(first) + " on rank 0 but " + at(text) + " on rank " +
              std::to_string(group_->world_ranks()[static_cast<size_t>(culprit)]) +
              "; build the same model on every rank";
  }
  Throw(BroadcastText(*group_, message, culprit, context));
}

void DdpPlugin::BroadcastModel(nn::Module& model) const {
  std::vector<std::shared_ptr<comm::Work>> works;
  for (const auto& parameter : model.Parameters()) {
    const Tensor value = parameter->data();
    APOGEE_CHECK(value.is_contiguous(), "ddp: parameter \"", parameter->name(),
                 "\" is not contiguous");
    works.push_back(group_->BroadcastAsync(value, 0));
  }
  Generator& generator = model.generator();
  const Tensor random = Tensor::FromVector<int64_t>(
      {generator.key().a, generator.key().b, static_cast<int64_t>(generator.next_stream())}, {3},
      model.Parameters()[0]->data().context());
  works.push_back(group_->BroadcastAsync(random, 0));
  for (const auto& work : works) work->Wait();
  const int64_t* state = random.data<int64_t>();
  generator.set_key({static_cast<uint32_t>(state[0]), static_cast<uint32_t>(state[1])});
  generator.set_next_stream(static_cast<uint64_t>(state[2]));
}

optim::Optimizer& DdpPlugin::Configure(nn::Module& model, optim::Optimizer& optimizer) {
  const bool fused = dynamic_cast<optim::FusedBackwardOptimizer*>(&optimizer) != nullptr;
  APOGEE_CHECK(!fused || group_ == nullptr || group_->size() == 1, "ddp: optimizer ",
               optimizer.name(),
               " updates inside backward, before gradients are averaged over the ", group_->size(),
               " ranks; use one rank, or an optimizer that updates in step()");
  if (group_ != nullptr) {
    CheckSameModel(model);
    BroadcastModel(model);
    // Ranks mask their parts of a batch as one rank would mask the whole.
    model.AddPreForwardHook([this](nn::Module& root, const Tensor& input) {
      if (input.rank() > 0) root.generator().set_first_sample(group_->rank() * input.size(0));
    });
  }
  ApplyPrecision(dtype_, model, optimizer);
  optim::StepOptions step_options = optimizer.step_options();
  if (options_.max_norm > 0) step_options.max_norm = options_.max_norm;
  step_options.loss_scale = loss_scale();
  optimizer.set_step_options(step_options);
  if (scaler_ != nullptr) {
    optimizer.AddStepHook([this](optim::Optimizer& stepped) {
      scaler_->Update(stepped.last_step().skip);
      optim::StepOptions next = stepped.step_options();
      next.loss_scale = scaler_->scale();
      stepped.set_step_options(next);
    });
  }
  if (fused) return optimizer;
  buckets_ = std::make_unique<GradientBuckets>(
      model.Parameters(), group_,
      GradientBucketOptions{.bucket_bytes = options_.bucket_bytes,
                            .overlap = options_.overlap,
                            .reproducible = options_.reproducible});
  return optimizer;
}

void DdpPlugin::Backward(const Tensor& loss, optim::Optimizer& optimizer) {
  if (auto* fused = dynamic_cast<optim::FusedBackwardOptimizer*>(&optimizer)) {
    return fused->fused_backward(loss);
  }
  buckets_->Backward(loss, loss_scale(), /*reduce=*/*no_sync_depth_ == 0);
}

std::shared_ptr<void> DdpPlugin::NoSync() {
  ++*no_sync_depth_;
  // The handle may outlive the plugin.
  return std::shared_ptr<void>(nullptr, [depth = no_sync_depth_](void*) { --*depth; });
}

}  // namespace apogee
