// SPDX-License-Identifier: Apache-2.0

#include "muon.h"

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "apogee/optim/options.h"
#include "host_update.h"
#include "newton_schulz.h"

namespace outside {
namespace {

namespace optim = apogee::optim;

constexpr char kMomentum[] = "momentum_buffer";
// Of a tensor whose gradients have all been 0.
constexpr double kSmallestNorm = 1e-12;

// Calls fn(local, whole): places of this rank's elements, in what it holds and in the tensor.
template <typename Fn>
void ForEachElement(const optim::ParamView& view, const Fn& fn) {
  int64_t local = 0;
  for (const apogee::Segment& segment : view.layout().segments()) {
    for (int64_t i = 0; i < segment.length; ++i, ++local) fn(local, segment.begin + i);
  }
}

double NextMomentum(const MuonOptions& options, double momentum, double grad) {
  return options.momentum * momentum + grad;
}

double Nesterov(const MuonOptions& options, double momentum, double grad) {
  return grad + options.momentum * momentum;
}

// The sums of one tensor.
std::vector<double> TotalsOf(const optim::ParamView& view, const optim::StatBuffer& totals) {
  for (const optim::StatBuffer::Entry& entry : totals.sum_entries()) {
    if (entry.view != &view) continue;
    return totals.sum_values().Slice(0, entry.offset, entry.count).ToVector<double>();
  }
  apogee::Throw(view.name(), " has no sums");
}

}  // namespace

std::vector<optim::OptionField<MuonOptions>> MuonOptions::Fields() {
  using O = MuonOptions;
  using enum optim::OptionCheck;
  return {{"lr", &O::lr, kAtLeastZero, "learning rate"},
          {"momentum", &O::momentum, kDecay, "decay rate of the momentum"},
          {"weight_decay", &O::weight_decay, kAtLeastZero, "decoupled"},
          {"orthogonalize", &O::orthogonalize, {}, "false: the momentum over its norm"}};
}

bool MuonRule::IsOrthogonal(const optim::ActiveParam& param) const {
  return options(param.group).orthogonalize && param.view->layout().logical_shape().rank() == 2;
}

void MuonRule::States(const Subject&, std::vector<optim::StateSpec>& specs) const {
  specs = {{kMomentum}};
}

void MuonRule::DeclareStats(int /*phase*/, std::span<const optim::ActiveParam> params,
                            optim::StatBuffer& buffer) {
  for (const optim::ActiveParam& p : params) {
    const int64_t numel = p.view->layout().logical_shape().numel();
    buffer.AddSums(*p.view, IsOrthogonal(p) ? numel : 1);
  }
}

// Of a matrix each element is a sum of its own, to which one rank's part of the momentum adds.
std::string MuonRule::ComputeStats(int /*phase*/, const optim::RuleStep& step,
                                   optim::StatBuffer& buffer) {
  const double scale = step.decision.grad_scale();
  size_t entry = 0;
  for (const optim::ActiveParam& p : step.params) {
    const bool orthogonal = IsOrthogonal(p);
    const MuonOptions& o = options(p.group);
    const int64_t offset = buffer.sum_entries()[entry++].offset;
    ForHost(p, [&]<typename W>(W* /*weights*/, const auto* grad) {
      const W* momentum = p.view->state(kMomentum).template data<W>();
      W* sums = buffer.sums<W>(offset);
      ForEachElement(*p.view, [&](int64_t local, int64_t whole) {
        const double g = Scaled(grad[local], scale);
        const double next = NextMomentum(o, static_cast<double>(momentum[local]), g);
        const double direction = Nesterov(o, next, g);
        sums[orthogonal ? whole : 0] += W(orthogonal ? direction : direction * direction);
      });
    });
  }
  return "";
}

void MuonRule::Update(const optim::RuleStep& step) {
  const MuonOptions& o = options(step.group);
  const double scale = step.decision.grad_scale();
  for (const optim::ActiveParam& p : step.params) {
    const bool orthogonal = IsOrthogonal(p);
    std::vector<double> sums = TotalsOf(*p.view, step.totals[0]);
    double rate = o.lr;
    if (orthogonal) {
      const apogee::Shape& shape = p.view->layout().logical_shape();
      Orthogonalize(sums, shape[0], shape[1]);
      const double aspect = static_cast<double>(shape[0]) / static_cast<double>(shape[1]);
      rate *= std::sqrt(std::max(1.0, aspect));
    } else {
      rate /= std::sqrt(sums[0]) + kSmallestNorm;
    }
    ForHost(p, [&]<typename W>(W* w, const auto* grad) {
      W* momentum = p.view->state(kMomentum).template data<W>();
      ForEachElement(*p.view, [&](int64_t local, int64_t whole) {
        const double g = Scaled(grad[local], scale);
        const double next = NextMomentum(o, static_cast<double>(momentum[local]), g);
        momentum[local] = W(next);
        const double change = orthogonal ? sums[static_cast<size_t>(whole)] : Nesterov(o, next, g);
        w[local] = W(w[local] * (1 - o.lr * o.weight_decay) - rate * change);
      });
    });
  }
}

}  // namespace outside
