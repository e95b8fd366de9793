// SPDX-License-Identifier: Apache-2.0

// Moe: a mixture of experts in place of an MLP (Shazeer et al., 2017; Fedus et al., "Switch
// transformers", 2021; DeepSeek-AI, "DeepSeek-V3", 2024). docs/moe.md says what it computes.
//
//   auto moe = std::make_shared<nn::Moe>(64, nn::MoeConfig{.num_experts = 8, .top_k = 2,
//                                                          .intermediate_size = 128});
//   Tensor y = (*moe)(x);                                       // x [.., 64] -> [.., 64]
//   Tensor total = autograd::Add(loss, nn::AuxiliaryLoss(model));
//
// Invalid options and scores that are not numbers throw Error. The host reads the scores, and waits
// for a GPU. In a dry run every expert gets equally many tokens.
#ifndef APOGEE_NN_MOE_MOE_H_
#define APOGEE_NN_MOE_MOE_H_

#include <memory>
#include <vector>

#include "apogee/nn/configured.h"
#include "apogee/nn/layers.h"
#include "apogee/nn/moe/moe_config.h"

namespace apogee::nn {

class MoeRouter;
class Experts;

struct MoeOptions {
  Activation activation = Activation::kSilu;
  Init init = Init::Normal(0, 0.02);
  Init residual_init = Init::Normal(0, 0.02);  // of the last matrices of the experts
};

class Moe : public Module, public Configured {
 public:
  // Throws Error that lists every invalid option.
  Moe(int64_t hidden_size, const MoeConfig& config, const MoeOptions& options = {});
  ~Moe() override;
  Tensor Forward(const Tensor& x) override;
  void DescribeConfig(ConfigTexts& texts) const override;
  bool sums_over_batch() const override;
  bool mixes_tokens() const override { return config_.capacity_factor > 0; }
  // Whether AuxiliaryLoss has something to add up.
  bool has_loss() const;
  const MoeConfig& config() const { return config_; }

  // The last forward that was no second run of Recompute.
  struct Record {
    // f32 or f64 [T, num_experts]; undefined unless a loss reads them.
    Tensor logits = {}, scores = {};
    std::vector<int64_t> chosen = {};  // top_k experts per token, ascending
    std::vector<int64_t> counts = {};  // rows by expert, behind the capacity
    int64_t num_sequences = 1;         // T = num_sequences * tokens of a sequence
  };
  const Record& record() const { return record_; }
  Record TakeRecord();
  // From now on records hold logits and scores also if no loss reads them.
  void KeepLogits() { keeps_logits_ = true; }
  // The bias of each expert in the choice, [num_experts]; null without MoeConfig::choice_bias.
  const ParameterPtr& choice_bias() const;
  // How often each expert was chosen in training since the last call, also behind the capacity.
  // Second runs of Recompute do not count.
  std::vector<int64_t> TakeChoices();
  // The sums over the ranks that share a micro-batch (SumOverBatch). Whole numbers stay exact.
  std::vector<double> SumOverRanks(const std::vector<double>& values) const;
  // The same over the ranks that share a sequence.
  std::vector<double> SumOverSequenceRanks(const std::vector<double>& values) const;

 private:
  class SharedExpert;

  Tensor RunExperts(const Tensor& x, int64_t num_sequences);
  Tensor AddShared(const Tensor& y, const Tensor& x) const;
  int64_t Capacity(int64_t num_tokens) const;
  Tensor InF64(const std::vector<double>& values) const;

  const MoeConfig config_;
  std::shared_ptr<MoeRouter> gate_;
  std::shared_ptr<Experts> experts_;
  std::shared_ptr<SharedExpert> shared_;
  std::shared_ptr<Linear> shared_gate_;
  Record record_;
  std::vector<int64_t> choices_;  // empty: none yet
  bool keeps_logits_ = false;
};

// The settings of a configuration that define the function, for ConfigOf.
std::string MoeText(const MoeConfig& config);

// The Moe layers of a model, in order of registration.
std::vector<Moe*> MoeLayers(Module& model);

// The sum of the auxiliary losses of the last forward of all layers: f32 or f64, a scalar. Takes
// the records, so call it once per forward, and add it to the loss before backward. A 0 without a
// graph if the model has no such loss. On several ranks the result is this rank's share: its mean
// over the ranks is the loss. Collective then: one all-reduce of the counts of all layers, and for
// BalanceLoss::kSequence under sequence parallelism another one.
Tensor AuxiliaryLoss(Module& model);
// The same for the layers in these modules alone; undefined if they have no such loss. Pipeline
// stages call it: booster.execute_pipeline(batch, model, criterion, &optimizer,
//                                          {.auxiliary = nn::AuxiliaryLossOf});
Tensor AuxiliaryLossOf(const std::vector<Module*>& modules);

// Balance without a loss (DeepSeek-V3): adds rate * sign(mean(c) - c) to the choice bias of each
// layer that has one, where c counts how often its experts were chosen since the last call, on all
// ranks. Call it after each optimizer step, in every window of accumulation once. It has no
// gradient, and moves no parameter. Collective: one all-reduce for all layers of a stage.
// Throws Error for a rate that is negative or not finite, and a model without such a layer.
void UpdateChoiceBias(Module& model, double rate);

}  // namespace apogee::nn

#endif  // APOGEE_NN_MOE_MOE_H_
