// SPDX-License-Identifier: Apache-2.0

#include "apogee/booster/state_sections.h"

#include <algorithm>
#include <optional>
#include <set>

#include "apogee/booster/lora/base_digest.h"
#include "apogee/checkpoint/format/tensor_file.h"
#include "apogee/core/text/printable.h"
#include "apogee/nn/parallel/shard.h"

namespace apogee {
namespace {

using checkpoint::TensorPart;

std::string ModelName(const std::string& parameter) { return "model/" + parameter; }
std::string StateName(const std::string& parameter, const std::string& state) {
  return "optimizer/" + parameter + "/" + state;
}

}  // namespace

std::vector<PlacedTensor> PlacedTensors(const nn::Module& model, const Plugin& plugin) {
  std::vector<PlacedTensor> placed;
  for (const auto& parameter : model.Parameters()) {
    placed.push_back({parameter, plugin.LayoutOf(*parameter)});
  }
  // Whole on every rank that has it; a pipeline has it only on the stages of its module.
  for (const auto& buffer : model.Buffers()) {
    const Shape& shape = buffer->shape();
    placed.push_back({buffer, buffer->is_here() ? Layout(shape) : Layout(shape, LayoutOptions{})});
  }
  return placed;
}

void AddWeights(nn::Module& model, const Plugin& plugin, std::vector<TensorPart>& parts) {
  const std::set<const autograd::Parameter*> base = BaseOf(model);
  for (const auto& [parameter, layout] : PlacedTensors(model, plugin)) {
    if (base.contains(parameter.get())) continue;
    parts.push_back({ModelName(parameter->name()), parameter->data(), layout});
  }
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
      const Layout layout = optimizer.states().LayoutOf(view, group, state);
      const bool whole = state.value.shape() == layout.logical_shape();
      parts.push_back({StateName(view.name(), state.name),
                       whole ? nn::parallel::CutByLayout(state.value, layout) : state.value,
                       layout});
    }
    if (view.own_master().defined()) {
      parts.push_back({StateName(view.name(), "master"), view.own_master(), view.layout()});
    }
  });
}

void AddSchedule(const optim::LrScheduler& scheduler, Attributes& attributes) {
  const optim::LrSchedulerState schedule = scheduler.state_dict();
  attributes.Set("schedule/step", schedule.step);
  attributes.Set("schedule/epoch", schedule.epoch);
  attributes.Set("schedule/base_lrs", schedule.base_lrs);
  attributes.Set("schedule/last_lrs", scheduler.last_lr());
}

absl::Status SectionReader::Read(const std::string& name, const Layout& layout, const Tensor& to) {
  absl::Status status = reader_.Read(name, layout, to);
  if (damage_.ok() && absl::IsDataLoss(status)) damage_ = status;
  return status;
}

void SectionReader::Note(const absl::Status& status) {
  if (!status.ok()) problems_ += "\n  " + Message(status);
}

SectionReader::Weights SectionReader::ReadWeights(nn::Module& model, const Plugin& plugin) {
  Weights values;
  std::set<std::string> known;
  const std::set<const autograd::Parameter*> base = BaseOf(model);
  for (const auto& [parameter, layout] : PlacedTensors(model, plugin)) {
    known.insert(ModelName(parameter->name()));
    const bool saved = reader_.manifest().tensors.contains(ModelName(parameter->name()));
    if (!saved && base.contains(parameter.get())) continue;
    const Tensor here = parameter->data();  // all of it, or this rank's part
    const Tensor value =
        Tensor::Zeros(here.shape(), here.dtype(), here.context(), MemoryCategory::kParameter);
    Note(Read(ModelName(parameter->name()), layout, value));
    values.emplace_back(parameter, value);
  }
  for (const auto& [name, tensor] : reader_.manifest().tensors) {
    if (!name.starts_with(ModelName("")) || known.contains(name)) continue;
    Note(InvalidArgument(reader_.path(), ": tensor \"", name, "\" is not one of this model's"));
  }
  return values;
}

