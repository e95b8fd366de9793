// SPDX-License-Identifier: Apache-2.0

#include "apogee/plugins/data_parallel.h"

#include <utility>

#include "apogee/plugins/sharding/engine.h"

namespace apogee {

DataParallelPlugin::DataParallelPlugin(std::unique_ptr<DataParallelEngine> engine)
    : engine_(std::move(engine)) {}
DataParallelPlugin::~DataParallelPlugin() = default;

void DataParallelPlugin::Check(nn::Module& model, optim::Optimizer& optimizer) const {
  engine_->Check(model, optimizer);
}
optim::Optimizer& DataParallelPlugin::Configure(nn::Module& model, optim::Optimizer& optimizer) {
  return engine_->Configure(model, optimizer);
}
void DataParallelPlugin::Backward(const Tensor& loss, optim::Optimizer& /*optimizer*/) {
  engine_->Backward(loss);
}
std::shared_ptr<void> DataParallelPlugin::NoSync() { return engine_->NoSync(); }
comm::GroupPtr DataParallelPlugin::group() const { return engine_->group(); }
comm::GroupPtr DataParallelPlugin::data_group() const { return engine_->group(); }
Layout DataParallelPlugin::LayoutOf(const autograd::Parameter& parameter) const {
  return engine_->LayoutOf(parameter);
}
Tensor DataParallelPlugin::WholeValue(const autograd::Parameter& parameter) const {
  return engine_->WholeValue(parameter);
}
optim::LossScaler* DataParallelPlugin::loss_scaler() { return engine_->loss_scaler(); }

}  // namespace apogee
