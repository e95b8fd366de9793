// SPDX-License-Identifier: Apache-2.0

// AdamW with 8-bit block-wise states (Dettmers et al., "8-bit Optimizers via Block-wise
// Quantization", ICLR 2022), as bitsandbytes' AdamW8bit: a quarter of Adam's state memory at the
// same step time.
//
//   optim::AdamW8bit optimizer(model.Parameters(), {.lr = 3e-4, .weight_decay = 0.1});
//   optim::AdamW8bit cpu(model.Parameters(), AdamW8bitOptions::Cpu());
//   optimizer.state_bytes();      // about 2.03 per parameter
//
// m and v are AdamW's, decoded before and encoded after each update; the weights see them
// unrounded:
//   m = beta1 m + (1 - beta1) g;  v = beta2 v + (1 - beta2) g^2
//   w -= lr / c1 * m / (sqrt(v / c2) + eps), with the decay w -= lr * weight_decay * w after it
//   ("cuda") or before it ("cpu"), c_i = 1 - beta_i^t absmax = largest magnitude of the block; code
//   = nearest(m / absmax)
// Blocks are blocks of the logical tensor, so that any sharding computes the same: shards are cut
// between blocks, and where they cannot be, a block's absmax is the maximum over ranks. kernel =
// "cuda" also keeps a negative first moment from being rounded to zero, as bitsandbytes' CUDA
// kernel does; "cpu" does not.
//
// States: state1, state2 (u8 codes), absmax1, absmax2 (f32 per block): 2 + 8 / block_size bytes per
// element; tensors below min_8bit_size and bits = 32: state1, state2 in f32, 8 bytes.
// percentile_clipping < 100 adds gnorm_history (the last 100 squared norms). percentile_clipping p:
// a gradient whose norm is above the p-th smallest of the tensor's last 100 is scaled down to that.
// paged: states of tensors of at least 100000 elements may live in host memory and are moved ahead
// of use; on the CPU that is where they are, so only paged_bytes() tells.
#ifndef APOGEE_OPTIM_ADAMW8BIT_H_
#define APOGEE_OPTIM_ADAMW8BIT_H_

#include <array>

#include "apogee/optim/adam8_step.h"
#include "apogee/optim/spec_cache.h"
#include "apogee/optim/typed_optimizer.h"

namespace apogee::optim {

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
  std::string kernel = "cuda";  // whose decay order and sign rule: cuda or cpu

  static constexpr const char* kName = "adamw8bit";
  static AdamW8bitOptions Cpu();
  std::vector<std::string> Problems() const;
  static std::vector<OptionField<AdamW8bitOptions>> Fields();
};
extern template class TypedOptimizer<AdamW8bitOptions>;

class AdamW8bit : public TypedOptimizer<AdamW8bitOptions> {
 public:
  AdamW8bit(std::vector<autograd::ParameterPtr> params, const AdamW8bitOptions& options)
      : AdamW8bit({{std::move(params), options}}) {}
  explicit AdamW8bit(std::vector<ParamGroup<AdamW8bitOptions>> groups)
      : TypedOptimizer(AdamW8bitOptions::kName, std::move(groups)) {}

  // Bytes of all states that exist, and of those that are paged.
  int64_t state_bytes() const;
  int64_t paged_bytes() const;

  bool SupportsShards() const override { return true; }
  bool DecidesOnDevice() const override { return true; }
  int64_t CutMultiple(const ParamView& view, int group) const override {
    return SettingsOf(group).CutMultiple(view.layout().logical_shape().numel());
  }

 protected:
  std::span<const StateSpec> StatesUnder(const ParamView& view,
                                         const AdamW8bitOptions& options) const override;
  // Norms for percentile clipping; then the scales of blocks that no rank may hold alone.
  int num_stat_phases() const override { return 2; }
  void DeclareStats(int phase, std::span<const ActiveParam> params, StatBuffer& buffer) override;
  void ComputeStats(int phase, std::span<const ActiveParam> params, const StepDecision& decision,
                    std::span<const StatBuffer> totals, StatBuffer& buffer) override;
  void Update(int group, std::span<const ActiveParam> params, const StepDecision& decision,
              std::span<const StatBuffer> totals) override;

 private:
  Adam8Settings SettingsOf(int group) const;
  // For each parameter the common scale, times what percentile clipping takes off, for update
  // `ahead` steps after the count. `squares`: totals of phase 0; `store`: the histories take them
  // in.
  std::vector<GradFactor> GradScales(std::span<const ActiveParam> params, int64_t ahead, bool store,
                                     const StepDecision& decision, const StatBuffer& squares);

  Tensor gates_;  // of GradScales, while kernels read them
  mutable SpecCache specs_;
};

}  // namespace apogee::optim

#endif  // APOGEE_OPTIM_ADAMW8BIT_H_
