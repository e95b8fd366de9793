// SPDX-License-Identifier: Apache-2.0

// The functions of MatrixRule, for the sources of its rules.
#ifndef APOGEE_OPTIM_ORTHOGONAL_MATRIX_RULE_STEPS_H_
#define APOGEE_OPTIM_ORTHOGONAL_MATRIX_RULE_STEPS_H_

#include <algorithm>
#include <numeric>
#include <string>
#include <vector>

#include "apogee/core/text/text.h"
#include "apogee/optim/adam/adam.h"
#include "apogee/optim/core/make_chunks.h"
#include "apogee/optim/core/stat_values.h"
#include "apogee/optim/orthogonal/matrices.h"
#include "apogee/optim/orthogonal/matrix_rule.h"

namespace apogee::optim {

// A phase without numbers costs nothing. Muon's own sums begin with the first one.
constexpr int kFirstPhase = 0, kGatherPhase = 1, kComputePhase = 2, kNumMatrixPhases = 3;

// The matrices of a parameter. Rules whose options lack batch_convolutions have none: they take
// tensors of any number of dims.
template <typename O>
std::vector<MatrixPart> Parts(const ParamView& view, const O& o) {
  return MatricesIn(view.layout().logical_shape(), o.sections, o.batch_convolutions);
}
// The size of the dim that sections split.
template <typename O>
int64_t NumRows(const Shape& shape, const O& o) {
  if constexpr (requires { o.batch_convolutions; }) return RowsOf(shape, o.batch_convolutions);
  return shape[0];
}

// Of AdamW, for parameters that are not matrices.
template <typename O>
AdamSettings AdamBeside(const O& o, int64_t step) {
  AdamSettings settings = AdamWSettings({.lr = o.orthogonalize ? o.adam_scale * o.lr : o.lr,
                                         .betas = o.adam_betas,
                                         .eps = o.adam_eps,
                                         .weight_decay = o.weight_decay,
                                         .hf_style = o.adam_hf_style},
                                        step);
  // Moonlight's decays first.
  if (settings.decay_kind == DecayKind::kAfter) settings.decay_kind = DecayKind::kBefore;
  return settings;
}

template <typename O>
int64_t MatrixRule<O>::Work(const ParamView& view, const O& options) const {
  int64_t work = 0;
  if constexpr (requires { options.batch_convolutions; }) {
    for (const MatrixPart& part : Parts(view, options)) {
      work += part.rows * part.cols * std::min(part.rows, part.cols);
    }
  }
  return work;
}

template <typename O>
OptimizerTraits MatrixRule<O>::traits() {
  return {.shards = true,
          .num_stat_phases = kNumMatrixPhases,
          .of_param = [this](const ParamView& view, int group) {
            const O& o = this->options(group);
            const bool is_owned = IsMatrix(view, o) && !HasOwnSums(view, o);
            return ParamTraits{.owned_numel = is_owned ? Work(view, o) : 0};
          }};
}

template <typename O>
void MatrixRule<O>::CheckGroup(const ParamGroup<O>& group, std::vector<std::string>& problems) {
  const std::vector<int64_t>& sections = group.options.sections;
  if (!group.options.orthogonalize || sections.empty()) return;
  const int64_t sum = std::accumulate(sections.begin(), sections.end(), int64_t{0});
  for (const autograd::ParameterPtr& parameter : group.params) {
    if (parameter == nullptr || parameter->shape().rank() < 2) continue;
    if (!group.options.all_matrices && IsTableName(parameter->name())) continue;
    const int64_t rows = NumRows(parameter->shape(), group.options);
    if (rows != sum) {
      problems.push_back(internal::Concat("sections have ", sum, " rows together, but \"",
                                          parameter->name(), "\" ", parameter->shape(), " has ",
                                          rows));
    }
  }
}

template <typename O>
void MatrixRule<O>::States(const typename RuleOf<O>::Subject& of,
                           std::vector<StateSpec>& specs) const {
  if (IsMatrix(of.view, of.options)) return MatrixStates(of.view, of.options, specs);
  specs = {{"exp_avg"}, {"exp_avg_sq"}};
}

template <typename O>
void MatrixRule<O>::DeclareStats(int phase, std::span<const ActiveParam> params,
                                 StatBuffer& buffer) {
  if (phase != kGatherPhase && phase != kComputePhase) return;
  for (const ActiveParam& param : params) {
    const ParamView& view = *param.view;
    const O& o = this->options(param.group);
    if (!Shares(view, o)) continue;
    if (phase == kGatherPhase) {
      buffer.AddSums(view, view.layout().logical_shape().numel());
    } else {
      buffer.AddFromOwner(view, NumComputed(view, o));
    }
  }
}

// More elements than these do not gain from a batch.
constexpr int64_t kBatchNumel = int64_t{1} << 20;

template <typename O>
void MatrixRule<O>::Batch::Add(Job job, std::function<void(const Tensor& computed)> then) {
  numel_ += job.to.numel();
  jobs_.push_back(std::move(job));
  then_.push_back(std::move(then));
  if (numel_ >= kBatchNumel) Compute();
}

template <typename O>
void MatrixRule<O>::Batch::Compute() {
  if (!jobs_.empty()) rule_.Compute(jobs_);
  for (size_t i = 0; i < jobs_.size(); ++i) {
    then_[i](jobs_[i].to);
    jobs_[i].whole = jobs_[i].to = Tensor();
  }
  jobs_.clear();
  then_.clear();
  numel_ = 0;
}

template <typename O>
std::string MatrixRule<O>::ComputeStats(int phase, const RuleStep& step, StatBuffer& buffer) {
  if (phase != kGatherPhase && phase != kComputePhase) return "";
  Batch batch(*this);
  for (const ActiveParam& param : step.params) {
    const ParamView& view = *param.view;
    const O& o = this->options(param.group);
    if (!Shares(view, o)) continue;
    const StatBuffer::Entry& entry = *FindEntry(buffer.sum_entries(), &view);
    const Tensor to = StatSlice(buffer, StatSection::kSums, entry.offset, entry.count);
    if (phase == kGatherPhase) {
      AddOwn(view.layout(), Gathered(param, o, step.decision.grad_scale()), to);
    } else if (view.owned()) {
      const Tensor computed = Tensor::Zeros(to.shape(), view.compute_dtype(), to.context());
      batch.Add({view, o, view.step(), TotalsOf(step.totals[kGatherPhase], view), computed},
                [to](const Tensor& done) { to.CopyFrom(done); });
    }
  }
  batch.Compute();
  return "";
}

template <typename O>
void MatrixRule<O>::Update(const RuleStep& step) {
  const O& o = this->options(step.group);
  const double scale = step.decision.grad_scale();
  std::vector<ActiveParam> others;
  Batch batch(*this);
  for (const ActiveParam& param : step.params) {
    const ParamView& view = *param.view;
    if (!IsMatrix(view, o)) {
      others.push_back(param);
      continue;
    }
    const auto update = [&](const Tensor& computed) { UpdateMatrix(param, o, scale, computed); };
    if (Shares(view, o)) {
      update(TotalsOf(step.totals[kComputePhase], view));
    } else if (Work(view, o) > 0 && !HasOwnSums(view, o)) {
      const Tensor computed = Tensor::Zeros({NumComputed(view, o)}, view.compute_dtype(),
                                            param.grad.context(), MemoryCategory::kWorkspace);
      batch.Add({view, o, view.step() - 1, Gathered(param, o, scale), computed}, update);
    } else {
      update(Tensor());
    }
  }
  batch.Compute();
  if (others.empty()) return;
  const auto settings = [&](const ActiveParam& p) { return AdamBeside(o, p.view->step()); };
  RunElements(&OptimKernels::adam, others, step.decision.grad_scale(), settings,
              {"exp_avg", "exp_avg_sq"});
}

template <typename O>
std::string MatrixRule<O>::Note() const {
  int matrices = 0, owned = 0, summed = 0;
  std::vector<std::string> tables;
  this->store().ForEachView([&](const ParamView& view, int group) {
    if (!view.trainable()) return;
    if (IsMatrix(view, this->options(group))) {
      ++matrices;
      owned += Shares(view, this->options(group)) ? 1 : 0;
      summed += HasOwnSums(view, this->options(group)) ? 1 : 0;
    } else if (view.layout().logical_shape().rank() >= 2) {
      tables.push_back(view.name());
    }
  });
  if (min_rank() > 0) tables.insert(tables.begin(), "vectors");
  std::string ways;
  if (owned > 0) ways += internal::Concat("; one rank computes each of ", owned, " for the others");
  if (summed > 0) ways += internal::Concat("; ranks sum products of their parts of ", summed);
  return internal::Concat(kName, ": ", Effect(matrices), ways,
                          tables.empty() ? "" : "; AdamW trains " + JoinTexts(tables, ", "));
}

}  // namespace apogee::optim

#endif  // APOGEE_OPTIM_ORTHOGONAL_MATRIX_RULE_STEPS_H_
