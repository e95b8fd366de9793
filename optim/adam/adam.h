// SPDX-License-Identifier: Apache-2.0

// Adam (Kingma and Ba, ICLR 2015) and AdamW (Loshchilov and Hutter, ICLR 2019) as in torch.optim,
// and AdamW as in Hugging Face transformers.
//
//   optim::AdamW optimizer({{.params = decayed, .options = {.lr = 3e-4, .weight_decay = 0.1}},
//                           {.params = others, .options = {.lr = 3e-4, .weight_decay = 0}}});
//   optim::Adam plain(model.Parameters(), {.lr = 1e-3, .amsgrad = true});
//
// With t the parameter's own step count from 1, c1 = 1 - beta1^t and c2 = 1 - beta2^t (both 1
// without correct_bias):
//   Adam:   g = grad + weight_decay * w
//   AdamW:  g = grad;  w -= lr * weight_decay * w
//   m = beta1 m + (1 - beta1) g
//   v = beta2 v + (1 - beta2) g^2
//   amsgrad: vmax = max(vmax, v), used below in place of v
//   w -= lr / c1 * m / (sqrt(v) / sqrt(c2) + eps)
// With maximize, g starts from -grad. With hf_style, the update of AdamW is:
//   w -= lr sqrt(c2) / c1 * m / (sqrt(v) + eps)
//   w -= lr * weight_decay * w
//
// States per element: exp_avg, exp_avg_sq (8 bytes; 16 for f64), with amsgrad also max_exp_avg_sq
// (4 or 8 bytes). The bias corrections are computed in f64.
#ifndef APOGEE_OPTIM_ADAM_ADAM_H_
#define APOGEE_OPTIM_ADAM_ADAM_H_

#include <array>

#include "apogee/optim/optimizer.h"

namespace apogee::optim {

struct AdamOptions {
  double lr = 1e-3;
  std::array<double, 2> betas = {0.9, 0.999};
  double eps = 1e-8;
  double weight_decay = 0;  // L2: added to the gradient
  bool amsgrad = false;
  bool maximize = false;
  bool correct_bias = true;

  static constexpr const char* kName = "adam";
  static std::vector<OptionField<AdamOptions>> Fields();
};

struct AdamWOptions {
  double lr = 1e-3;
  std::array<double, 2> betas = {0.9, 0.999};
  double eps = 1e-8;
  double weight_decay = 1e-2;  // decoupled: shrinks the weights by lr * weight_decay
  bool amsgrad = false;
  bool maximize = false;
  bool correct_bias = true;
  bool hf_style = false;  // eps is added to the uncorrected root; decay after the update

  static constexpr const char* kName = "adamw";
  // The defaults of Hugging Face's AdamW: eps 1e-6, no decay, hf_style.
  static AdamWOptions HuggingFace();
  static std::vector<OptionField<AdamWOptions>> Fields();
  void Check(OptionProblems& problems) const;
};

struct AdamSettings;  // adam_element.h
// Of update number `step`, for rules that use AdamW beside their own update.
AdamSettings AdamWSettings(const AdamWOptions& options, int64_t step);

// O is AdamOptions or AdamWOptions.
template <typename O>
struct AdamRule : RuleOf<O> {
  static constexpr const char* kName = O::kName;
  explicit AdamRule(std::vector<O> groups) : RuleOf<O>(kName, std::move(groups)) {}

  OptimizerTraits traits() override { return {.shards = true, .decides_on_device = true}; }
  void Update(const RuleStep& step) override;

 protected:
  void States(const typename RuleOf<O>::Subject& of, std::vector<StateSpec>& specs) const override {
    specs = {{"exp_avg"}, {"exp_avg_sq"}};
    if (of.options.amsgrad) specs.push_back({"max_exp_avg_sq"});
  }
};

using Adam = OptimizerOf<AdamRule<AdamOptions>>;
using AdamW = OptimizerOf<AdamRule<AdamWOptions>>;
extern template class OptimizerOf<AdamRule<AdamOptions>>;
extern template class OptimizerOf<AdamRule<AdamWOptions>>;

}  // namespace apogee::optim

#endif  // APOGEE_OPTIM_ADAM_ADAM_H_
