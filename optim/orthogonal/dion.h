// SPDX-License-Identifier: Apache-2.0

// Dion (Ahn et al., 2025): the momentum of a matrix is made orthogonal in a space of low rank, and
// what that space leaves out stays in the momentum. Other parameters get AdamW.
//
//   optim::Dion optimizer(model.Parameters(), {.lr = 0.01, .rank_fraction = 0.25});
//
// For a gradient G, the momentum M of a matrix [m, n] and a basis Q [min(m, n), r]:
//   M = M + G;  B = M if m >= n, else M^T
//   power_iters times:  P = the orthonormal columns of B Q;  R = B^T P;  Q = R
//   M = M - (1 - mu) P R^T                               (transposed back)
//   Q = R, each column divided by its length + eps
//   w -= lr weight_decay w
//   w -= lr (m/n)^(1/2) P Q^T                            (transposed back)
// r = rank_fraction min(m, n), rounded up to a multiple of rank_multiple_of, at most min(m, n). Q
// begins with normal numbers that depend on the parameter's name alone.
//
// While M is zero, w only decays and Q keeps its directions. A column of R that is zero but for
// rounding moves nothing; the authors' code would divide it by its length.
//
// Matrices, batches of them, `sections` and the parameters that get AdamW are Muon's (muon.h), as
// are the two sums over ranks that hold parts of a matrix: one of M, one of P and R, r (m + n)
// numbers. P is computed in f64.
//
// States: momentum, 4 bytes per element; Q, 4 r min(m, n) bytes, on every rank. AdamW: 8 bytes per
// element.
#ifndef APOGEE_OPTIM_ORTHOGONAL_DION_H_
#define APOGEE_OPTIM_ORTHOGONAL_DION_H_

#include <array>
#include <utility>
#include <vector>

#include "apogee/optim/orthogonal/matrix_rule.h"

namespace apogee::optim {

struct DionOptions {
  double lr = 0.01;
  double mu = 0.95;
  double weight_decay = 0.01;
  double rank_fraction = 0.25;
  int64_t rank_multiple_of = 1;
  int64_t power_iters = 1;
  double eps = 1e-8;
  bool batch_convolutions = false;
  std::vector<int64_t> sections = {};  // rows of each; empty: one section
  bool orthogonalize = true;           // false: AdamW, for this group
  bool all_matrices = false;           // also embeddings and output layers
  double adam_scale = 0.1;
  std::array<double, 2> adam_betas = {0.9, 0.95};
  double adam_eps = 1e-8;
  bool adam_hf_style = false;  // eps is added to the uncorrected root

  static constexpr const char* kName = "dion";
  static std::vector<OptionField<DionOptions>> Fields();
  void Check(OptionProblems& problems) const;
};

class DionRule : public MatrixRule<DionOptions> {
 public:
  explicit DionRule(std::vector<DionOptions> groups) : MatrixRule(std::move(groups)) {}

 protected:
  void MatrixStates(const ParamView& view, const DionOptions& options,
                    std::vector<StateSpec>& specs) const override;
  // M + G
  Tensor Gathered(const ActiveParam& param, const DionOptions& options,
                  double grad_scale) const override;
  // P and R of each matrix; zeros while M is zero.
  int64_t NumComputed(const ParamView& view, const DionOptions& options) const override;
  void Compute(std::span<const Job> jobs) override;
  void UpdateMatrix(const ActiveParam& param, const DionOptions& options, double grad_scale,
                    const Tensor& computed) override;

 private:
  void ComputeOne(const Job& job) const;
};
using Dion = OptimizerOf<DionRule>;
extern template class OptimizerOf<DionRule>;

}  // namespace apogee::optim

#endif  // APOGEE_OPTIM_ORTHOGONAL_DION_H_
