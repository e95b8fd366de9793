// SPDX-License-Identifier: Apache-2.0

#include "apogee/autograd/engine.h"

#include <deque>
#include <limits>
#include <queue>
#include <unordered_map>
#include <utility>

#include "apogee/autograd/grad_mode.h"
#include "apogee/tensor/ops/elementwise.h"

namespace apogee::autograd {
namespace {

// The callbacks of the innermost backward that runs on this thread.
thread_local std::vector<std::function<void()>>* current_callbacks = nullptr;

// Adds `grad` to `sum`, in place if nothing else owns `sum` or `grad`.
void AddInto(Tensor& sum, Tensor grad) {
  if (!sum.defined()) {
    sum = std::move(grad);
  } else if (sum.is_sole_owner() && sum.is_contiguous()) {
    ops::Accumulate(sum, grad);
  } else if (grad.is_sole_owner() && grad.is_contiguous() && grad.dtype() == sum.dtype()) {
    ops::Accumulate(grad, sum);
    sum = std::move(grad);
  } else {
    Tensor copy = sum.Detach().Clone();
    ops::Accumulate(copy, grad);
    sum = std::move(copy);
  }
}

struct NodeState {
  std::vector<Tensor> grads;  // one per output
  int64_t missing = 0;        // contributions still to come
  int64_t index = 0;          // order of discovery
};

}  // namespace

struct DeferredWeightGrads::State {
  struct Half {
    std::shared_ptr<Node> node;
    std::vector<Tensor> grads;
  };
  std::deque<Half> halves;
  // The parameters (and other nodes) that wait for a weight half.
  std::unordered_map<Node*, NodeState> waiting;
};

class BackwardPass {
 public:
  BackwardPass(const BackwardOptions& options) : options_(options) {}

  void Run(std::span<const Tensor> roots, std::span<const Tensor> grads) {
    Count(roots);
    for (size_t i = 0; i < roots.size(); ++i) Deliver(EdgeOf(roots[i]), grads[i].Detach());
    while (!ready_.empty()) {
      const std::shared_ptr<Node> node = ready_.top().node;
      ready_.pop();
      RunNode(node);
    }
    if (options_.deferred != nullptr) HandOver();
  }

  static void RunDeferred(DeferredWeightGrads::State& state) {
    BackwardPass pass({});
    pass.states_ = std::move(state.waiting);
    for (; !state.halves.empty(); state.halves.pop_front()) {
      DeferredWeightGrads::State::Half& half = state.halves.front();
      pass.DeliverAll(*half.node,
                      half.node->Backward(std::move(half.grads),
                                          {.part = GradPart::kWeights, .keep_saved = false}),
                      GradPart::kWeights);
      half.node->ReleaseSaved();
      while (!pass.ready_.empty()) {
        const std::shared_ptr<Node> node = pass.ready_.top().node;
        pass.ready_.pop();
        pass.RunNode(node);
      }
    }
  }

 private:
  struct Ready {
    std::shared_ptr<Node> node;
    int64_t index;
    // Parameters go first, so that their hooks run as soon as their gradient is complete.
    int64_t priority() const {
      return node->edges().empty() ? std::numeric_limits<int64_t>::max() : node->depth();
    }
    bool operator<(const Ready& other) const {
      if (priority() != other.priority()) return priority() < other.priority();
      return index > other.index;
    }
  };

  // Visits each reachable node once, and counts the contributions that will arrive there.
  void Count(std::span<const Tensor> roots) {
    std::deque<std::shared_ptr<Node>> open;
    auto visit = [&](const Edge& edge) {
      if (edge.node == nullptr) return;
      auto [it, inserted] = states_.try_emplace(edge.node.get());
      ++it->second.missing;
      if (inserted) {
        it->second.index = static_cast<int64_t>(states_.size());
        it->second.grads.resize(static_cast<size_t>(edge.node->num_outputs()));
        open.push_back(edge.node);
      }
    };
    for (const Tensor& root : roots) visit(EdgeOf(root));
    while (!open.empty()) {
      const std::shared_ptr<Node> node = std::move(open.front());
      open.pop_front();
      for (const Edge& edge : node->edges()) visit(edge);
    }
  }

  // Delivers one contribution to an edge's target. An undefined gradient counts as arrived, too.
  void Deliver(const Edge& edge, Tensor grad) {
    if (edge.node == nullptr) return;
    NodeState& state = states_.at(edge.node.get());
    if (grad.defined()) AddInto(SumOf(edge), std::move(grad));
    if (--state.missing == 0) ready_.push({edge.node, state.index});
  }

  // The sum of the gradients that have arrived at the edge's target.
  Tensor& SumOf(const Edge& edge) {
    return states_.at(edge.node.get()).grads[static_cast<size_t>(edge.output)];
  }

  void DeliverAll(const Node& node, std::vector<Tensor> grads, GradPart part) {
    for (size_t i = 0; i < node.edges().size(); ++i) {
      const bool weight = node.IsWeightEdge(i);
      if (part == GradPart::kInputs && weight) continue;
      if (part == GradPart::kWeights && !weight) continue;
      Deliver(node.edges()[i], i < grads.size() ? std::move(grads[i]) : Tensor());
    }
  }

