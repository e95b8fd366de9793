#include "apogee/booster/training_state.h"

#include <utility>
#include <vector>

#include "apogee/booster/attributes.h"
#include "apogee/checkpoint/agreement.h"
#include "apogee/checkpoint/checkpoint_reader.h"
#include "apogee/checkpoint/checkpoint_writer.h"
#include "apogee/tensor/cpu/cpu_context.h"

namespace apogee {
namespace {

using checkpoint::TensorPart;

std::string ModelName(const std::string& parameter) { return "model/" + parameter; }
std::string StateName(const std::string& parameter, const std::string& state) {
  return "optimizer/" + parameter + "/" + state;
}

// The elements that `layout` names of a tensor that is there whole, one after the other.
Tensor Packed(const Tensor& whole, const comm::Layout& layout) {
  if (layout.is_whole()) return whole;
  const Tensor packed = Tensor::Empty({layout.local_numel()}, whole.dtype(), whole.context());
  const Tensor from = whole.View({whole.numel()});
  int64_t at = 0;
  for (const comm::Segment& segment : layout.segments()) {
    packed.Slice(0, at, segment.length).CopyFrom(from.Slice(0, segment.begin, segment.length));
    at += segment.length;
  }
  return packed;
}

void AddOptimizer(const optim::Optimizer& optimizer, Attributes& attributes,
                  std::vector<TensorPart>& parts) {
  attributes.Set("optimizer", optimizer.name());
  attributes.Set("groups", int64_t{optimizer.num_groups()});
  for (int group = 0; group < optimizer.num_groups(); ++group) {
    const std::string at = std::to_string(group) + "/";
    for (const auto& [name, value] : optimizer.group_options(group)) {
      attributes.Set("option/" + at + name, value);
    }
    for (const auto& [name, values] : optimizer.group_state(group)) {
      attributes.Set("group_state/" + at + name, values);
    }
  }
  optimizer.ForEachView([&](const optim::ParamView& view, int group) {
    attributes.Set("steps/" + view.name(), view.step());
    for (const optim::NamedState& state : view.states()) {
      const comm::Layout layout = optimizer.StateLayout(view, group, state);
      const bool whole = state.value.shape() == layout.logical_shape();
      parts.push_back({StateName(view.name(), state.name),
                       whole ? Packed(state.value, layout) : state.value, layout});
    }
    if (view.own_master().defined()) {
      parts.push_back({StateName(view.name(), "master"), view.own_master(), view.layout()});
    }
  });
}

void AddRun(const TrainingParts& run, Attributes& attributes) {
  const Generator& generator = run.model.generator();
  attributes.Set("random/key_a", int64_t{generator.key().a});
  attributes.Set("random/key_b", int64_t{generator.key().b});
  attributes.Set("random/next_stream", static_cast<int64_t>(generator.next_stream()));
  if (const optim::LossScaler* scaler = run.plugin.loss_scaler()) {
    attributes.Set("loss_scale/scale", scaler->state().scale);
    attributes.Set("loss_scale/good_steps", scaler->state().good_steps);
    attributes.Set("loss_scale/overflows", int64_t{scaler->state().overflows});
  }
  if (run.scheduler != nullptr) {
    const optim::LrSchedulerState schedule = run.scheduler->state_dict();
    attributes.Set("schedule/step", schedule.step);
    attributes.Set("schedule/epoch", schedule.epoch);
    attributes.Set("schedule/base_lrs", schedule.base_lrs);
  }
}

}  // namespace

absl::Status TrainingState::Save(const std::shared_ptr<checkpoint::FileSystem>& files,
                                 const std::string& path, const RunPosition& position) const {
  Attributes attributes;
  checkpoint::CheckpointContents contents;
  for (const auto& parameter : parts_.model.Parameters()) {
    contents.parts.push_back(
        {ModelName(parameter->name()), parameter->data(), parts_.plugin.LayoutOf(*parameter)});
  }
  AddOptimizer(parts_.optimizer, attributes, contents.parts);
  AddRun(parts_, attributes);
  const comm::GroupPtr group = parts_.plugin.group();
  attributes.Set("step", position.step);
  attributes.Set("plugin", parts_.plugin.name());
  attributes.Set("ranks", int64_t{comm::GroupSize(group)});
  for (const auto& [name, value] : position.extra) attributes.Set("extra/" + name, value);
  contents.attributes = attributes.values();
  return checkpoint::SaveCheckpoint({files, path}, contents, group);
}

// What Read makes and Apply takes over.
struct TrainingState::Loaded {
  RunPosition position;
  std::vector<std::pair<autograd::ParameterPtr, Tensor>> values;
  optim::StateDict optimizer;
  std::optional<optim::LrSchedulerState> schedule;
  std::optional<optim::LossScaler::State> loss_scale;
  PhiloxKey key;
  uint64_t next_stream = 0;
};

absl::Status TrainingState::Read(const std::shared_ptr<checkpoint::FileSystem>& files,
                                 const std::string& path, Loaded& loaded) const {
  APOGEE_ASSIGN_OR_RETURN(const auto reader, checkpoint::CheckpointReader::Open(files, path));
  const Attributes attributes(reader.attributes(), path);
  APOGEE_ASSIGN_OR_RETURN(loaded.position.step, attributes.GetInt("step"));
  loaded.position.extra = attributes.Below("extra/");
  std::string problems;
  // What is damaged is told apart from what does not fit: an older checkpoint may still be whole.
  absl::Status damage;
  const auto read = [&](const std::string& name, const comm::Layout& layout, const Tensor& to) {
    absl::Status status = reader.Read(name, layout, to);
    if (damage.ok() && absl::IsDataLoss(status)) damage = status;
    return status;
  };
  const auto check = [&problems](const absl::Status& status) {
    if (!status.ok()) problems += "\n  " + Message(status);
  };

  for (const auto& parameter : parts_.model.Parameters()) {
    const Tensor value = Tensor::Zeros(parameter->shape(), parameter->data().dtype(),
                                       parameter->data().context(), MemoryCategory::kParameter);
    check(read(ModelName(parameter->name()), parts_.plugin.LayoutOf(*parameter), value));
    loaded.values.emplace_back(parameter, value);
  }
  for (const auto& [name, tensor] : reader.manifest().tensors) {
    if (!name.starts_with(ModelName("")) ||
        parts_.model.FindParameter(name.substr(ModelName("").size())) != nullptr) {
      continue;
    }
    check(InvalidArgument(path, ": tensor \"", name, "\" is not one of this model's"));
  }

  optim::StateDict& dict = loaded.optimizer;
  APOGEE_ASSIGN_OR_RETURN(dict.optimizer, attributes.Get("optimizer"));
  if (dict.optimizer != parts_.optimizer.name()) {
    return InvalidArgument(path, ": the states are of optimizer ", dict.optimizer,
                           ", this run's is ", parts_.optimizer.name());
  }
  APOGEE_ASSIGN_OR_RETURN(const int64_t num_groups, attributes.GetInt("groups"));
  if (num_groups != parts_.optimizer.num_groups()) {
    return InvalidArgument(path, ": has ", num_groups, " parameter groups, this run's optimizer ",
                           parts_.optimizer.num_groups());
  }
  for (int64_t group = 0; group < num_groups; ++group) {
    const std::string at = std::to_string(group) + "/";
    dict.groups.push_back(attributes.Below("option/" + at));
    optim::GroupState& state = dict.group_states.emplace_back();
    for (const auto& [name, text] : attributes.Below("group_state/" + at)) {
      APOGEE_ASSIGN_OR_RETURN(state[name], attributes.GetDoubles("group_state/" + at + name));
    }
  }
  for (const auto& [name, text] : attributes.Below("steps/")) {
    APOGEE_ASSIGN_OR_RETURN(dict.params[name].step, attributes.GetInt("steps/" + name));
  }
  check(parts_.optimizer.ReadStates(
      [&](const optim::ParamView& view, const std::string& state, const comm::Layout& layout,
          const Tensor& to) { return read(StateName(view.name(), state), layout, to); },
      [&](const std::string& name) { return reader.contains(StateName(name, "master")); }, dict));

  APOGEE_ASSIGN_OR_RETURN(const int64_t key_a, attributes.GetInt("random/key_a"));
  APOGEE_ASSIGN_OR_RETURN(const int64_t key_b, attributes.GetInt("random/key_b"));
  APOGEE_ASSIGN_OR_RETURN(const int64_t stream, attributes.GetInt("random/next_stream"));
  loaded.key = {static_cast<uint32_t>(key_a), static_cast<uint32_t>(key_b)};
  loaded.next_stream = static_cast<uint64_t>(stream);
  if (parts_.plugin.loss_scaler() != nullptr) {
    optim::LossScaler::State state{};
    APOGEE_ASSIGN_OR_RETURN(state.scale, attributes.GetDouble("loss_scale/scale"));
    APOGEE_ASSIGN_OR_RETURN(state.good_steps, attributes.GetInt("loss_scale/good_steps"));
    APOGEE_ASSIGN_OR_RETURN(const int64_t overflows, attributes.GetInt("loss_scale/overflows"));
    state.overflows = static_cast<int>(overflows);
    loaded.loss_scale = state;
  }
  if (parts_.scheduler != nullptr) {
    optim::LrSchedulerState state;
    APOGEE_ASSIGN_OR_RETURN(state.step, attributes.GetInt("schedule/step"));
    APOGEE_ASSIGN_OR_RETURN(state.epoch, attributes.GetInt("schedule/epoch"));
    APOGEE_ASSIGN_OR_RETURN(state.base_lrs, attributes.GetDoubles("schedule/base_lrs"));
    loaded.schedule = state;
  }
  if (!damage.ok()) return damage;
  return problems.empty() ? absl::OkStatus()
                          : InvalidArgument(path, " does not fit this run:", problems);
}

absl::Status TrainingState::Apply(Loaded& loaded) {
  // First what can still refuse; Load has checked the optimizer's.
  if (loaded.schedule) APOGEE_RETURN_IF_ERROR(parts_.scheduler->load_state_dict(*loaded.schedule));
  for (const auto& [parameter, value] : loaded.values) parameter->data().CopyFrom(value);
  OkOrThrow(parts_.optimizer.load_state_dict(loaded.optimizer));
  Generator& generator = parts_.model.generator();
  generator.set_key(loaded.key);
  generator.set_next_stream(loaded.next_stream);
  if (loaded.loss_scale) parts_.plugin.loss_scaler()->set_state(*loaded.loss_scale);
  return absl::OkStatus();
}

absl::StatusOr<RunPosition> TrainingState::Load(
    const std::shared_ptr<checkpoint::FileSystem>& files, const std::string& path) {
  const comm::GroupPtr group = parts_.plugin.group();
  const ContextPtr context = CpuContext({.num_threads = 1});
  Loaded loaded;
  APOGEE_RETURN_IF_ERROR(checkpoint::AgreeOnStatus(Read(files, path, loaded), group, context));
  APOGEE_RETURN_IF_ERROR(
      checkpoint::AgreeOnStatus(parts_.optimizer.CheckStateDict(loaded.optimizer), group, context));
  APOGEE_RETURN_IF_ERROR(checkpoint::AgreeOnStatus(Apply(loaded), group, context));
  return std::move(loaded.position);
}

}  // namespace apogee
