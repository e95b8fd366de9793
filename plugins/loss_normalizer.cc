// SPDX-License-Identifier: Apache-2.0

#include "apogee/plugins/loss_normalizer.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include "apogee/autograd/grad_mode.h"
#include "apogee/autograd/node.h"
#include "apogee/core/lifetime.h"
#include "apogee/core/text/text.h"
#include "apogee/nn/losses.h"
#include "apogee/tensor/ops/elementwise.h"

namespace apogee {
namespace {

using internal::Concat;

Tensor ShareOfMean(const Tensor& mean, double own, double total, double ranks) {
  // A quotient of integers: exactly 1 if every rank has equally many targets.
  const double factor = total > 0 ? own * ranks / total : 0;
  if (factor == 1) return mean;
  // A mean over no targets is NaN. That is right only if no rank has targets.
  Tensor share = own > 0 || total == 0 ? ops::Scale(mean.Detach(), total > 0 ? factor : 1)
                                       : Tensor::Zeros(mean.shape(), mean.dtype(), mean.context());
  autograd::AttachMap(share, "share_of_mean", mean,
                      [factor](const Tensor& dy) { return ops::Scale(dy, factor); });
  return share;
}

// Numbers of targets. `counted`: those that count. If the criterion does not say, all; `other` is
// then the number of targets without negative ids, the other possible count. If it says, both are
// equal.
struct Count {
  double counted = 0;
  double other = 0;

  Count& operator+=(const Count& more) {
    counted += more.counted;
    other += more.other;
    return *this;
  }
  // Whether this share of `total` is the same by either number.
  bool FitsInto(const Count& total) const { return counted * total.other == other * total.counted; }
};

Count CountAll(const Tensor& targets) {
  if (!targets.defined()) return {1, 1};
  const auto all = static_cast<double>(targets.numel());
  if (targets.dtype() != DType::kI64) return {all, all};
  const std::vector<int64_t> ids = targets.ToVector<int64_t>();
  const auto negative = std::ranges::count_if(ids, [](int64_t id) { return id < 0; });
  return {all, all - static_cast<double>(negative)};
}

std::function<Count(const Tensor&)> CounterOf(const LossNormalizer::Criterion& criterion) {
  const auto known = [](auto count) {
    return [count](const Tensor& targets) {
      const auto counted = static_cast<double>(count(targets));
      return Count{counted, counted};
    };
  };
  if (const auto* cross_entropy = criterion.target<nn::CrossEntropyLoss>()) {
    return known([ignore = cross_entropy->ignore_index](const Tensor& targets) {
      return nn::CountTargets(targets, ignore);
    });
  }
  if (const auto* mean = criterion.target<nn::MeanLoss>()) {
    APOGEE_CHECK(mean->mean != nullptr && mean->count != nullptr,
                 "boost: an nn::MeanLoss needs both its mean and its count");
    return known(mean->count);
  }
  return CountAll;
}

// A hash that a double holds exactly.
double MixInto(double hash, double more) { return std::fmod(hash * 31 + more, 0x1p40); }

[[noreturn]] void ThrowUnknownTargets() {
  Throw(
      "boosted.criterion: targets have negative ids in unequal shares over ranks or micro-batches, "
      "and the criterion given to boost is a function that does not say whether it leaves them out "
      "of its mean; give boost an nn::MeanLoss with a count, or nn::CrossEntropyLoss");
}

}  // namespace

struct LossNormalizer::State {
  comm::GroupPtr copies;
  std::function<Count(const Tensor&)> count = CountAll;
  ContextPtr context;  // the model's
  int64_t num_losses = 0;

  // The last forward of the model; recorded on several ranks.
  Watched<nn::Module> model;
  int64_t samples = 0;
  uint64_t stream = 0;    // the next random stream before it
  bool unplaced = false;  // it drew masks without the place of its samples
  // Samples of forwards since the last backward.
  double pending_samples = 0;
  // Nodes of the normalised losses since the last step, while they are in a graph.
  std::vector<std::weak_ptr<autograd::Node>> shares;

