// SPDX-License-Identifier: Apache-2.0

// The options of Adafactor, and helpers for optimizers whose options struct has the same members.
//
//   struct GaLoreAdafactorOptions { double lr; std::array<double, 2> eps; ... };
//   AdafactorStep step([this](int group) { return AdafactorOf(options(group)); });
//
// The equations are in adafactor.h.
#ifndef APOGEE_OPTIM_FACTORED_ADAFACTOR_OPTIONS_H_
#define APOGEE_OPTIM_FACTORED_ADAFACTOR_OPTIONS_H_

#include <array>
#include <iterator>
#include <limits>
#include <string>
#include <vector>

#include "apogee/optim/typed_optimizer.h"

namespace apogee::optim {

struct AdafactorOptions {
  // NaN: not given. relative_step requires that.
  double lr = std::numeric_limits<double>::quiet_NaN();
  std::array<double, 2> eps = {1e-30, 1e-3};
  double clip_threshold = 1;
  double decay_rate = -0.8;
  double beta1 = 0;  // 0: no momentum
  double weight_decay = 0;
  bool scale_parameter = true;
  bool relative_step = true;
  bool warmup_init = false;  // needs relative_step
  bool torch_style = false;  // needs lr; no momentum

  // The defaults of torch.optim.Adafactor.
  static AdafactorOptions Torch();
  std::vector<std::string> Problems() const;
  static std::vector<OptionField<AdafactorOptions>> Fields();
};
extern template class TypedOptimizer<AdafactorOptions>;

// rho (adafactor.h) of update number `step`, counted from 1.
double RelativeRate(const AdafactorOptions& o, int64_t step);

// AdafactorOptions and option fields from a struct with all of its members except torch_style.
template <typename Options>
AdafactorOptions AdafactorOf(const Options& o) {
  return {o.lr,         o.eps,          o.clip_threshold,  o.decay_rate,
          o.beta1,      o.weight_decay, o.scale_parameter, o.relative_step,
          o.warmup_init};
}
template <typename Options>
void AppendAdafactorFields(std::vector<OptionField<Options>>& fields) {
  using O = Options;
  const OptionField<Options> more[] = {{"lr", &O::lr},
                                       {"eps", &O::eps},
                                       {"clip_threshold", &O::clip_threshold},
                                       {"decay_rate", &O::decay_rate},
                                       {"beta1", &O::beta1},
                                       {"weight_decay", &O::weight_decay},
                                       {"scale_parameter", &O::scale_parameter},
                                       {"relative_step", &O::relative_step},
                                       {"warmup_init", &O::warmup_init}};
  fields.insert(fields.end(), std::begin(more), std::end(more));
}

// Base class for optimizers that compute their own learning rate under relative_step.
template <typename Options>
class RelativeStepOptimizer : public TypedOptimizer<Options> {
 public:
  // 0 under relative_step; set_lr then throws Error for any other rate.
  double lr(int group) const override {
    return this->options(group).relative_step ? 0 : this->options(group).lr;
  }
  void set_lr(int group, double lr) override {
    if (!this->options(group).relative_step) return TypedOptimizer<Options>::set_lr(group, lr);
    APOGEE_CHECK(lr == 0, "optimizer ", this->name(), ": a learning rate of ", lr,
                 " was set, but relative_step computes the rate; set relative_step=false and give "
                 "lr to use a schedule");
  }

 protected:
  using TypedOptimizer<Options>::TypedOptimizer;
};

}  // namespace apogee::optim

#endif  // APOGEE_OPTIM_FACTORED_ADAFACTOR_OPTIONS_H_
