// SPDX-License-Identifier: Apache-2.0

// Options and results of the Booster's saves and loads.
//
//   OkOrThrow(booster.save_training_state("run/checkpoints", {.step = step}, {.use_async = true}));
//   OkOrThrow(booster.save_model("out", {.config_json = config}));
#ifndef APOGEE_BOOSTER_SAVE_OPTIONS_H_
#define APOGEE_BOOSTER_SAVE_OPTIONS_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "apogee/booster/run_record.h"
#include "apogee/checkpoint/files/file_system.h"

namespace apogee {

// How and where a file is written.
struct FileOptions {
  // true: the call returns as soon as the data to save has been copied. A background thread writes
  // it while training continues. See wait_for_saves.
  bool use_async = false;
  std::shared_ptr<checkpoint::FileSystem> files = checkpoint::RealFileSystem();
};

struct SaveOptions {
  // Number of checkpoints to keep, the newest ones. At least 2, because the newest may turn out to
  // be damaged.
  int64_t keep = 3;
  bool use_async = false;  // as in FileOptions
  // Called on rank 0 with problems that do not fail the save: an older checkpoint that could not be
  // removed or was found damaged. Called within the save or, if that is asynchronous, within the
  // next save or wait_for_saves. The destructor prints the messages that remain. Null: stderr.
  std::function<void(const std::string&)> notice = nullptr;
  std::shared_ptr<checkpoint::FileSystem> files = checkpoint::RealFileSystem();
};

struct SaveModelOptions {
  // As in checkpoint/hf/hf_weights.h.
  bool shard = true;
  int64_t size_per_shard_mb = 5120;
  bool use_safetensors = true;
  // The text of config.json, as nn::HfModel::config_json or nn::FormatHfConfig. Its dtype becomes
  // that of the weights.
  std::string config_json = {};
  // true: writes the optimizer's f32 master weights instead of the 16-bit values that they are
  // rounded to. Parameters without masters (frozen ones, those of a plugin that keeps no masters)
  // are written as they are.
  bool f32_masters = false;
  bool use_async = false;  // as in FileOptions
  std::shared_ptr<checkpoint::FileSystem> files = checkpoint::RealFileSystem();
};

struct SaveAdapterOptions {
  std::string adapter = "default";
  // For adapter_config.json: where the base model is, and what it is for.
  std::string base_model = {};
  std::string task_type = "CAUSAL_LM";
  bool f32_masters = true;  // as in SaveModelOptions
  bool use_async = false;   // as in FileOptions
  std::shared_ptr<checkpoint::FileSystem> files = checkpoint::RealFileSystem();
};

struct LoadModelOptions {
  // false: missing and unexpected tensors are reported and not refused.
  bool strict = true;
  // model_prefix: begins the model's names but not the names in the files; names without it are not
  // in the files, and keep their values. file_prefix: the reverse. If neither is given, a prefix
  // that makes all tensors of the files fit is found by itself.
  std::string model_prefix = {}, file_prefix = {};
  std::shared_ptr<checkpoint::FileSystem> files = checkpoint::RealFileSystem();
};

// The result of resume().
struct Resumed {
  RunPosition position;
  std::string path;  // the checkpoint's
  // Sentences without control characters, about
  //   - newer checkpoints that were skipped, with the reason, newest first
  //   - settings of this run that differ from the saved ones
  //   - options of this run without effect, because the saved ones stay in force
  //   - a learning-rate schedule that differs from the saved run's
  //   - a schedule or dynamic loss scale that was saved and that this run lacks
  std::vector<std::string> notices;
};

}  // namespace apogee

#endif  // APOGEE_BOOSTER_SAVE_OPTIONS_H_