  struct OpenWindow {
    double announced = 0, total = 0;
  };
  std::optional<OpenWindow> window;
  // Since the last step: targets of windows, and notes on losses that were not normalised.
  double announced = 0, seen = 0;
  bool had_window = false;
  bool is_raw = false;
  double raw_samples = 0, raw_targets = 0, raw_order = 0;

  struct Call {
    bool training = false;
    std::vector<Count> micros;
    size_t micro = 0;  // the micro-batch whose loss is being made
    Count own;
    double samples = 0;
    bool is_even = true;             // micro-batches' shares agree by either count
    bool is_even_by_samples = true;  // and each sample has equally many targets
    std::optional<double> total;
  };
  std::optional<Call> call;

  double num_ranks() const { return comm::GroupSize(copies); }

  // Gathers `own` of every rank, in rank order.
  std::vector<double> Gather(const std::vector<double>& own) const {
    if (copies == nullptr) return own;
    const auto n = static_cast<int64_t>(own.size());
    const Tensor all = Tensor::Empty({n * copies->size()}, DType::kF64, context);
    copies->AllGather(all, Tensor::FromVector<double>(own, {n}, context));
    return all.ToVector<double>();
  }

  // The number of targets that count on all ranks. Throws on every rank if the two counts would
  // weigh ranks differently.
  double Total(const Count& own, bool is_even) const {
    // A certain count travels as two equal numbers. -1 says that this rank's own micro-batches
    // disagree.
    const std::vector<double> all = Gather({own.counted, is_even ? own.other : -1,
                                            static_cast<double>(samples), unplaced ? 1.0 : 0.0});
    Count total;
    bool fits = true, same_samples = true, any_unplaced = false;
    for (size_t i = 0; i < all.size(); i += 4) total += {all[i], all[i + 1]};
    for (size_t i = 0; i < all.size(); i += 4) {
      fits = fits && all[i + 1] >= 0 && Count{all[i], all[i + 1]}.FitsInto(total);
      same_samples = same_samples && all[i + 2] == all[2];
      any_unplaced = any_unplaced || all[i + 3] != 0;
    }
    if (!fits) ThrowUnknownTargets();
    APOGEE_CHECK(same_samples || !any_unplaced,
                 "boosted.criterion: ranks have batches of different sizes, so dropout cannot tell "
                 "which mask belongs to which sample; take the batches from a data::Loader with a "
                 "data::DistributedSampler, or use Storage::set_sample_place on the inputs");
    return total.counted;
  }

  // Normalises the loss of a pipeline's micro-batch; its targets were counted with the batch.
  Tensor NormalizeInCall(const Tensor& mean, const Tensor& targets) {
    const double own = count(targets).counted;
    const double counted = call->micros.empty() ? own : call->micros[call->micro].counted;
    APOGEE_CHECK(own == counted, "boosted.criterion: micro-batch ", call->micro,
                 " of execute_pipeline has ", counted, " targets that count, the criterion gave ",
                 own, "; change or leave out targets before execute_pipeline");
    if (call->training && window) return ShareOfMean(mean, own, window->total, num_ranks());
    if (!call->training && !call->is_even) ThrowUnknownTargets();
    if (!call->total) {
      call->total = call->training ? Total(call->own, call->is_even) : call->own.counted;
    }
    return ShareOfMean(mean, own, *call->total, call->training ? num_ranks() : 1);
  }

  Tensor Normalize(const Tensor& mean, const Tensor& targets) {
    if (!mean.defined()) return mean;
    if (call) {
      ++num_losses;
      return NormalizeInCall(mean, targets);
    }
    const bool training = model.get() == nullptr || model.is_gone() || model->is_training();
    const bool needed = window || copies != nullptr;
    if (!needed || !training || !autograd::GradModeEnabled()) return mean;
    const Count own = count(targets);
    if (window) seen += own.counted;
    Tensor share =
        ShareOfMean(mean, own.counted, window ? window->total : Total(own, true), num_ranks());
    if (autograd::NeedsGrad({share})) shares.push_back(autograd::EdgeOf(share).node);
    return share;
  }

