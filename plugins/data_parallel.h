// SPDX-License-Identifier: Apache-2.0

// DataParallelPlugin: the base of the plugins that train over one data-parallel group: DdpPlugin,
// LowLevelZeroPlugin and GeminiPlugin. They differ in the data that each rank keeps.
//
//   std::unique_ptr<DataParallelPlugin> plugin = std::make_unique<DdpPlugin>(group, training);
//   plugin->Check(model, optimizer);          // throws what boost would throw
//   Booster booster(*plugin);
#ifndef APOGEE_PLUGINS_DATA_PARALLEL_H_
#define APOGEE_PLUGINS_DATA_PARALLEL_H_

#include <memory>

#include "apogee/plugins/plugin.h"

namespace apogee {

class DataParallelEngine;  // plugins/sharding/engine.h; engine.cc defines both classes

class DataParallelPlugin : public Plugin {
 public:
  ~DataParallelPlugin() override;

  // Throws the Error that Configure would throw, as far as this rank can tell. Changes nothing.
  void Check(nn::Module& model, optim::Optimizer& optimizer) const;
  // Collective. Broadcasts rank 0's values and random state. Throws Error, before anything has
  // changed, on a second call and for an optimizer that the plugin cannot run exactly. Throws Error
  // on every rank when the ranks' models differ in names, shapes or frozen parameters, or their
  // optimizers in groups or options.
  optim::Optimizer& Configure(nn::Module& model, optim::Optimizer& optimizer) override;
  // Collective; under NoSync only if values are sharded.
  void Backward(const Tensor& loss, optim::Optimizer& optimizer) override;
  std::shared_ptr<void> NoSync() override;
  // The group that the constructor got, twice.
  comm::GroupPtr group() const override;
  comm::GroupPtr data_group() const override;
  Layout LayoutOf(const autograd::Parameter& parameter) const override;
  // The whole value of a parameter, or of this rank's part of it if another plugin has cut the
  // parameter; a copy if values are sharded. Collective if values are sharded.
  Tensor WholeValue(const autograd::Parameter& parameter) const override;
  optim::LossScaler* loss_scaler() override;
  // Internal: for plugins that hold others.
  DataParallelEngine& engine() const { return *engine_; }

 protected:
  explicit DataParallelPlugin(std::unique_ptr<DataParallelEngine> engine);

 private:
  const std::unique_ptr<DataParallelEngine> engine_;
};

}  // namespace apogee

#endif  // APOGEE_PLUGINS_DATA_PARALLEL_H_
