// SPDX-License-Identifier: Apache-2.0

#include "apogee/plugins/replicas.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <vector>

#include "apogee/optim/core/kernels.h"

namespace apogee {
namespace {

// Describes everything that must be equal on all ranks, one fact a line.
std::string Describe(const nn::Module& model, const optim::Optimizer& optimizer) {
  std::string text;
  int index = 0;
  for (const auto& p : model.Parameters()) {
    text += "parameter " + std::to_string(index++) + " is \"" + p->name() + "\" " +
            p->shape().ToString() + " " + DTypeName(p->dtype()) +
            (p->requires_grad() ? "" : " frozen") + "\n";
  }
  for (const auto& buffer : model.Buffers()) {
    text += "a buffer is \"" + buffer->name() + "\" " + buffer->shape().ToString() + "\n";
  }
  text += "the optimizer is " + optimizer.name() + "\n";
  size_t view = 0;
  for (int group = 0; group < optimizer.num_groups(); ++group) {
    const std::string where = "group " + std::to_string(group);
    text += where + " has";
    for (const auto& [name, value] : optimizer.group_options(group)) {
      text += " " + name + "=" + value;
    }
    text += "\n";
    for (int i = 0; i < optimizer.group_size(group); ++i) {
      text += "parameter " + std::to_string(i) + " of " + where + " is \"" +
              optimizer.views()[view++].name() + "\"\n";
    }
  }
  return text;
}

// Returns the text of rank `root` on every rank.
std::string BroadcastText(comm::Group& group, const std::string& text, int root,
                          const ContextPtr& context) {
  const Tensor size =
      Tensor::FromVector<int64_t>({static_cast<int64_t>(text.size())}, {1}, HostOf(context));
  group.Broadcast(size, root);
  const int64_t bytes = size.data<int64_t>()[0];
  const Tensor buffer =
      Tensor::Zeros({bytes}, DType::kU8, HostOf(context), MemoryCategory::kCommunication);
  if (group.rank() == root) std::copy(text.begin(), text.end(), buffer.data<uint8_t>());
  group.Broadcast(buffer, root);
  const std::vector<uint8_t> values = buffer.ToVector<uint8_t>();
  return std::string(values.begin(), values.end());
}

// Throws the same Error on every rank.
void CheckSame(const std::string& plugin, const nn::Module& model,
               const optim::Optimizer& optimizer, comm::Group& group) {
  const std::string text = Describe(model, optimizer);
  const ContextPtr context = model.Parameters()[0]->context();
  const std::string first = BroadcastText(group, text, 0, context);
  // The lowest rank that differs describes the difference for all.
  const bool same = first == text;
  const Tensor differs =
      Tensor::Full({1}, DType::kF64, same ? 0 : group.size() - group.rank(), context);
  group.AllReduce(differs, comm::ReduceOp::kMax);
  if (differs.Item() == 0) return;
  const int culprit = group.size() - static_cast<int>(differs.Item());
  std::string message;
  if (group.rank() == culprit) {
    size_t line = 0, begin = 0;
    while (begin < std::min(first.size(), text.size()) && first[begin] == text[begin]) {
      if (first[begin++] == '\n') line = begin;
    }
    auto at = [line](const std::string& all) {
      return line < all.size() ? all.substr(line, all.find('\n', line) - line)
                               : std::string("nothing follows");
    };
    message = plugin + ": the ranks' models or optimizers differ: " + at(first) +
              " on rank 0, but " + at(text) + " on rank " +
              std::to_string(group.world_ranks()[static_cast<size_t>(culprit)]) +
              "; build the same model and optimizer on every rank";
  }
  Throw(BroadcastText(group, message, culprit, context));
}

void CheckContiguous(const std::string& plugin, const nn::Module& model) {
  for (const auto& parameter : model.Parameters()) {
    APOGEE_CHECK(parameter->is_lazy() || parameter->data().is_contiguous(), plugin,
                 ": parameter \"", parameter->name(), "\" is not contiguous");
  }
}

// A running broadcast of rank 0's value.
struct SentValue {
  autograd::Parameter* parameter;
  Tensor value;
  std::shared_ptr<comm::Work> work;

