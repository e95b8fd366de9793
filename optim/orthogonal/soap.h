// SPDX-License-Identifier: Apache-2.0

// SOAP (Vyas et al., 2024): Adam in the eigenbases of Shampoo's statistics. Embeddings and output
// layers get AdamW.
//
//   optim::Soap optimizer(model.Parameters(), {.lr = 3e-3, .precondition_frequency = 10});
//
// For a tensor G of gradients with dims d_1 ... d_k, of which each up to max_precond_dim has a
// matrix L_i [d_i, d_i] and a basis Q_i; G_(i) is G as a matrix [d_i, all others]:
//   first update:  L_i = (1 - b) G_(i) G_(i)^T;  Q_i = its eigenvectors. Nothing moves.
//   R = G rotated into the bases
//   m = beta1 m + (1 - beta1) R;  v = beta2 v + (1 - beta2) R^2
//   U = m / (sqrt(v) + eps), rotated back            normalize_grads: U / rms(U)
//   w -= lr sqrt(1 - beta2^t) / (1 - beta1^t) U;  w -= lr weight_decay w
//   L_i = b L_i + (1 - b) G_(i) G_(i)^T
//   if t % precondition_frequency == 0:  Q_i = the columns of L_i Q_i made orthonormal, by falling
//     diag(Q_i^T L_i Q_i); v follows that order
//   m is rotated back out of the old bases and into the new ones
// b is shampoo_beta, or beta2 if that is negative; t counts updates after the first one. With
// one_sided only the smallest dim of a tensor has a basis. A tensor of one dim has none, but for
// precondition_1d, and gets Adam as above. `sections` splits the first dim of all others into
// tensors of their own.
//
// Where L_i is singular, its null space has no eigenvectors of its own. eigen_basis.h chooses a
// basis that rounding does not move; the authors' code leaves it to rounding errors.
//
// Over ranks that hold parts of a tensor, two sums are made per step (matrix_rule.h): of G, and of
// U, which the owner computes. Only the owner keeps L, Q, m and v.
//
// States of a matrix [m, n]: exp_avg, exp_avg_sq, GG0, GG1, Q0, Q1: 8 (m n + m^2 + n^2) bytes on
// the owner, which copies those of shards until a step ends. AdamW and vectors: 8 bytes per
// element.
#ifndef APOGEE_OPTIM_ORTHOGONAL_SOAP_H_
#define APOGEE_OPTIM_ORTHOGONAL_SOAP_H_

#include <array>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "apogee/optim/orthogonal/matrix_rule.h"

namespace apogee::optim {

struct SoapOptions {
  double lr = 3e-3;
  std::array<double, 2> betas = {0.95, 0.95};
  double shampoo_beta = -1;
  double eps = 1e-8;
  double weight_decay = 0.01;
  int64_t precondition_frequency = 10;
  int64_t max_precond_dim = 10000;
  bool one_sided = false;
  bool precondition_1d = false;
  bool normalize_grads = false;
  bool correct_bias = true;
  std::vector<int64_t> sections = {};  // of the first dim; empty: one section
  bool orthogonalize = true;           // false: AdamW, for this group
  bool all_matrices = false;           // also embeddings and output layers
  double adam_scale = 1;
  std::array<double, 2> adam_betas = {0.9, 0.95};
  double adam_eps = 1e-8;
  bool adam_hf_style = false;  // eps is added to the uncorrected root

  static constexpr const char* kName = "soap";
  static std::vector<OptionField<SoapOptions>> Fields();
  void Check(OptionProblems& problems) const;
};

class SoapRule : public MatrixRule<SoapOptions> {
 public:
  explicit SoapRule(std::vector<SoapOptions> groups) : MatrixRule(std::move(groups)) {}

 protected:
  int min_rank() const override { return 0; }
  std::string Effect(int count) const override;
  int64_t Work(const ParamView& view, const SoapOptions& options) const override;
  void MatrixStates(const ParamView& view, const SoapOptions& options,
                    std::vector<StateSpec>& specs) const override;
  // G
  Tensor Gathered(const ActiveParam& param, const SoapOptions& options,
                  double grad_scale) const override;
  // U, bias corrections included.
  int64_t NumComputed(const ParamView& view, const SoapOptions& options) const override;
  void Compute(std::span<const Job> jobs) override;
  void UpdateMatrix(const ActiveParam& param, const SoapOptions& options, double grad_scale,
                    const Tensor& computed) override;

 private:
  void ComputeOne(const Job& job);

  // The states that Compute has made for shards, until the update.
  std::map<const ParamView*, std::map<std::string, Tensor>> moved_;
};
using Soap = OptimizerOf<SoapRule>;
extern template class OptimizerOf<SoapRule>;

}  // namespace apogee::optim

#endif  // APOGEE_OPTIM_ORTHOGONAL_SOAP_H_
