// SPDX-License-Identifier: Apache-2.0

#include "apogee/booster/training_state.h"

#include <utility>
#include <vector>

#include "apogee/booster/attributes.h"
#include "apogee/booster/lora/base_digest.h"
#include "apogee/booster/replica_check.h"
#include "apogee/booster/run_config.h"
#include "apogee/booster/state_sections.h"
#include "apogee/checkpoint/agreement.h"
#include "apogee/checkpoint/checkpoint_reader.h"
#include "apogee/checkpoint/checkpoint_writer.h"

namespace apogee {
namespace {

constexpr const char* kBaseDigest = "base/digest";

void AddRun(const TrainingParts& run, Attributes& attributes) {
  const Generator& generator = run.model.generator();
  attributes.Set("random/key_a", int64_t{generator.key().a});
  attributes.Set("random/key_b", int64_t{generator.key().b});
  attributes.Set("random/next_stream", static_cast<int64_t>(generator.state()));
  if (const optim::LossScaler* scaler = run.plugin.loss_scaler()) {
    attributes.Set("loss_scale/scale", scaler->state().scale);
    attributes.Set("loss_scale/good_steps", scaler->state().good_steps);
    attributes.Set("loss_scale/overflows", int64_t{scaler->state().overflows});
  }
  if (run.scheduler != nullptr) AddSchedule(*run.scheduler, attributes);
}

}  // namespace

absl::StatusOr<std::unique_ptr<checkpoint::PlannedSave>> TrainingState::Plan(
    const RunPosition& position) const {
  Attributes attributes;
  checkpoint::CheckpointContents contents;
  AddWeights(parts_.model, parts_.plugin, contents.parts);
  AddOptimizer(parts_.optimizer, attributes, contents.parts);
  AddRun(parts_, attributes);
  const comm::GroupPtr group = parts_.plugin.group();
  APOGEE_RETURN_IF_ERROR(CheckReplicas("save_training_state", contents.parts, group));
  APOGEE_ASSIGN_OR_RETURN(const std::string base, BaseDigest(parts_.model, parts_.plugin));
  if (!base.empty()) attributes.Set(kBaseDigest, base);
  attributes.Set("step", position.step);
  attributes.Set("plugin", parts_.plugin.name());
  attributes.Set("ranks", int64_t{comm::GroupSize(group)});
  if (parts_.config != nullptr) AddConfig(WithLayout(*parts_.config, parts_.plugin), attributes);
  for (const auto& [name, value] : position.extra) attributes.Set("extra/" + name, value);
  contents.attributes = attributes.values();
  return checkpoint::PlanCheckpoint(std::move(contents), group);
}

absl::Status TrainingState::Save(const std::shared_ptr<checkpoint::FileSystem>& files,
                                 const std::string& path, const RunPosition& position) const {
  APOGEE_ASSIGN_OR_RETURN(const std::unique_ptr<checkpoint::PlannedSave> save, Plan(position));
  return save->Write({files, path}, parts_.plugin.group());
}

// The values that Read makes and Apply takes over.
struct TrainingState::Loaded {
  std::string base;  // this run's digest
  RunPosition position;
  SectionReader::Weights values;
  optim::StateDict optimizer;
  std::optional<SavedSchedule> schedule;
  std::optional<optim::LossScaler::State> loss_scale;
  std::vector<std::string> notices;
  std::optional<std::vector<RunConfig::Texts>> options;  // the saved configuration's
  PhiloxKey key;
  uint64_t next_stream = 0;
};

absl::Status TrainingState::Read(const std::shared_ptr<checkpoint::FileSystem>& files,
                                 const std::string& path, Loaded& loaded) const {
  APOGEE_ASSIGN_OR_RETURN(const auto reader, checkpoint::CheckpointReader::Open(files, path));
  const Attributes attributes(reader.attributes(), path);
  APOGEE_ASSIGN_OR_RETURN(loaded.position.step, attributes.GetInt("step"));
  loaded.position.extra = attributes.Below("extra/");
  SectionReader sections(reader, attributes);
  std::string refused = sections.DTypeDifference(parts_.model);
  if (parts_.config != nullptr) {
    APOGEE_ASSIGN_OR_RETURN(
        ConfigDifferences differences,
        CompareConfig(attributes, WithLayout(*parts_.config, parts_.plugin), path));
    refused = differences.refused + refused;
    loaded.notices = std::move(differences.notices);
    if (differences.was_saved) loaded.options = std::move(differences.saved.options);
  }
  if (attributes.contains(kBaseDigest)) {
    APOGEE_ASSIGN_OR_RETURN(const std::string saved, attributes.Get(kBaseDigest));
    if (saved != loaded.base) {
      refused +=
          "\n  the frozen weights below the adapters are others than the saved run's, or have "
          "another dtype: load the same base before";
    }
  }
  if (!refused.empty()) {
    return InvalidArgument(path, " does not fit this run:", refused,
                           "\n  use the saved settings, or begin a new run in another folder");
  }
  loaded.values = sections.ReadWeights(parts_.model, parts_.plugin);
  APOGEE_ASSIGN_OR_RETURN(loaded.optimizer, sections.ReadOptimizer(parts_.optimizer));
  APOGEE_RETURN_IF_ERROR(sections.status());
  APOGEE_ASSIGN_OR_RETURN(const int64_t key_a, attributes.GetInt("random/key_a"));
  APOGEE_ASSIGN_OR_RETURN(const int64_t key_b, attributes.GetInt("random/key_b"));
  APOGEE_ASSIGN_OR_RETURN(const int64_t stream, attributes.GetInt("random/next_stream"));
  loaded.key = {static_cast<uint32_t>(key_a), static_cast<uint32_t>(key_b)};
  loaded.next_stream = static_cast<uint64_t>(stream);
  if (parts_.plugin.loss_scaler() != nullptr) {
    if (!attributes.contains("loss_scale/scale")) {
      return InvalidArgument(path, ": was saved without a dynamic loss scale, this run has one");
    }
    optim::LossScaler::State state{};
    APOGEE_ASSIGN_OR_RETURN(state.scale, attributes.GetDouble("loss_scale/scale"));
    APOGEE_ASSIGN_OR_RETURN(state.good_steps, attributes.GetInt("loss_scale/good_steps"));
    APOGEE_ASSIGN_OR_RETURN(const int64_t overflows, attributes.GetInt("loss_scale/overflows"));
    state.overflows = static_cast<int>(overflows);
    loaded.loss_scale = state;
  } else if (attributes.contains("loss_scale/scale")) {
    loaded.notices.push_back("was saved with a dynamic loss scale, this run has none");
  }
  if (parts_.scheduler != nullptr) {
    APOGEE_ASSIGN_OR_RETURN(loaded.schedule, sections.ReadSchedule());
  } else if (attributes.contains("schedule/step")) {
    loaded.notices.push_back(
        "was saved with a learning-rate schedule, this run has none: its rates stay those of the "
        "saved step");
  }
  return absl::OkStatus();
}

absl::Status TrainingState::Apply(Loaded& loaded) {
  // First the part that can still fail; Load has checked the optimizer's state.
  if (loaded.schedule)
    APOGEE_RETURN_IF_ERROR(parts_.scheduler->load_state_dict(loaded.schedule->state));
  for (const auto& [parameter, value] : loaded.values) parameter->data().CopyFrom(value);
  OkOrThrow(parts_.optimizer.load_state_dict(loaded.optimizer));
  Generator& generator = parts_.model.generator();
  generator.set_key(loaded.key);
  generator.Restart(loaded.next_stream);
  if (loaded.loss_scale) parts_.plugin.loss_scaler()->set_state(*loaded.loss_scale);
  notices_ = std::move(loaded.notices);
  if (loaded.options) parts_.config->options = std::move(*loaded.options);
  if (loaded.schedule) {
    const std::string difference = DifferenceOf(*loaded.schedule, *parts_.scheduler);
    if (!difference.empty()) notices_.push_back(difference);
  }
  return absl::OkStatus();
}

absl::StatusOr<RunPosition> TrainingState::Load(
    const std::shared_ptr<checkpoint::FileSystem>& files, const std::string& path) {
  const comm::GroupPtr group = parts_.plugin.group();
  Loaded loaded;
  APOGEE_ASSIGN_OR_RETURN(loaded.base, BaseDigest(parts_.model, parts_.plugin));
  APOGEE_RETURN_IF_ERROR(checkpoint::AgreeOnStatus(Read(files, path, loaded), group));
  APOGEE_RETURN_IF_ERROR(
      checkpoint::AgreeOnStatus(parts_.optimizer.CheckStateDict(loaded.optimizer), group));
  APOGEE_RETURN_IF_ERROR(checkpoint::AgreeOnStatus(Apply(loaded), group));
  return std::move(loaded.position);
}

}  // namespace apogee
