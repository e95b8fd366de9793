// SPDX-License-Identifier: Apache-2.0

// LocalSgdPlugin: ranks train alone and average their weights every so many steps (Stich, "Local
// SGD Converges Fast and Communicates Little", 2019).
//
//   LocalSgdPlugin plugin(world.group(), {.precision = apogee::Precision::kBf16}, {.every = 8});
//   Booster booster(plugin);
#ifndef OUTSIDE_APP_LOCAL_SGD_H_
#define OUTSIDE_APP_LOCAL_SGD_H_

#include <cstdint>
#include <memory>
#include <string>

#include "apogee/apogee.h"

namespace outside {

struct LocalSgdOptions {
  int64_t every = 8;  // steps between two averages
};

class LocalSgdPlugin : public apogee::Plugin, private apogee::StepListener {
 public:
  // Throws Error for options that make no sense.
  LocalSgdPlugin(apogee::comm::GroupPtr group, const apogee::TrainingOptions& training,
                 const LocalSgdOptions& options = {});
  ~LocalSgdPlugin() override;

  std::string name() const override { return "local_sgd"; }
  apogee::comm::GroupPtr group() const override { return group_; }
  apogee::comm::GroupPtr data_group() const override { return nullptr; }
  apogee::optim::Optimizer& Configure(apogee::nn::Module& model,
                                      apogee::optim::Optimizer& optimizer) override;
  void Backward(const apogee::Tensor& loss, apogee::optim::Optimizer& /*optimizer*/) override {
    apogee::autograd::Backward(loss);
  }
  std::shared_ptr<void> NoSync() override { return nullptr; }

 private:
  void AfterStep() override;
  // Weights and floating states. Collective.
  void Average();

  apogee::comm::GroupPtr group_;
  apogee::TrainingOptions training_;
  LocalSgdOptions options_;
  bool configured_ = false;
  int64_t steps_ = 0;
  apogee::Watched<apogee::optim::Optimizer> optimizer_;
  apogee::Subscription own_;  // ends with the plugin, which the optimizer may outlive
};

}  // namespace outside

#endif  // OUTSIDE_APP_LOCAL_SGD_H_