  // Whether `loss` is computed from losses that were normalised.
  bool IsNormalized(const Tensor& loss) const {
    constexpr size_t kMaxNodes = 4096;
    if (shares.empty()) return false;
    std::vector<const autograd::Node*> nodes;
    std::unordered_set<const autograd::Node*> known;
    const auto add = [&](const autograd::Edge& edge) {
      if (edge.node == nullptr || nodes.size() == kMaxNodes) return;
      if (known.insert(edge.node.get()).second) nodes.push_back(edge.node.get());
    };
    add(autograd::EdgeOf(loss));
    for (size_t i = 0; i < nodes.size(); ++i) {
      for (const auto& share : shares) {
        if (share.lock().get() == nodes[i]) return true;
      }
      for (const autograd::Edge& edge : nodes[i]->edges()) add(edge);
    }
    return false;
  }
};

LossNormalizer::LossNormalizer(comm::GroupPtr copies) : state_(std::make_shared<State>()) {
  state_->copies = comm::GroupSize(copies) > 1 ? std::move(copies) : nullptr;
}

LossNormalizer::~LossNormalizer() = default;

void LossNormalizer::Attach(nn::Module& model) {
  state_->context = model.Parameters()[0]->context();
  state_->model = &model;
  if (state_->copies == nullptr) return;
  const std::weak_ptr<State> weak = state_;
  model.AddPreForwardHook([weak](nn::Module& root, const Tensor& input) {
    const auto state = weak.lock();
    if (state == nullptr) return;
    state->samples = input.rank() > 0 ? input.size(0) : 1;
    state->stream = root.generator().next_stream();
    state->unplaced = root.is_training() && !SamplePlaceOf(input).has_value();
  });
  model.AddPostForwardHook([weak](nn::Module& root) {
    const auto state = weak.lock();
    if (state == nullptr) return;
    state->unplaced = state->unplaced && root.generator().next_stream() != state->stream;
    if (autograd::GradModeEnabled()) state->pending_samples += static_cast<double>(state->samples);
  });
}

LossNormalizer::Criterion LossNormalizer::Wrap(Criterion loss, const Criterion& original) {
  if (loss == nullptr) return nullptr;
  state_->count = CounterOf(original);
  return [state = state_, loss = std::move(loss)](const Tensor& output, const Tensor& targets) {
    return state->Normalize(loss(output, targets), targets);
  };
}

std::shared_ptr<void> LossNormalizer::Window(int64_t num_targets) {
  APOGEE_CHECK(num_targets >= 0, "accumulation_window: num_targets must not be negative, got ",
               num_targets);
  APOGEE_CHECK(!state_->window,
               "accumulation_window: another window is open; release its handle first");
  const auto own = static_cast<double>(num_targets);
  double total = 0;
  for (const double targets : state_->Gather({own})) total += targets;
  state_->window = {own, total};
  // A window that ended without a step is forgotten.
  state_->announced = own;
  state_->seen = 0;
  state_->had_window = true;
  return std::shared_ptr<void>(nullptr, [weak = std::weak_ptr<State>(state_)](void*) {
    if (const auto state = weak.lock()) state->window.reset();
  });
}

std::shared_ptr<void> LossNormalizer::BeginCall(const Tensor& targets,
                                                std::span<const int64_t> begin, bool training) {
  State::Call call;
  call.training = training;
  if (targets.defined()) {
    std::vector<Count>& micros = call.micros;
    for (size_t m = 0; m + 1 < begin.size(); ++m) {
      micros.push_back(state_->count(targets.Slice(0, begin[m], begin[m + 1] - begin[m])));
      call.own += micros.back();
    }
    call.samples = static_cast<double>(begin.back());
    for (size_t m = 0; m < micros.size(); ++m) {
      const auto samples = static_cast<double>(begin[m + 1] - begin[m]);
      call.is_even = call.is_even && micros[m].FitsInto(call.own);
      call.is_even_by_samples = call.is_even_by_samples && call.is_even &&
                                micros[m].other * call.samples == call.own.other * samples;
    }
    state_->samples = begin.back();
    state_->unplaced = false;
    if (training && state_->window) state_->seen += call.own.counted;
  }
  state_->call = call;
  return std::shared_ptr<void>(nullptr, [weak = std::weak_ptr<State>(state_)](void*) {
    if (const auto state = weak.lock()) state->call.reset();
  });
}

void LossNormalizer::BeginLoss(int micro, bool unplaced) {
  state_->call->micro = static_cast<size_t>(micro);
  state_->unplaced = unplaced;
}

void LossNormalizer::NoteRawCall() {
  State& state = *state_;
  if (!state.call->training) return;
  state.is_raw = true;
  state.raw_samples += state.call->samples;
  state.raw_targets += state.call->is_even_by_samples ? state.call->own.other
                                                      : -std::numeric_limits<double>::infinity();
  state.raw_order = MixInto(state.raw_order, state.call->samples);
}

bool LossNormalizer::in_window() const { return state_->window.has_value(); }

int64_t LossNormalizer::num_losses() const { return state_->num_losses; }

void LossNormalizer::NoteBackward(const Tensor& loss) {
  State& state = *state_;
  if (state.copies == nullptr) return;
  const double samples = std::exchange(state.pending_samples, 0);
  if (state.IsNormalized(loss)) return;
  state.is_raw = true;
  state.raw_samples += samples;
  state.raw_targets += static_cast<double>(autograd::NumTargetsOf(loss).value_or(0));
  state.raw_order = MixInto(state.raw_order, state.raw_samples + state.raw_targets);
}

void LossNormalizer::CheckStep() {
  State& state = *state_;
  state.shares.clear();
  state.pending_samples = 0;
  const bool is_raw = std::exchange(state.is_raw, false);
  const bool had_window = std::exchange(state.had_window, false);
  const std::vector<double> own = {std::exchange(state.raw_samples, 0),
                                   std::exchange(state.raw_targets, 0),
                                   std::exchange(state.raw_order, 0),
                                   std::exchange(state.announced, 0), std::exchange(state.seen, 0)};
  if (!is_raw && !had_window) return;
  const std::vector<double> all = state.Gather(own);
  bool even = true, as_announced = true;
  std::string ranks, windows;
  for (size_t i = 0; i < all.size(); i += own.size()) {
    const size_t rank = i / own.size();
    even =
        even && all[i] == all[0] && all[i + 1] == all[1] && all[i + 2] == all[2] && all[i + 1] >= 0;
    as_announced = as_announced && all[i + 3] == all[i + 4];
    const std::string at = Concat(rank > 0 ? ", " : "", "rank ", rank, ": ");
    ranks += Concat(at, all[i], " samples",
                    all[i + 1] > 0 ? Concat(", ", all[i + 1], " targets") : std::string());
    windows += Concat(at, all[i + 3], " announced, ", all[i + 4], " seen");
  }
  APOGEE_CHECK(!is_raw || even,
               "step: the losses of this step did not come from boosted.criterion, and their "
               "micro-batches or ranks differ in samples or targets (",
               ranks,
               " in all), so a plain average would weigh them wrongly; call the criterion that "
               "boost returned, which weighs by targets");
  APOGEE_CHECK(!had_window || as_announced,
               "step: the micro-batches of the accumulation window had other targets than "
               "accumulation_window was told (",
               windows, "); count the targets of the whole window");
}

}  // namespace apogee
