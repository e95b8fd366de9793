// SPDX-License-Identifier: Apache-2.0

#include "apogee/nn/parallel/sequence_parallel.h"

#include <algorithm>

#include "apogee/autograd/head/deferred_logits.h"
#include "apogee/core/text/text.h"
#include "apogee/nn/losses.h"
#include "apogee/nn/parallel/all_to_all_attention.h"
#include "apogee/nn/parallel/plan_match.h"
#include "apogee/nn/parallel/ring_attention.h"
#include "apogee/nn/parallel/sequence_loss.h"

namespace apogee::nn::parallel {
namespace {

using enum ParallelStyle;
using internal::Concat;

Module* Find(Module& model, const std::string& name) {
  for (const auto& [known, module] : model.NamedModules()) {
    if (known == name) return module;
  }
  return nullptr;
}

}  // namespace

std::vector<std::string> SequenceProblems(Module& model, const ParallelPlan& plan,
                                          SequenceMode mode, int tp, int ranks) {
  std::vector<std::string> problems;
  Module* const sequence = Find(model, plan.sequence_module);
  if (sequence == nullptr) {
    return {Concat("sequence_module: no module has the name \"", plan.sequence_module, "\"")};
  }
  const std::vector<Module*> inside = sequence->Modules();
  const PlanMatch match(model, plan, 1);
  std::set<const Module*> attention;
  for (const auto& [module, rule] : match.modules) {
    if (rule->style != kAttention) continue;
    attention.insert(module);
    const auto* core = dynamic_cast<const AttentionCore*>(module);
    if (mode == SequenceMode::kRingAttention && core != nullptr && !core->options().causal) {
      problems.push_back(Concat(module->full_name(), " is not causal, which sp_mode ", Name(mode),
                                " needs; use all_to_all or split_gather"));
    }
    if (std::ranges::find(inside, module) == inside.end()) {
      problems.push_back(Concat("rule \"", rule->pattern, "\" (attention): names a module outside ",
                                "of the sequence_module \"", plan.sequence_module, "\""));
    }
  }
  if (attention.empty()) {
    problems.push_back(Concat("no rule says where attention is (style attention, of an ",
                              "nn::AttentionCore), which sp_mode ", Name(mode), " needs"));
  }
  for (const auto& [name, module] : model.NamedModules()) {
    if (attention.empty() || dynamic_cast<AttentionCore*>(module) == nullptr) continue;
    if (!attention.contains(module)) {
      problems.push_back(Concat(name, " is an nn::AttentionCore that no rule names"));
    }
  }
  for (const Module* module : inside) {
    if (!module->mixes_tokens()) continue;
    problems.push_back(Concat(module->full_name(),
                              " mixes tokens outside of an nn::AttentionCore, so the tokens cannot "
                              "be divided; name a sequence_module without such layers"));
  }
  for (const PlanRule& rule : plan.rules) {
    if (mode == SequenceMode::kAllToAll && rule.style == kAttention && rule.units > 0 &&
        rule.units % tp == 0 && rule.units / tp % ranks != 0) {
      problems.push_back(Concat("rule \"", rule.pattern, "\" (attention): sp_size ", ranks,
                                " does not divide the ", rule.units / tp, " ", rule.unit_name,
                                " of a rank (", rule.units, " over tp ", tp,
                                "), which sp_mode all_to_all exchanges"));
    }
    const bool unknown =
        rule.style == kColumnGather || rule.style == kRowSplit || rule.style == kParameter;
    if (mode == SequenceMode::kSplitGather && unknown) {
      problems.push_back(Concat("rule \"", rule.pattern, "\" (", ParallelStyleName(rule.style),
                                "): sp_mode split_gather has no such style; use column and row, "
                                "or no rule"));
    }
  }
  return problems;
}

SequenceParallel::SequenceParallel(Module& model, const ParallelPlan& plan, SequenceMode mode,
                                   comm::GroupPtr group)
    : mode_(mode) {
  APOGEE_CHECK(group != nullptr, "sequence parallel: needs a group");
  APOGEE_CHECK(mode != SequenceMode::kNone, "sequence parallel: needs a mode, got none");
  const bool ring = mode == SequenceMode::kRingAttention;
  const bool sums = mode == SequenceMode::kSplitGather;
  cut_.part = {.rank = group->rank(),
               .size = group->size(),
               .layout = ring ? SequenceLayout::kZigZag : SequenceLayout::kContiguous};
  cut_.factor = sums ? 1 : group->size();
  cut_.group = std::move(group);
  is_model_ = plan.sequence_module.empty();
  module_ = Find(model, plan.sequence_module);
  APOGEE_CHECK(module_ != nullptr, "sequence parallel: no module has the name \"",
               plan.sequence_module, "\"");
  const PlanMatch match(model, plan, 1);
  for (const auto& [module, rule] : match.modules) styles_.emplace_back(module, rule->style);
  if (!sums) return;
  for (const ParameterPtr& parameter : module_->Parameters()) {
    if (!match.shards.contains(parameter.get())) partial_.insert(parameter.get());
  }
}

Tensor SequenceCut::Gather(const Tensor& x) const {
  APOGEE_CHECK(!autograd::IsDeferred(x),
               "head_chunks: ranks share the sequences, and the criterion given to boost is not an "
               "nn::CrossEntropyLoss, so each rank needs the logits of all tokens, which are not "
               "computed; give boost an nn::CrossEntropyLoss, or set head_chunks = 0");
  const Tensor whole = GatherTokens(x.Unsealed(), part, group, factor);
  return x.is_sealed() ? whole.Sealed(x.why_sealed()) : whole;
}

Tensor SequenceCut::Sealed(const Tensor& y) const {
  if (y.is_sealed()) return y;
  return y.Sealed(Concat(
      "these outputs cover only this rank's ", y.size(1), " tokens of ", part.Whole(y.size(1)),
      " of each sequence: in training the model returns them so for "
      "the cross entropy given to boost; use boosted.criterion (from boost). Outputs are "
      "whole in evaluation mode, and if boost is given another criterion or none"));
}

void SequenceParallel::Apply() {
  const Module::RankSum sum = [group = cut_.group](const Tensor& x) {
    const Tensor total = x.Clone();
    group->AllReduce(total);
    return total;
  };
  for (Module* module : module_->Modules()) module->set_sequence_part(cut_.part, sum);
  for (const auto& [module, style] : styles_) {
    // Between tensor-parallel layers sequences are whole.
    const bool between =
        style == kAttention || style == kDropout || style == kHeadNorm || style == kColumnNorm;
    if (between && mode_ == SequenceMode::kSplitGather) module->set_sequence_part({});
    if (style != kAttention || mode_ == SequenceMode::kSplitGather) continue;
    const auto attend = mode_ == SequenceMode::kAllToAll ? &AllToAllAttention : &RingAttention;
    dynamic_cast<AttentionCore&>(*module).ReplaceAttention(
        [attend, group = cut_.group](const Tensor& q, const Tensor& k, const Tensor& v,
                                     const DocumentsPtr& documents,
                                     const AttentionCoreOptions& options) {
          return attend(q, k, v, group, documents, options);
        });
  }
  module_->ReplaceForward(
      [module = module_, cut = cut_, keep = keep_logits_cut_](const Tensor& x) {
        const Tensor y = module->Forward(x);
        const bool whole = y.size(1) == cut.part.Whole(x.size(1));
        if (whole) return y;
        return *keep && module->is_training() ? cut.Sealed(y) : cut.Gather(y);
      },
      [cut = cut_](const Tensor& x) { return cut.Split(x); });
}

SequenceParallel::Loss SequenceParallel::KeepLogitsCut(Loss mean, int64_t ignore_index) {
  if (mode_ == SequenceMode::kSplitGather || !is_model_) return nullptr;
  *keep_logits_cut_ = true;
  return [mean = std::move(mean), cut = cut_, ignore_index](const Tensor& output,
                                                            const Tensor& targets) {
    const Tensor logits = output.Unsealed();
    if (logits.size(1) == targets.size(1)) return mean(logits, targets);
    APOGEE_CHECK(cut.part.Whole(logits.size(1)) == targets.size(1), "cross entropy: logits ",
                 logits.shape(), " must be whole or this rank's tokens of targets ",
                 targets.shape(), ", as the model returns them in training");
    const Tensor own = TokensOf(targets, cut.part);
    return MeanOverSequence(mean(logits, own), CountTargets(own, ignore_index), cut.group);
  };
}

}  // namespace apogee::nn::parallel
