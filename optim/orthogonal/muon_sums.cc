// SPDX-License-Identifier: Apache-2.0

// Muon's way over ranks by sums of products (gram_sums.h): a maximum in the first phase, then a sum
// for each step of Newton-Schulz.
#include <algorithm>
#include <memory>
#include <utility>

#include "apogee/optim/orthogonal/gram_sums.h"
#include "apogee/optim/orthogonal/matrix_rule_steps.h"
#include "apogee/optim/orthogonal/muon.h"

namespace apogee::optim {
namespace {

// With the maximum six messages; an owner takes two.
constexpr int64_t kMostSums = 5;

}  // namespace

MuonRule::MuonRule(std::vector<MuonOptions> groups) : MatrixRule(std::move(groups)) {}
MuonRule::~MuonRule() = default;

bool MuonRule::HasOwnSums(const ParamView& view, const MuonOptions& options) const {
  return GramPartsOf(view, options).has_value();
}

std::optional<GramParts> MuonRule::GramPartsOf(const ParamView& view,
                                               const MuonOptions& options) const {
  if (!view.sharded() || !IsMatrix(view, options) || options.ns_steps > kMostSums ||
      options.ns_bf16 || options.normalize_rows) {
    return std::nullopt;
  }
  const std::vector<MatrixPart> matrices = Parts(view, options);
  std::optional<GramParts> parts = PartsForGram(view.layout(), matrices);
  if (parts && !GramCostsLess(*parts, matrices, options.ns_steps)) parts.reset();
  return parts;
}

OptimizerTraits MuonRule::traits() {
  OptimizerTraits traits = MatrixRule::traits();
  traits.num_stat_phases = std::max<int>(traits.num_stat_phases, 1 + kMostSums);
  return traits;
}

void MuonRule::DeclareStats(int phase, std::span<const ActiveParam> params, StatBuffer& buffer) {
  if (phase == kFirstPhase) iterations_.clear();
  MatrixRule::DeclareStats(phase, params, buffer);
  for (const ActiveParam& param : params) {
    const MuonOptions& o = options(param.group);
    const std::optional<GramParts> parts = GramPartsOf(*param.view, o);
    if (!parts) continue;
    if (phase == kFirstPhase) {
      buffer.AddMaxima(*param.view, 1);
    } else if (phase <= o.ns_steps) {
      buffer.AddSums(*param.view, parts->NumSums());
    }
  }
}

std::string MuonRule::ComputeStats(int phase, const RuleStep& step, StatBuffer& buffer) {
  std::string problem = MatrixRule::ComputeStats(phase, step, buffer);
  for (const ActiveParam& param : step.params) {
    const ParamView& view = *param.view;
    const MuonOptions& o = options(param.group);
    std::optional<GramParts> parts = GramPartsOf(view, o);
    if (!parts || phase > o.ns_steps) continue;
    if (phase == kFirstPhase) {
      const Tensor own = Gathered(param, o, step.decision.grad_scale());
      auto iteration = std::make_unique<GramIteration>(own, *std::move(parts), o.Iteration());
      const int64_t at = FindEntry(buffer.max_entries(), &view)->offset;
      StatSlice(buffer, StatSection::kMaxima, at, 1).Fill(iteration->Largest());
      iterations_[&view] = std::move(iteration);
      continue;
    }
    GramIteration& iteration = *iterations_.at(&view);
    const StatBuffer& before = step.totals[static_cast<size_t>(phase - 1)];
    if (phase == kFirstPhase + 1) {
      const int64_t at = FindEntry(before.max_entries(), &view)->offset;
      iteration.SetLargest(StatNumber(before, StatSection::kMaxima, at));
    } else {
      iteration.Advance(TotalsOf(before, view));
    }
    const StatBuffer::Entry& entry = *FindEntry(buffer.sum_entries(), &view);
    iteration.Write(StatSlice(buffer, StatSection::kSums, entry.offset, entry.count));
  }
  return problem;
}

void MuonRule::Update(const RuleStep& step) {
  const int64_t last = options(step.group).ns_steps;
  for (const ActiveParam& param : step.params) {
    const auto found = iterations_.find(param.view);
    if (found == iterations_.end()) continue;
    found->second->Advance(TotalsOf(step.totals[static_cast<size_t>(last)], *param.view));
  }
  MatrixRule::Update(step);
}

Tensor MuonRule::UpdateFromSums(const ParamView& view, const MuonOptions& options) {
  std::vector<double> scales;
  for (const MatrixPart& part : Parts(view, options)) {
    scales.push_back(options.ScaleOf(part.rows, part.cols));
  }
  const auto found = iterations_.find(&view);
  const Tensor update = found->second->Result(scales);
  iterations_.erase(found);
  return update;
}

}  // namespace apogee::optim
