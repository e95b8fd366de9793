// SPDX-License-Identifier: Apache-2.0

// Booster: saves and loads parts of a training state, and saves in the background.
#include <algorithm>
#include <cstdio>
#include <utility>

#include "apogee/booster/booster.h"
#include "apogee/booster/call_site.h"
#include "apogee/booster/replica_check.h"
#include "apogee/booster/state_sections.h"
#include "apogee/checkpoint/agreement.h"
#include "apogee/checkpoint/checkpoint_writer.h"
#include "apogee/core/text/text.h"
#include "apogee/optim/core/local_gradients.h"
#include "apogee/tensor/cpu/cpu_context.h"

namespace apogee {
namespace {

using FilesPtr = std::shared_ptr<checkpoint::FileSystem>;

std::vector<checkpoint::TensorPart> WeightsOf(const nn::Module& model, const Plugin& plugin) {
  std::vector<checkpoint::TensorPart> parts;
  for (const auto& parameter : model.Parameters()) {
    parts.push_back({parameter->name(), parameter->data(), plugin.LayoutOf(*parameter)});
  }
  return parts;
}

}  // namespace

Booster::~Booster() {
  // Objects that the caller's notice function uses may be gone, so print to stderr.
  notice_ = [](const std::string& text) { std::fprintf(stderr, "%s\n", text.c_str()); };
  const absl::Status status = wait_for_saves();
  if (!status.ok()) std::fprintf(stderr, "the last save failed: %s\n", Message(status).c_str());
}

void Booster::CheckBoosted(const char* what) const {
  APOGEE_CHECK(model_ != nullptr, what, ": call boost(model, optimizer) first");
  const char* gone = model_.is_gone()            ? "model that was given to boost"
                     : optimizer_.is_gone()      ? "optimizer that boost returned"
                     : watched_plugin_.is_gone() ? "plugin of this booster"
                                                 : nullptr;
  APOGEE_CHECK(gone == nullptr, what, ": the ", gone,
               " has been destroyed; keep it for as long as its booster is used");
}

void Booster::CheckScheduler(const char* what) const {
  APOGEE_CHECK(!scheduler_.is_gone(), what,
               ": the scheduler that was given to boost has been destroyed; keep it for as long as "
               "its booster is used");
}

void Booster::SyncReplicas() {
  plugin_.BeforeSave(*optimizer_);
  auto* local = dynamic_cast<optim::LocalGradientOptimizer*>(optimizer_.get());
  if (local != nullptr) local->SyncReplicas();
}

absl::Status Booster::wait_for_saves() {
  if (saver_ == nullptr) return absl::OkStatus();
  absl::Status status = saver_->Wait();
  if (const auto notices = std::exchange(notices_, nullptr)) {
    std::ranges::for_each(*notices, notice_);
  }
  return status;
}

std::optional<absl::Status> Booster::save_status() {
  return saver_ == nullptr ? absl::OkStatus() : saver_->Peek();
}

absl::Status Booster::Write(bool use_async, const SavePtr& save,
                            checkpoint::BackgroundSaver::Write write) {
  if (saver_ == nullptr) {
    saver_ = std::make_unique<checkpoint::BackgroundSaver>(plugin_.group());
  }
  if (!use_async) {
    const TraceSpan span(compute_lane_, "save", {.category = "checkpoint"});
    return write(saver_->group());
  }
  save->Snapshot();
  saver_->Start([write = std::move(write), lane = saver_lane_](const comm::GroupPtr& group) {
    const TraceSpan span(lane, "save", {.category = "checkpoint"});
    return write(group);
  });
  return absl::OkStatus();
}

absl::Status Booster::WriteTo(const std::string& path, bool use_async, const FilesPtr& files,
                              const SavePtr& save) {
  return Write(use_async, save, [save, files, path](const comm::GroupPtr& group) {
    return save->Write({files, path}, group);
  });
}

absl::Status Booster::save_model(const std::string& path, const SaveModelOptions& options) try {
  CheckBoosted("save_model");
  APOGEE_RETURN_IF_ERROR(wait_for_saves());
  SyncReplicas();
  const std::vector<checkpoint::TensorPart> parts = WeightsOf(*model_, plugin_);
  APOGEE_RETURN_IF_ERROR(CheckReplicas("save_model", parts, plugin_.group()));
  APOGEE_ASSIGN_OR_RETURN(const SavePtr save, checkpoint::PlanModelWeights(
                                                  parts,
                                                  {.shard = options.shard,
                                                   .size_per_shard_mb = options.size_per_shard_mb,
                                                   .use_safetensors = options.use_safetensors,
                                                   .config_json = options.config_json},
                                                  plugin_.group()));
  return WriteTo(path, options.use_async, options.files, save);
} catch (const comm::CommError& error) {
  Rethrow("save_model", error);
}

absl::StatusOr<checkpoint::LoadReport> Booster::load_model(const std::string& path,
                                                           const LoadModelOptions& options) try {
  CheckBoosted("load_model");
  if (saver_ != nullptr) saver_->Settle();  // the running save may write these files
  // If ranks step alone, the next average would overwrite the loaded values.
  SyncReplicas();
  std::vector<checkpoint::TensorPart> parts = WeightsOf(*model_, plugin_);
  // Masters are read from the file, not from the weights, which are rounded to the working dtype.
  for (const optim::ParamView& view : optimizer_->views()) {
    if (view.own_master().defined())
      parts.push_back({view.name(), view.own_master(), view.layout()});
  }
  return checkpoint::LoadModelWeights({options.files, path}, parts,
                                      {.strict = options.strict,
                                       .model_prefix = options.model_prefix,
                                       .file_prefix = options.file_prefix},
                                      plugin_.group());
} catch (const comm::CommError& error) {
  Rethrow("load_model", error);
}

absl::Status Booster::save_optimizer(const std::string& path, const FileOptions& options) try {
  CheckBoosted("save_optimizer");
  APOGEE_RETURN_IF_ERROR(wait_for_saves());
  SyncReplicas();
  Attributes attributes;
  checkpoint::CheckpointContents contents;
  AddOptimizer(*optimizer_, attributes, contents.parts);
  APOGEE_RETURN_IF_ERROR(CheckReplicas("save_optimizer", contents.parts, plugin_.group()));
  contents.attributes = attributes.values();
  APOGEE_ASSIGN_OR_RETURN(const SavePtr save,
                          checkpoint::PlanCheckpoint(std::move(contents), plugin_.group()));
  return WriteTo(path, options.use_async, options.files, save);
} catch (const comm::CommError& error) {
  Rethrow("save_optimizer", error);
}

absl::Status Booster::load_optimizer(const std::string& path, const FilesPtr& files) try {
  CheckBoosted("load_optimizer");
  if (saver_ != nullptr) saver_->Settle();
  SyncReplicas();  // for the weights, which this does not load
  optim::StateDict dict;
  const auto read = [&]() -> absl::Status {
    APOGEE_ASSIGN_OR_RETURN(const auto reader, checkpoint::CheckpointReader::Open(files, path));
    const Attributes attributes(reader.attributes(), path);
    SectionReader sections(reader, attributes);
    APOGEE_ASSIGN_OR_RETURN(dict, sections.ReadOptimizer(*optimizer_));
    APOGEE_RETURN_IF_ERROR(sections.status());
    return optimizer_->CheckStateDict(dict);
  };
  APOGEE_RETURN_IF_ERROR(
      checkpoint::AgreeOnStatus(read(), plugin_.group(), CpuContext({.num_threads = 1})));
  return optimizer_->load_state_dict(dict);
} catch (const comm::CommError& error) {
  Rethrow("load_optimizer", error);
}

absl::Status Booster::save_lr_scheduler(const std::string& path, const FileOptions& options) try {
  CheckBoosted("save_lr_scheduler");
  APOGEE_CHECK(scheduler_ != nullptr, "save_lr_scheduler: boost was given no scheduler");
  CheckScheduler("save_lr_scheduler");
  APOGEE_RETURN_IF_ERROR(wait_for_saves());
  Attributes attributes;
  AddSchedule(*scheduler_, attributes);
  APOGEE_ASSIGN_OR_RETURN(const SavePtr save,
                          checkpoint::PlanCheckpoint({attributes.values(), {}}, plugin_.group()));
  return WriteTo(path, options.use_async, options.files, save);
} catch (const comm::CommError& error) {
  Rethrow("save_lr_scheduler", error);
}

absl::Status Booster::load_lr_scheduler(const std::string& path, const FilesPtr& files) try {
  CheckBoosted("load_lr_scheduler");
  APOGEE_CHECK(scheduler_ != nullptr, "load_lr_scheduler: boost was given no scheduler");
  CheckScheduler("load_lr_scheduler");
  if (saver_ != nullptr) saver_->Settle();
  SavedSchedule saved;
  const auto read = [&]() -> absl::Status {
    APOGEE_ASSIGN_OR_RETURN(const auto reader, checkpoint::CheckpointReader::Open(files, path));
    const Attributes attributes(reader.attributes(), path);
    APOGEE_ASSIGN_OR_RETURN(saved, SectionReader(reader, attributes).ReadSchedule());
    return absl::OkStatus();
  };
  const ContextPtr context = CpuContext({.num_threads = 1});
  APOGEE_RETURN_IF_ERROR(checkpoint::AgreeOnStatus(read(), plugin_.group(), context));
  return checkpoint::AgreeOnStatus(scheduler_->load_state_dict(saved.state), plugin_.group(),
                                   context);
} catch (const comm::CommError& error) {
  Rethrow("load_lr_scheduler", error);
}

absl::Status Booster::check_space(const std::string& folder, int64_t checkpoints,
                                  const FilesPtr& files) const {
  CheckBoosted("check_space");
  const TrainingState state({*model_, *optimizer_, scheduler_, plugin_, nullptr});
  APOGEE_ASSIGN_OR_RETURN(const auto save, state.Plan({}));
  const int64_t bytes = save->total_bytes();
  const absl::StatusOr<int64_t> free = files->FreeBytes(folder);
  absl::Status status;
  // If the file system cannot tell, there may be room; if the folder is missing, there is none.
  if (absl::IsNotFound(free.status())) status = free.status();
  if (free.ok() && *free < checkpoints * bytes) {
    status = absl::ResourceExhaustedError(internal::Concat(
        folder, ": ", checkpoints, " checkpoints of ", FormatBytes(bytes), " need ",
        FormatBytes(checkpoints * bytes), ", only ", FormatBytes(*free), " are free"));
  }
  return checkpoint::AgreeOnStatus(status, plugin_.group(), CpuContext({.num_threads = 1}));
}

}  // namespace apogee
