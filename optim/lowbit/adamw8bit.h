// SPDX-License-Identifier: Apache-2.0

// AdamW with 8-bit block-wise states (Dettmers et al., "8-bit Optimizers via Block-wise
// Quantization", ICLR 2022), as bitsandbytes' AdamW8bit: a quarter of Adam's state memory at the
// same step time.
//
//   optim::AdamW8bit optimizer(model.Parameters(), {.lr = 3e-4, .weight_decay = 0.1});
//   optim::AdamW8bit cpu(model.Parameters(), AdamW8bitOptions::Cpu());
//   optimizer.state_bytes();      // about 2.03 per parameter
//
// The moments are decoded before each update and encoded after it; the weights use them before they
// are rounded. With c1 = 1 - beta1^t and c2 = 1 - beta2^t:
//   kernel = "cpu":   w -= lr * weight_decay * w
//   m = beta1 m + (1 - beta1) g
//   v = beta2 v + (1 - beta2) g^2
//   w -= lr / c1 * m / (sqrt(v / c2) + eps)
//   kernel = "cuda":  w -= lr * weight_decay * w
//   absmax = the largest magnitude in the block of m;  code = nearest(m / absmax);  v likewise
// kernel = "cuda" also keeps a negative first moment from being rounded to zero, as bitsandbytes'
// CUDA kernel does; "cpu" does not. Both run on any device.
//
// Blocks are blocks of the logical tensor, so every sharding computes the same. Shards are cut
// between blocks; if they cannot be, the absmax of a block is the maximum over ranks.
//
// States: state1, state2 (u8 codes) and absmax1, absmax2 (f32 per block), 2 + 8 / block_size bytes
// per element. With bits = 32, and for tensors below min_8bit_size: state1, state2 in f32, 8 bytes
// per element. percentile_clipping below 100 adds gnorm_history, the last 100 squared norms.
//
// Options of bitsandbytes:
//   percentile_clipping  p: if the norm of a tensor's gradient is above the p-th smallest of its
//                        last 100 norms, the gradient is scaled down to that; 100: off
//   paged                the states of tensors of at least 100000 elements may live in host memory
//                        and are moved to the GPU before use. On the CPU they are in host memory
//                        anyway; only paged_bytes() changes.
#ifndef APOGEE_OPTIM_LOWBIT_ADAMW8BIT_H_
#define APOGEE_OPTIM_LOWBIT_ADAMW8BIT_H_

#include <array>

#include "apogee/optim/optimizer.h"

namespace apogee::optim {

struct Adam8Settings;

struct AdamW8bitOptions {
  double lr = 1e-3;
  std::array<double, 2> betas = {0.9, 0.999};
  double eps = 1e-8;
  double weight_decay = 1e-2;
  int64_t bits = 8;              // 8 or 32
  int64_t min_8bit_size = 4096;  // elements of the logical tensor
  int64_t block_size = 256;      // a power of two, 64 to 4096; 2048 in bitsandbytes before 0.44
  bool block_wise = true;        // false: one scale per tensor
  int64_t percentile_clipping = 100;  // 100: off
  bool paged = false;
  std::string kernel = "cuda";  // decay order and sign rule: cuda or cpu

  static constexpr const char* kName = "adamw8bit";
  static AdamW8bitOptions Cpu();
  static std::vector<OptionField<AdamW8bitOptions>> Fields();
  void Check(OptionProblems& problems) const;
};

class AdamW8bitRule : public RuleOf<AdamW8bitOptions> {
 public:
  static constexpr const char* kName = AdamW8bitOptions::kName;
  explicit AdamW8bitRule(std::vector<AdamW8bitOptions> groups) : RuleOf(kName, std::move(groups)) {}

  // Phases: squared norms for percentile clipping; then the scales of blocks that several ranks may
  // hold parts of.
  OptimizerTraits traits() override;
  void DeclareStats(int phase, std::span<const ActiveParam> params, StatBuffer& buffer) override;
  std::string ComputeStats(int phase, const RuleStep& step, StatBuffer& buffer) override;
  void Update(const RuleStep& step) override;

 protected:
  void States(const Subject& of, std::vector<StateSpec>& specs) const override;

 private:
  Adam8Settings SettingsOf(int group) const;
  // For each parameter, the common gradient scale times its percentile clipping factor, for update
  // number step() + `ahead`. `squares`: totals of phase 0. `store`: adds them to the histories.
  std::vector<GradFactor> GradScales(std::span<const ActiveParam> params, int64_t ahead, bool store,
                                     const StepDecision& decision, const StatBuffer& squares);

  Tensor gates_;  // written by GradScales; kept while kernels read them
};

class AdamW8bit : public OptimizerOf<AdamW8bitRule> {
 public:
  using OptimizerOf::OptimizerOf;

  // Bytes of this rank's existing states, and of those among them that are paged.
  int64_t state_bytes() const;
  int64_t paged_bytes() const;
};
extern template class OptimizerOf<AdamW8bitRule>;

}  // namespace apogee::optim

#endif  // APOGEE_OPTIM_LOWBIT_ADAMW8BIT_H_
