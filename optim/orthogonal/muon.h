// SPDX-License-Identifier: Apache-2.0

// Muon (Jordan et al., 2024): the momentum of a matrix is made orthogonal. NorMuon (Li et al.,
// 2025) then normalises its rows. Other parameters get AdamW.
//
//   optim::Muon optimizer(model.Parameters(), {.lr = 0.02, .weight_decay = 0.1});
//   optim::Muon rows(model.Parameters(), optim::MuonOptions::NorMuon());
//
// For a gradient G and the momentum buffer B of a matrix [m, n], with NS of newton_schulz.h:
//   average:   B = momentum B + (1 - momentum) G;   nesterov: U = (1 - momentum) G + momentum B
//   otherwise: B = momentum B + G;                  nesterov: U = G + momentum B;  else U = B
//   O = NS(U)
//   NorMuon:   v = beta2 v + (1 - beta2) mean over columns of O^2;  R = O / (sqrt(v) + 1e-8)
//              O = R |O| / |R|
//   w -= lr weight_decay w       cautious_decay: only where O w >= 0
//   w -= lr scale O
// `scale` is update_scale, by name: keller max(1, m/n)^(1/2); rms 0.2 max(m, n)^(1/2), with AdamW's
// rates; spectral (m/n)^(1/2); none 1.
//
// A tensor of three dims is a batch of matrices, such as experts. One of more is a matrix [out,
// rest], such as a convolution's weight; with batch_convolutions a batch of matrices of its last
// two dims. `sections` splits the rows of each matrix into matrices of their own: q, k and v of a
// fused projection, or heads. Fusing does not change the update then. Parameters of fewer than two
// dims, embeddings and output layers (IsTableName; not with all_matrices), and groups with
// orthogonalize = false get AdamW (optim/adam/adam.h) with adam_betas, adam_eps and weight_decay.
// Its rate is adam_scale * lr, in these groups lr.
//
// Several ranks. Ranks with whole matrices (DDP) compute all of them. If ranks hold parts of a
// matrix, one of two ways is taken, and note() says for how many matrices:
//   owner  Two sums over the ranks: of U, and of O, which its owner (owners.h) computes. Owners are
//          chosen by the work of NS. Every rank holds both until the step ends: 8 bytes per
//          element.
//   sums   ns_steps sums of products of the parts (gram_sums.h), and one maximum. If the longer dim
//          is cut (tensor parallelism), this costs less (GramCostsLess), ns_steps is at most 5,
//          and neither ns_bf16 nor normalize_rows is set.
// Numbers of all matrices travel together, so a step has at most six messages.
//
// States: momentum_buffer, 4 bytes per element; NorMuon also row_variance, 4 bytes per row.
// AdamW: exp_avg and exp_avg_sq, 8 bytes per element.
#ifndef APOGEE_OPTIM_ORTHOGONAL_MUON_H_
#define APOGEE_OPTIM_ORTHOGONAL_MUON_H_

#include <array>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "apogee/optim/orthogonal/matrix_rule.h"

namespace apogee::optim {

class GramIteration;
struct GramParts;
struct NewtonSchulz;

struct MuonOptions {
  double lr = 0.02;
  double momentum = 0.95;
  bool nesterov = true;
  bool average = true;
  double weight_decay = 0;
  bool cautious_decay = false;
  std::string coefficients = "simple";  // of newton_schulz.h
  int64_t ns_steps = 5;
  double ns_eps = 1e-7;
  bool clamps_norm = false;
  double norm_scale = 1;
  bool ns_bf16 = false;  // iterates in bf16: updates change by 1 to 4 %
  std::string update_scale = "keller";
  bool batch_convolutions = false;
  std::vector<int64_t> sections = {};  // rows of each; empty: one section
  bool normalize_rows = false;         // NorMuon
  double beta2 = 0.95;                 // of its mean squares
  bool orthogonalize = true;           // false: AdamW, for this group
  bool all_matrices = false;           // also embeddings and output layers
  double adam_scale = 0.015;
  std::array<double, 2> adam_betas = {0.9, 0.95};
  double adam_eps = 1e-8;
  bool adam_hf_style = false;  // eps is added to the uncorrected root

  static constexpr const char* kName = "muon";
  // torch.optim.Muon: lr 1e-3, weight_decay 0.1; the norm is at least eps.
  static MuonOptions Torch();
  // Moonlight (Liu et al., 2025): lr 1e-3, weight_decay 0.1, scale rms, a sum as momentum.
  static MuonOptions Moonlight();
  // As Moonlight, with the ten steps of deepseek4.
  static MuonOptions DeepSeek4();
  // The dion repository's: lr 0.01, weight_decay 0.01, polar_express, scale spectral.
  static MuonOptions Dion();
  // Dion() with normalize_rows.
  static MuonOptions NorMuon();
  static std::vector<OptionField<MuonOptions>> Fields();
  void Check(OptionProblems& problems) const;
  NewtonSchulz Iteration() const;
  // `scale` above, for a matrix of these sizes.
  double ScaleOf(int64_t rows, int64_t cols) const;
};

class MuonRule : public MatrixRule<MuonOptions> {
 public:
  explicit MuonRule(std::vector<MuonOptions> groups);
  ~MuonRule() override;

  OptimizerTraits traits() override;
  void DeclareStats(int phase, std::span<const ActiveParam> params, StatBuffer& buffer) override;
  std::string ComputeStats(int phase, const RuleStep& step, StatBuffer& buffer) override;
  void Update(const RuleStep& step) override;

 protected:
  bool HasOwnSums(const ParamView& view, const MuonOptions& options) const override;
  void MatrixStates(const ParamView& view, const MuonOptions& options,
                    std::vector<StateSpec>& specs) const override;
  // U
  Tensor Gathered(const ActiveParam& param, const MuonOptions& options,
                  double grad_scale) const override;
  // scale O; for NorMuon then the new v.
  int64_t NumComputed(const ParamView& view, const MuonOptions& options) const override;
  // Matrices of one shape share their products.
  void Compute(std::span<const Job> jobs) override;
  void UpdateMatrix(const ActiveParam& param, const MuonOptions& options, double grad_scale,
                    const Tensor& computed) override;

 private:
  // scale O of this rank's elements, after the last sum.
  Tensor UpdateFromSums(const ParamView& view, const MuonOptions& options);
  // The parts of a matrix whose ranks sum products; nothing for any other parameter.
  std::optional<GramParts> GramPartsOf(const ParamView& view, const MuonOptions& options) const;

  // Of the step that goes on.
  std::map<const ParamView*, std::unique_ptr<GramIteration>> iterations_;
};
using Muon = OptimizerOf<MuonRule>;
extern template class OptimizerOf<MuonRule>;

}  // namespace apogee::optim

#endif  // APOGEE_OPTIM_ORTHOGONAL_MUON_H_