  void Wait() const {
    work->Wait();
    if (parameter->is_lazy()) parameter->set_value(value);
  }
};

// Only rank 0 makes a lazy value; on other ranks it would be overwritten.
SentValue SendValue(autograd::Parameter& parameter, comm::Group& group) {
  const bool receives = parameter.is_lazy() && group.rank() != 0;
  const Tensor value = receives ? Tensor::Empty(parameter.shape(), parameter.dtype(),
                                                parameter.context(), MemoryCategory::kParameter)
                                : parameter.data();
  return {&parameter, value, group.BroadcastAsync(value, 0)};
}

void BroadcastValues(nn::Module& model, comm::Group& group) {
  std::vector<SentValue> sent;
  for (const auto& parameter : HeldParameters(model)) {
    sent.push_back(SendValue(*parameter, group));
  }
  for (const SentValue& value : sent) value.Wait();
}

void BroadcastRandomState(nn::Module& model, comm::Group& group) {
  Generator& generator = model.generator();
  const Tensor random = Tensor::FromVector<int64_t>(
      {generator.key().a, generator.key().b, static_cast<int64_t>(generator.state())}, {3},
      model.Parameters()[0]->context());
  group.Broadcast(random, 0);
  const std::vector<int64_t> state = random.ToVector<int64_t>();
  generator.set_key({static_cast<uint32_t>(state[0]), static_cast<uint32_t>(state[1])});
  generator.Restart(static_cast<uint64_t>(state[2]));
}

}  // namespace

void MaskByPlace(nn::Module& model, int rank) {
  model.AddPreForwardHook([rank](nn::Module& root, const Tensor& input) {
    if (input.rank() == 0) return;
    if (SamplePlaceOf(input)) {  // the batch knows; the root may be part of another model
      if (root.is_training()) root.BeginBatch(input);
      return;
    }
    root.generator().set_first_sample(rank * input.size(0));
  });
}

std::vector<autograd::ParameterPtr> HeldParameters(const nn::Module& model) {
  std::vector<autograd::ParameterPtr> held = model.Parameters();
  std::erase_if(held, [](const auto& parameter) { return !parameter->is_here(); });
  return held;
}

void CheckWhole(const std::string& plugin, const nn::Module& model) {
  for (const auto& parameter : model.Parameters()) {
    APOGEE_CHECK(!parameter->is_part(), plugin, ": parameter \"", parameter->name(),
                 "\" has been cut by another plugin; a model can be boosted once");
  }
}

void SyncReplicasButValues(const std::string& plugin, nn::Module& model,
                           const optim::Optimizer& optimizer, const comm::GroupPtr& group) {
  if (group == nullptr) return;
  CheckSame(plugin, model, optimizer, *group);
  CheckContiguous(plugin, model);
  BroadcastRandomState(model, *group);
  for (const auto& buffer : model.Buffers()) group->Broadcast(buffer->data(), 0);
}

void SyncReplicas(const std::string& plugin, nn::Module& model, const optim::Optimizer& optimizer,
                  const comm::GroupPtr& group) {
  if (group == nullptr) return;
  SyncReplicasButValues(plugin, model, optimizer, group);
  BroadcastValues(model, *group);
}

void PrepareReplicas(const std::string& plugin, nn::Module& model,
                     const optim::Optimizer& optimizer, const comm::GroupPtr& group) {
  SyncReplicas(plugin, model, optimizer, group);
  if (group != nullptr) MaskByPlace(model, group->rank());
}

void PrepareReplicasButValues(const std::string& plugin, nn::Module& model,
                              const optim::Optimizer& optimizer, const comm::GroupPtr& group) {
  if (group == nullptr) return;
  SyncReplicasButValues(plugin, model, optimizer, group);
  MaskByPlace(model, group->rank());
}

void SyncValue(autograd::Parameter& parameter, const comm::GroupPtr& group) {
  // Cached blocks of earlier values, of all sizes, would add up to a whole model.
  if (parameter.is_lazy()) parameter.context()->allocator().ReleaseCache();
  if (group != nullptr) SendValue(parameter, *group).Wait();
}

bool CheckSameGradients(const std::string& plugin,
                        const std::vector<const optim::ParamView*>& views,
                        const comm::GroupPtr& shards, comm::Group& group,
                        const ContextPtr& context) {
  if (views.empty()) return true;
  // Sums of squares, and last the number of gradients that are not finite.
  std::vector<double> squares(views.size() + 1, 0.0);
  for (size_t i = 0; i < views.size(); ++i) {
    if (!views[i]->has_grad()) continue;
    const Tensor grad = views[i]->grad();
    optim::NormChunk chunk{grad.raw(), grad.dtype(), views[i]->layout().local_numel(), 0};
    optim::OptimKernelsFor(*grad.context())
        .grad_norm(*grad.context(), {optim::NormKind::kL2, std::span(&chunk, 1)});
    const bool finite = std::isfinite(chunk.result);
    squares[i] = finite ? chunk.result : 0;
    squares.back() += finite ? 0 : 1;
  }
  const auto count = static_cast<int64_t>(squares.size());
  const Tensor sums = Tensor::FromVector<double>(squares, {count}, context);
  if (shards != nullptr) shards->AllReduce(sums);
  squares = sums.ToVector<double>();
  // The largest sums and, negated, the smallest.
  for (int64_t i = 0; i < count; ++i) squares.push_back(-squares[static_cast<size_t>(i)]);
  const Tensor ends = Tensor::FromVector<double>(squares, {2 * count}, context);
  group.AllReduce(ends, comm::ReduceOp::kMax);
  squares = ends.ToVector<double>();
  if (squares[views.size()] > 0) return false;
  // They should have the same bits. If they are all rounding errors, any two count as equal.
  constexpr double kTolerance = 1e-5, kRounding = 1e-12;
  double total = 0;
  for (size_t i = 0; i < views.size(); ++i) total += squares[i];
  for (size_t i = 0; i < views.size(); ++i) {
    const double largest = squares[i], smallest = -squares[i + views.size() + 1];
    APOGEE_CHECK(largest - smallest <= kTolerance * largest + kRounding * total, plugin,
                 ": every rank holds all of \"", views[i]->name(),
                 "\", but their gradients of it differ (norms ", std::sqrt(smallest), " to ",
                 std::sqrt(largest),
                 "), so it is used where activations are cut; use its value through "
                 "nn::parallel::CopyToGroup, which adds the parts, or cut it in the plan");
  }
  return true;
}

}  // namespace apogee
