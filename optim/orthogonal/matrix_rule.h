// SPDX-License-Identifier: Apache-2.0

// The common part of Muon, Dion and SOAP: matrices as a whole, and AdamW for the rest.
//
// If ranks hold parts of a matrix, a step makes two sums over them, however many matrices there
// are: of the whole of it (Gathered), and of what its owner (owners.h) makes of that
// (Compute). The owner is chosen by the work m n min(m, n). Ranks with whole matrices (DDP)
// compute all of them. Until the step ends, every rank holds both buffers. A rule can have sums of
// its own instead (HasOwnSums), as Muon has.
//
// O has the fields of MatrixFields, lr and weight_decay. matrix_rule_steps.h defines the functions.
#ifndef APOGEE_OPTIM_ORTHOGONAL_MATRIX_RULE_H_
#define APOGEE_OPTIM_ORTHOGONAL_MATRIX_RULE_H_

#include <functional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "apogee/optim/optimizer.h"

namespace apogee::optim {

// Whether a name is that of an embedding or an output layer ("wte", "embed_tokens", "lm_head",
// ...).
bool IsTableName(const std::string& name);

template <typename Options>
std::vector<OptionField<Options>> BesideFields() {
  using O = Options;
  using enum OptionCheck;
  return {
      {"sections", &O::sections, kAtLeastOne, "rows of the matrices that a fused one consists of"},
      {"orthogonalize", &O::orthogonalize, {}, "false: AdamW, for this group"},
      {"all_matrices", &O::all_matrices, {}, "orthogonalizes embeddings and outputs, too"},
      {"adam_scale", &O::adam_scale, kAtLeastZero, "rate of AdamW over lr, beside matrices"},
      {"adam_betas", &O::adam_betas, kDecay, "decay rates of AdamW's moments"},
      {"adam_eps", &O::adam_eps, kAtLeastZero, "added to the root of AdamW's second moment"},
      {"adam_hf_style", &O::adam_hf_style, {}, "AdamW's eps is added to the uncorrected root"}};
}
// The same for rules with batches of matrices (muon.h).
template <typename O>
std::vector<OptionField<O>> MatrixFields() {
  return JoinFields<O>(
      {{{"batch_convolutions",
         &O::batch_convolutions,
         {},
         "tensors of more than three dims are batches of matrices of their last two"}},
       BesideFields<O>()});
}

template <typename O>
class MatrixRule : public RuleOf<O> {
 public:
  static constexpr const char* kName = O::kName;

  OptimizerTraits traits() override;
  // Problems of the sections with the matrices of a group.
  static void CheckGroup(const ParamGroup<O>& group, std::vector<std::string>& problems);
  void DeclareStats(int phase, std::span<const ActiveParam> params, StatBuffer& buffer) override;
  std::string ComputeStats(int phase, const RuleStep& step, StatBuffer& buffer) override;
  void Update(const RuleStep& step) override;
  std::string Note() const override;

 protected:
  explicit MatrixRule(std::vector<O> groups) : RuleOf<O>(kName, std::move(groups)) {}

  // Tensors of fewer dims get AdamW.
  virtual int min_rank() const { return 2; }
  // The first half of Note's line: the effect on `count` matrices.
  virtual std::string Effect(int count) const {
    return internal::Concat("makes the updates of ", count, " matrices orthogonal");
  }
  // Whether the rule has its own sums over ranks for a matrix. UpdateMatrix then gets an undefined
  // tensor.
  virtual bool HasOwnSums(const ParamView& /*view*/, const O& /*options*/) const { return false; }
  // The work of Compute, for the balance of owners; here the sum of m n min(m, n). 0: the update of
  // an element reads nothing else, and UpdateMatrix gets an undefined tensor.
  virtual int64_t Work(const ParamView& view, const O& options) const;
  // The states of a matrix.
  virtual void MatrixStates(const ParamView& view, const O& options,
                            std::vector<StateSpec>& specs) const = 0;
  // This rank's elements of the tensor that Compute needs as a whole. Changes nothing.
  virtual Tensor Gathered(const ActiveParam& param, const O& options, double grad_scale) const = 0;
  // Length of the result of Compute.
  virtual int64_t NumComputed(const ParamView& view, const O& options) const = 0;
  struct Job {
    const ParamView& view;
    const O& options;
    int64_t earlier;  // updates before this one
    Tensor whole;     // of Gathered
    Tensor to;        // zeros
  };
  // Writes the numbers that the updates need of whole tensors to each `to`. Changes nothing else of
  // a shard, because the step may still fail. Several jobs come together if they are small.
  virtual void Compute(std::span<const Job> jobs) = 0;
  virtual void UpdateMatrix(const ActiveParam& param, const O& options, double grad_scale,
                            const Tensor& computed) = 0;

  bool IsMatrix(const ParamView& view, const O& options) const {
    return options.orthogonalize && view.layout().logical_shape().rank() >= min_rank() &&
           (options.all_matrices || !IsTableName(view.name()));
  }

 private:
  // Jobs, and what follows each. They are computed when they have kBatchNumel elements.
  class Batch {
   public:
    explicit Batch(MatrixRule& rule) : rule_(rule) {}
    void Add(Job job, std::function<void(const Tensor& computed)> then);
    void Compute();

   private:
    MatrixRule& rule_;
    std::vector<Job> jobs_;
    std::vector<std::function<void(const Tensor&)>> then_;
    int64_t numel_ = 0;
  };
  bool Shares(const ParamView& view, const O& options) const {
    return view.sharded() && IsMatrix(view, options) && Work(view, options) > 0 &&
           !HasOwnSums(view, options);
  }
  void States(const typename RuleOf<O>::Subject& of, std::vector<StateSpec>& specs) const override;
};

}  // namespace apogee::optim

#endif  // APOGEE_OPTIM_ORTHOGONAL_MATRIX_RULE_H_