  void RunNode(const std::shared_ptr<Node>& node) {
    std::vector<Tensor> grads = std::move(states_.at(node.get()).grads);
    bool any = false;
    for (const Tensor& grad : grads) any = any || grad.defined();
    if (!any) {  // no gradient arrived on any path from the loss
      DeliverAll(*node, {}, GradPart::kAll);
      return;
    }
    for (const auto& hook : node->pre_hooks()) hook();
    bool split = false;
    if (options_.deferred != nullptr) {
      for (size_t i = 0; i < node->edges().size(); ++i) {
        split = split || (node->IsWeightEdge(i) && node->wants(i));
      }
    }
    const GradPart part = split ? GradPart::kInputs : GradPart::kAll;
    const bool keep = options_.retain_graph || split;
    if (split) {
      deferred_.halves.push_back({node, grads});
      DeliverAll(*node, node->Backward(std::move(grads), {part, keep}), part);
    } else {
      const bool added = node->edges().size() == 1 && node->num_outputs() == 1 && node->wants(0) &&
                         node->AddBackward(grads[0], SumOf(node->edges()[0]));
      // If the gradient has been added, an undefined one counts as arrived.
      DeliverAll(*node,
                 added ? std::vector<Tensor>() : node->Backward(std::move(grads), {part, keep}),
                 part);
      if (!keep) node->ReleaseSaved();
    }
    for (const auto& hook : node->post_hooks()) hook();
  }

  // Gradients that wait for a weight half move to the caller's DeferredWeightGrads.
  void HandOver() {
    for (auto& [node, state] : states_) {
      if (state.missing > 0) deferred_.waiting.emplace(node, std::move(state));
    }
    *options_.deferred->state_ = std::move(deferred_);
  }

  const BackwardOptions options_;
  std::unordered_map<Node*, NodeState> states_;
  std::priority_queue<Ready> ready_;
  DeferredWeightGrads::State deferred_;
};

namespace {

// Runs `pass` with its own list of callbacks, then the callbacks, including those that callbacks
// add.
template <typename Fn>
void WithCallbacks(const Fn& pass) {
  NoGradGuard no_grad;
  std::vector<std::function<void()>> callbacks;
  std::vector<std::function<void()>>* previous = std::exchange(current_callbacks, &callbacks);
  struct Restore {
    std::vector<std::function<void()>>* previous;
    ~Restore() { current_callbacks = previous; }
  } restore{previous};
  pass();
  for (size_t i = 0; i < callbacks.size(); ++i) {
    const std::function<void()> callback = std::move(callbacks[i]);
    callback();
  }
}

}  // namespace

DeferredWeightGrads::DeferredWeightGrads() : state_(std::make_unique<State>()) {}
DeferredWeightGrads::~DeferredWeightGrads() = default;
DeferredWeightGrads::DeferredWeightGrads(DeferredWeightGrads&&) noexcept = default;
DeferredWeightGrads& DeferredWeightGrads::operator=(DeferredWeightGrads&&) noexcept = default;

bool DeferredWeightGrads::empty() const { return state_->halves.empty(); }

void DeferredWeightGrads::Run() {
  State state = std::exchange(*state_, State{});
  WithCallbacks([&] { BackwardPass::RunDeferred(state); });
}

void Backward(std::span<const Tensor> roots, std::span<const Tensor> grads,
              const BackwardOptions& options) {
  APOGEE_CHECK(roots.size() == grads.size(), "backward: ", roots.size(), " roots but ",
               grads.size(), " gradients");
  for (size_t i = 0; i < roots.size(); ++i) {
    APOGEE_CHECK(MetaOf(roots[i]) != nullptr, "backward: root ", i,
                 " is not in a graph: no parameter that requires a gradient "
                 "took part in it, or it was computed under NoGradGuard");
    APOGEE_CHECK(grads[i].defined() && grads[i].shape() == roots[i].shape(), "backward: root ", i,
                 " has shape ", roots[i].shape(), " and needs a gradient of that shape");
  }
  APOGEE_CHECK(!(options.deferred != nullptr && options.retain_graph),
               "backward: deferred weight gradients cannot be combined with retain_graph");
  APOGEE_CHECK(
      options.deferred == nullptr || options.deferred->empty(),
      "backward: `deferred` still holds weight gradients of an earlier pass; Run() it first");
  WithCallbacks([&] { BackwardPass(options).Run(roots, grads); });
}

void Backward(const Tensor& root, const BackwardOptions& options) {
  Tensor grad = options.grad;
  if (!grad.defined()) {
    APOGEE_CHECK(root.defined() && root.numel() == 1,
                 "backward: the root must be a scalar loss, got shape ", root.shape(),
                 "; pass its gradient as options.grad");
    grad = Tensor::Full(root.shape(), root.dtype(), 1.0, root.context());
  }
  Backward(std::span<const Tensor>(&root, 1), std::span<const Tensor>(&grad, 1), options);
}

void QueueCallback(std::function<void()> callback) {
  APOGEE_CHECK(current_callbacks != nullptr,
               "QueueCallback: no backward is under way on this thread");
  current_callbacks->push_back(std::move(callback));
}

}  // namespace apogee::autograd
