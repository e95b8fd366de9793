// SPDX-License-Identifier: Apache-2.0

#include "apogee/booster/state_files.h"

#include <map>
#include <set>
#include <utility>

#include "apogee/booster/lora/adapters.h"
#include "apogee/booster/replica_check.h"
#include "apogee/booster/state_sections.h"
#include "apogee/checkpoint/agreement.h"
#include "apogee/checkpoint/checkpoint_writer.h"
#include "apogee/nn/lora/lora.h"

namespace apogee {
namespace {

std::vector<checkpoint::TensorPart> WeightsOf(const nn::Module& model, const Plugin& plugin) {
  std::vector<checkpoint::TensorPart> parts;
  for (const auto& [parameter, layout] : PlacedTensors(model, plugin)) {
    parts.push_back({parameter->name(), parameter->data(), layout});
  }
  return parts;
}

// Puts master weights in the place of the values that they were rounded to. Of a tensor that has
// masters on some rank, a rank without takes no part in the save. Collective.
void UseMasters(const optim::Optimizer& optimizer, const comm::GroupPtr& group,
                std::vector<checkpoint::TensorPart>& parts) {
  std::map<std::string, const optim::ParamView*> masters;  // of this rank
  std::string names;
  for (const optim::ParamView& view : optimizer.views()) {
    if (!view.own_master().defined()) continue;
    masters[view.name()] = &view;
    names += view.name() + '\0';
  }
  std::set<std::string> anywhere;
  for (const std::string& text : checkpoint::GatherTexts(names, group)) {
    for (size_t begin = 0; begin < text.size();) {
      const size_t end = text.find('\0', begin);
      anywhere.insert(text.substr(begin, end - begin));
      begin = end + 1;
    }
  }
  for (checkpoint::TensorPart& part : parts) {
    if (!anywhere.contains(part.name)) continue;
    const auto here = masters.find(part.name);
    if (here != masters.end()) {
      part.value = here->second->own_master();
      part.layout = here->second->layout();
    } else {
      part.value = Tensor::Empty({0}, DType::kF32, part.value.context());
      part.layout = Layout(part.layout.logical_shape(), LayoutOptions{});
    }
  }
}

// The factors of adapters, by name, if none is active: then the weights are the model.
std::set<std::string> UnusedFactors(nn::Module& model) {
  std::set<std::string> names;
  for (const auto& [name, layer] : nn::AdaptedLayers(model)) {
    for (const nn::LoraFactors& factors : layer->adapters()) {
      if (factors.is_active) return {};
      for (const auto& factor : {factors.a, factors.b, factors.magnitude}) {
        if (factor != nullptr) names.insert(factor->name());
      }
    }
  }
  return names;
}

}  // namespace

absl::Status StateFiles::Write(const std::string& path, bool use_async, const Files& files,
                               const SaveRunner::Save& save) {
  return runner_.Run(use_async, parts_.plugin.group(), save,
                     [save, files, path](const comm::GroupPtr& group) {
                       return save->Write({files, path}, group);
                     });
}

absl::Status StateFiles::SaveModel(const std::string& path, const SaveModelOptions& options) {
  APOGEE_RETURN_IF_ERROR(runner_.Wait());
  SyncReplicas(parts_.plugin, parts_.optimizer);
  std::vector<checkpoint::TensorPart> parts = WeightsOf(parts_.model, parts_.plugin);
  const std::set<std::string> unused = UnusedFactors(parts_.model);
  std::erase_if(parts, [&](const auto& part) { return unused.contains(part.name); });
  if (options.f32_masters) UseMasters(parts_.optimizer, parts_.plugin.group(), parts);
  APOGEE_RETURN_IF_ERROR(CheckReplicas("save_model", parts, parts_.plugin.group()));
  APOGEE_ASSIGN_OR_RETURN(
      const SaveRunner::Save save,
      checkpoint::PlanModelWeights(parts,
                                   {.shard = options.shard,
                                    .size_per_shard_mb = options.size_per_shard_mb,
                                    .use_safetensors = options.use_safetensors,
                                    .config_json = options.config_json},
                                   parts_.plugin.group()));
  return Write(path, options.use_async, options.files, save);
}

absl::StatusOr<checkpoint::LoadReport> StateFiles::LoadModel(const std::string& path,
                                                             const LoadModelOptions& options) {
  runner_.Settle();  // the running save may write these files
  // If ranks step alone, the next average would overwrite the loaded values.
  SyncReplicas(parts_.plugin, parts_.optimizer);
  return checkpoint::LoadModelWeights({options.files, path}, PartsToLoad(),
                                      {.strict = options.strict,
                                       .model_prefix = options.model_prefix,
                                       .file_prefix = options.file_prefix},
                                      parts_.plugin.group());
}

// Masters are read from the file, not from the weights, which are rounded to the working dtype.
std::vector<checkpoint::TensorPart> StateFiles::PartsToLoad() const {
  std::vector<checkpoint::TensorPart> parts = WeightsOf(parts_.model, parts_.plugin);
  for (const optim::ParamView& view : parts_.optimizer.views()) {
    if (view.own_master().defined())
      parts.push_back({view.name(), view.own_master(), view.layout()});
  }
  return parts;
}

absl::Status StateFiles::SaveAdapter(const Adapters& adapters, const std::string& path,
                                     const SaveAdapterOptions& options) {
  APOGEE_RETURN_IF_ERROR(runner_.Wait());
  SyncReplicas(parts_.plugin, parts_.optimizer);
  const comm::GroupPtr group = parts_.plugin.group();
  std::vector<checkpoint::TensorPart> parts = adapters.OwnOf(
      "save_adapter", parts_.model, options.adapter, WeightsOf(parts_.model, parts_.plugin));
  if (options.f32_masters) UseMasters(parts_.optimizer, group, parts);
  APOGEE_RETURN_IF_ERROR(CheckReplicas("save_adapter", parts, group));
  APOGEE_ASSIGN_OR_RETURN(const SaveRunner::Save save,
                          adapters.PlanSave(parts_.model, options, parts, group));
  return Write(path, options.use_async, options.files, save);
}

absl::Status StateFiles::LoadAdapter(const Adapters& adapters, const std::string& path,
                                     const std::string& adapter, const Files& files) {
  runner_.Settle();
  SyncReplicas(parts_.plugin, parts_.optimizer);
  return adapters.Load(parts_.model, adapter, {files, path},
                       adapters.OwnOf("load_adapter", parts_.model, adapter, PartsToLoad()),
                       parts_.plugin.group());
}

absl::Status StateFiles::SaveOptimizer(const std::string& path, const FileOptions& options) {
  APOGEE_RETURN_IF_ERROR(runner_.Wait());
  SyncReplicas(parts_.plugin, parts_.optimizer);
  Attributes attributes;
  checkpoint::CheckpointContents contents;
  AddOptimizer(parts_.optimizer, attributes, contents.parts);
  APOGEE_RETURN_IF_ERROR(CheckReplicas("save_optimizer", contents.parts, parts_.plugin.group()));
  contents.attributes = attributes.values();
  APOGEE_ASSIGN_OR_RETURN(const SaveRunner::Save save,
                          checkpoint::PlanCheckpoint(std::move(contents), parts_.plugin.group()));
  return Write(path, options.use_async, options.files, save);
}

absl::Status StateFiles::LoadOptimizer(const std::string& path, const Files& files) {
  runner_.Settle();
  SyncReplicas(parts_.plugin, parts_.optimizer);  // for the weights, which this does not load
  optim::StateDict dict;
  const auto read = [&]() -> absl::Status {
    APOGEE_ASSIGN_OR_RETURN(const auto reader, checkpoint::CheckpointReader::Open(files, path));
    const Attributes attributes(reader.attributes(), path);
    SectionReader sections(reader, attributes);
    APOGEE_ASSIGN_OR_RETURN(dict, sections.ReadOptimizer(parts_.optimizer));
    APOGEE_RETURN_IF_ERROR(sections.status());
    return parts_.optimizer.CheckStateDict(dict);
  };
  APOGEE_RETURN_IF_ERROR(checkpoint::AgreeOnStatus(read(), parts_.plugin.group()));
  return parts_.optimizer.load_state_dict(dict);
}

absl::Status StateFiles::SaveScheduler(const std::string& path, const FileOptions& options) {
  APOGEE_CHECK(parts_.scheduler != nullptr, "save_lr_scheduler: boost was given no scheduler");
  APOGEE_RETURN_IF_ERROR(runner_.Wait());
  Attributes attributes;
  AddSchedule(*parts_.scheduler, attributes);
  APOGEE_ASSIGN_OR_RETURN(
      const SaveRunner::Save save,
      checkpoint::PlanCheckpoint({attributes.values(), {}}, parts_.plugin.group()));
  return Write(path, options.use_async, options.files, save);
}

absl::Status StateFiles::LoadScheduler(const std::string& path, const Files& files) {
  APOGEE_CHECK(parts_.scheduler != nullptr, "load_lr_scheduler: boost was given no scheduler");
  runner_.Settle();
  SavedSchedule saved;
  const auto read = [&]() -> absl::Status {
    APOGEE_ASSIGN_OR_RETURN(const auto reader, checkpoint::CheckpointReader::Open(files, path));
    const Attributes attributes(reader.attributes(), path);
    APOGEE_ASSIGN_OR_RETURN(saved, SectionReader(reader, attributes).ReadSchedule());
    return absl::OkStatus();
  };
  APOGEE_RETURN_IF_ERROR(checkpoint::AgreeOnStatus(read(), parts_.plugin.group()));
  return checkpoint::AgreeOnStatus(parts_.scheduler->load_state_dict(saved.state),
                                   parts_.plugin.group());
}

}  // namespace apogee
