// SPDX-License-Identifier: Apache-2.0

// Adapters: the adapters of a booster's model, and their files. Internal.
#ifndef APOGEE_BOOSTER_LORA_ADAPTERS_H_
#define APOGEE_BOOSTER_LORA_ADAPTERS_H_

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "apogee/booster/lora/adapter_config.h"
#include "apogee/booster/save_options.h"
#include "apogee/checkpoint/planned_save.h"
#include "apogee/comm/group.h"
#include "apogee/plugins/plugin.h"

namespace apogee {

class Adapters {
 public:
  void Add(nn::Module& model, const nn::LoraOptions& options, const std::string& adapter);
  absl::Status Add(nn::Module& model, const std::string& dir, const std::string& adapter,
                   const std::optional<nn::QuantizeOptions>& quantize,
                   const std::shared_ptr<checkpoint::FileSystem>& files);

  // The functions below throw Error for an unknown adapter; `call` is for its message.
  // Of the model's tensors, those of the adapter, still by the model's names.
  std::vector<checkpoint::TensorPart> OwnOf(const std::string& call, nn::Module& model,
                                            const std::string& adapter,
                                            const std::vector<checkpoint::TensorPart>& parts) const;
  // `parts`: of OwnOf. Collective.
  absl::StatusOr<std::unique_ptr<checkpoint::PlannedSave>> PlanSave(
      nn::Module& model, const SaveAdapterOptions& options,
      const std::vector<checkpoint::TensorPart>& parts, const comm::GroupPtr& group) const;
  // Adds the adapter to the weights, and makes all adapters inactive. Collective.
  void Merge(nn::Module& model, const Plugin& plugin, const std::string& adapter);
  // Puts the old values back.
  void Unmerge(nn::Module& model, const std::string& adapter);
  absl::Status Load(nn::Module& model, const std::string& adapter,
                    const checkpoint::CheckpointTarget& source,
                    const std::vector<checkpoint::TensorPart>& parts,
                    const comm::GroupPtr& group) const;

 private:
  const nn::LoraOptions& OptionsOf(const std::string& call, const std::string& adapter) const;

  std::map<std::string, nn::LoraOptions> adapters_;
  std::string merged_;  // "": none
  std::vector<std::pair<autograd::ParameterPtr, Tensor>> bases_;
};

}  // namespace apogee

#endif  // APOGEE_BOOSTER_LORA_ADAPTERS_H_
