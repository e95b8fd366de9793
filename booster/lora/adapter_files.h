// SPDX-License-Identifier: Apache-2.0

// Folders of PEFT with one adapter: adapter_config.json and adapter_model.safetensors.
//
//   APOGEE_RETURN_IF_ERROR(AddPretrainedLora(model, "adapter", "default", {}, files).status());
//
// Booster::enable_lora, save_adapter and load_adapter are the calls for users.
#ifndef APOGEE_BOOSTER_LORA_ADAPTER_FILES_H_
#define APOGEE_BOOSTER_LORA_ADAPTER_FILES_H_

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "apogee/booster/lora/adapter_config.h"
#include "apogee/checkpoint/files/file_system.h"
#include "apogee/checkpoint/planned_save.h"

namespace apogee {

// Reads and checks the folder's adapter_config.json.
absl::StatusOr<AdapterConfig> ReadAdapterConfig(checkpoint::FileSystem& files,
                                                const std::string& dir);

// A name of AdapterTensors as the files have it.
std::string AdapterFileName(const std::string& name);

// nn::AddLora with the options and values of the folder; the same on every rank, not collective.
// InvalidArgument lists tensors that are missing, of another shape, or not of this model; the model
// is unchanged then. `quantize`: as in nn::LoraOptions. An embedding's own weight, which PEFT
// writes beside its factors, is not read.
absl::StatusOr<AdapterConfig> AddPretrainedLora(
    nn::Module& model, const std::string& dir, const std::string& adapter,
    const std::optional<nn::QuantizeOptions>& quantize,
    const std::shared_ptr<checkpoint::FileSystem>& files);

// Collective over the group. `parts`: of what AdapterTensors lists, by its names.
absl::StatusOr<std::unique_ptr<checkpoint::PlannedSave>> PlanAdapter(
    std::vector<checkpoint::TensorPart> parts, const AdapterConfig& config, bool fan_in_fan_out,
    const comm::GroupPtr& group);
absl::Status LoadAdapterValues(const checkpoint::CheckpointTarget& source,
                               std::vector<checkpoint::TensorPart> parts,
                               const comm::GroupPtr& group);

}  // namespace apogee

#endif  // APOGEE_BOOSTER_LORA_ADAPTER_FILES_H_