std::string SectionReader::DTypeDifference(const nn::Module& model) const {
  int64_t different = 0;
  std::string saved, now;
  for (const auto& parameter : model.Parameters()) {
    const auto found = reader_.manifest().tensors.find(ModelName(parameter->name()));
    if (found == reader_.manifest().tensors.end()) continue;
    const std::optional<DType> dtype = checkpoint::TensorDType(found->second.dtype);
    if (dtype == parameter->dtype()) continue;
    ++different;
    saved = dtype ? DTypeName(*dtype) : Printable(found->second.dtype);
    now = DTypeName(parameter->dtype());
  }
  if (different == 0) return "";
  return internal::Concat("\n  precision: ", different, " weights were saved as ", saved,
                          ", this run has them as ", now);
}

absl::StatusOr<optim::StateDict> SectionReader::ReadOptimizer(const optim::Optimizer& optimizer) {
  optim::StateDict dict;
  const std::string& path = reader_.path();
  APOGEE_ASSIGN_OR_RETURN(dict.optimizer, attributes_.Get("optimizer"));
  if (dict.optimizer != optimizer.name()) {
    return InvalidArgument(path, ": the states are of optimizer ", dict.optimizer,
                           ", this run's is ", optimizer.name());
  }
  APOGEE_ASSIGN_OR_RETURN(const int64_t num_groups, attributes_.GetInt("groups"));
  if (num_groups != optimizer.num_groups()) {
    return InvalidArgument(path, ": has ", num_groups, " parameter groups, this run's optimizer ",
                           optimizer.num_groups());
  }
  for (int64_t group = 0; group < num_groups; ++group) {
    const std::string at = std::to_string(group) + "/";
    dict.groups.push_back(attributes_.Below("option/" + at));
    optim::GroupState& state = dict.group_states.emplace_back();
    for (const auto& [name, text] : attributes_.Below("group_state/" + at)) {
      APOGEE_ASSIGN_OR_RETURN(state[name], attributes_.GetDoubles("group_state/" + at + name));
    }
  }
  for (const auto& [name, text] : attributes_.Below("steps/")) {
    APOGEE_ASSIGN_OR_RETURN(dict.params[name].step, attributes_.GetInt("steps/" + name));
  }
  Note(optimizer.states().Read(
      [&](const optim::ParamView& view, const std::string& state, const Layout& layout,
          const Tensor& to) { return Read(StateName(view.name(), state), layout, to); },
      [&](const std::string& name) { return reader_.contains(StateName(name, "master")); }, dict));
  return dict;
}

std::string DifferenceOf(const SavedSchedule& saved, const optim::LrScheduler& scheduler) {
  const std::vector<double> now = scheduler.last_lr();
  for (size_t group = 0; group < std::min(saved.last_lrs.size(), now.size()); ++group) {
    if (saved.last_lrs[group] == now[group]) continue;
    return internal::Concat("another learning-rate schedule: at step ", scheduler.num_steps(),
                            " its rate is ", now[group], ", the saved run's was ",
                            saved.last_lrs[group]);
  }
  return "";
}

absl::StatusOr<SavedSchedule> SectionReader::ReadSchedule() const {
  if (!attributes_.contains("schedule/step")) {
    return InvalidArgument(reader_.path(), ": was saved without a learning-rate schedule");
  }
  SavedSchedule saved;
  optim::LrSchedulerState& state = saved.state;
  APOGEE_ASSIGN_OR_RETURN(state.step, attributes_.GetInt("schedule/step"));
  APOGEE_ASSIGN_OR_RETURN(state.epoch, attributes_.GetInt("schedule/epoch"));
  APOGEE_ASSIGN_OR_RETURN(state.base_lrs, attributes_.GetDoubles("schedule/base_lrs"));
  if (attributes_.contains("schedule/last_lrs")) {
    APOGEE_ASSIGN_OR_RETURN(saved.last_lrs, attributes_.GetDoubles("schedule/last_lrs"));
  }
  return saved;
}

absl::Status SectionReader::status() const {
  if (!damage_.ok()) return damage_;
  return problems_.empty() ? absl::OkStatus()
                           : InvalidArgument(reader_.path(), " does not fit this run:", problems_);
}

}  // namespace apogee
