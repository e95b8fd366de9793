// SPDX-License-Identifier: Apache-2.0

#include "apogee/matrix/optimizers.h"

#include <algorithm>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "apogee/core/status.h"
#include "apogee/matrix/workload.h"

namespace apogee::matrix {
namespace {

using optim::OptionMap;

// The options that differ from the defaults, in both groups.
OptionMap InterestingOptions(const std::string& name) {
  static const auto& table = *new std::map<std::string, OptionMap>{
      {"adafactor", {{"beta1", "0.9"}, {"weight_decay", "0.05"}}},
      {"adafactor_torch", {{"lr", "0.05"}, {"weight_decay", "0.05"}}},
      {"adalomo", {{"lr", "0.02"}, {"weight_decay", "0.05"}}},
      {"adam", {{"lr", "0.01"}, {"weight_decay", "0.05"}, {"amsgrad", "true"}}},
      {"adamw", {{"lr", "0.01"}, {"weight_decay", "0.1"}}},
      {"adamw8bit", {{"lr", "0.01"}, {"weight_decay", "0.1"}, {"block_size", "64"}}},
      {"adamw_hf", {{"lr", "0.01"}, {"weight_decay", "0.1"}}},
      // With twice this lr fp16 runs of tied models are chaotic: another order of the batch alone
      // changes updates by four fifths.
      {"came", {{"lr", "0.001"}, {"weight_decay", "0.05"}}},
      {"galore_adafactor", {{"weight_decay", "0.05"}}},
      {"galore_adamw", {{"lr", "0.01"}, {"weight_decay", "0.05"}}},
      {"galore_adamw8bit", {{"lr", "0.01"}, {"weight_decay", "0.05"}, {"block_size", "64"}}},
      {"dion", {{"lr", "0.01"}, {"weight_decay", "0.05"}, {"mu", "0.9"}}},
      {"lamb", {{"lr", "0.02"}, {"weight_decay", "0.05"}}},
      {"lamb_apex", {{"lr", "0.02"}, {"weight_decay", "0.05"}}},
      {"lamb_colossal", {{"lr", "0.02"}, {"weight_decay", "0.05"}}},
      {"lamb_deepspeed", {{"lr", "0.02"}, {"weight_decay", "0.05"}}},
      {"lars", {{"lr", "1"}, {"trust_coefficient", "0.02"}, {"weight_decay", "0.05"}}},
      {"lion", {{"lr", "0.003"}, {"weight_decay", "0.1"}}},
      {"lomo", {{"lr", "0.02"}, {"weight_decay", "0.05"}, {"clip_grad_value", "2"}}},
      {"muon", {{"lr", "0.02"}, {"weight_decay", "0.05"}}},
      {"muon_deepseek4", {{"lr", "0.003"}, {"weight_decay", "0.05"}}},
      {"muon_dion", {{"lr", "0.01"}, {"weight_decay", "0.05"}}},
      {"muon_moonlight", {{"lr", "0.003"}, {"weight_decay", "0.05"}}},
      {"muon_torch", {{"lr", "0.02"}, {"weight_decay", "0.05"}}},
      {"normuon", {{"lr", "0.01"}, {"weight_decay", "0.05"}, {"cautious_decay", "true"}}},
      // With 1-bit messages the algorithm differs from the one-rank run, so only the warm-ups are
      // compared. Without bias correction the first updates are three times lr. With lr 0.01
      // bf16 is chaotic; with 0.003 the scale of the loss alone changes updates by 9e-9 in f64.
      {"onebit_adam", {{"lr", "0.001"}, {"weight_decay", "0.05"}}},
      {"onebit_adam_deepspeed", {{"lr", "0.001"}, {"weight_decay", "0.05"}}},
      {"onebit_lamb", {{"lr", "0.02"}, {"weight_decay", "0.05"}}},
      {"scaled_adam", {{"clipping_scale", "1"}, {"clipping_update_period", "4"}}},
      {"scaled_adam_icefall", {{"clipping_scale", "1"}, {"clipping_update_period", "4"}}},
      {"scaled_adam_icefall_2023", {{"clipping_scale", "1"}, {"clipping_update_period", "4"}}},
      {"schedule_free_adamw",
       {{"lr", "0.005"}, {"weight_decay", "0.05"}, {"warmup_steps", "3"}, {"r", "0.5"}}},
      {"schedule_free_sgd", {{"lr", "0.1"}, {"weight_decay", "0.05"}, {"warmup_steps", "3"}}},
      {"sgd", {{"lr", "0.05"}, {"momentum", "0.9"}, {"weight_decay", "0.05"}}},
      {"soap", {{"lr", "0.003"}, {"weight_decay", "0.05"}, {"precondition_frequency", "2"}}},
      {"zero_one_adam", {{"lr", "0.001"}, {"weight_decay", "0.05"}, {"var_update_scaler", "1000"}}},
  };
  const auto found = table.find(name);
  return found == table.end() ? OptionMap{} : found->second;
}

// The options of the first group. The models are tiny, so ranks and 8-bit thresholds must be small.
OptionMap FirstGroup(const OptionMap& defaults, const LowRank& low_rank, OptionMap options) {
  const auto set = [&](const char* key, const std::string& value) {
    if (defaults.contains(key) && !options.contains(key)) options[key] = value;
  };
  set("min_8bit_size", "0");
  set("rank", std::to_string(low_rank.rank));
  set("update_proj_gap", std::to_string(low_rank.update_proj_gap));
  set("scale", "1");
  return options;
}

// Half the learning rate and no decay.
OptionMap SecondGroup(const OptionMap& defaults, OptionMap options) {
  const auto value = [&](const char* key) {
    return options.contains(key) ? options.at(key) : defaults.at(key);
  };
  if (defaults.contains("lr")) {
    double lr = 0;
    OkOrThrow(optim::ParseOption("lr", value("lr"), lr));
    if (lr == lr) options["lr"] = optim::FormatOption(lr / 2);  // NaN: the optimizer sets it
  }
  if (defaults.contains("weight_decay")) options["weight_decay"] = "0";
  if (defaults.contains("project")) options["project"] = "false";
  return options;
}

}  // namespace

std::unique_ptr<optim::Optimizer> MakeMatrixOptimizer(const Cell& cell, nn::Module& model) {
  const Workload& workload = cell.catalog->FindWorkload(cell.workload);
  const LowRank low_rank = cell.ignored ? workload.low_rank_of_few_targets() : workload.low_rank();
  const OptionMap defaults = ValueOrThrow(cell.catalog->optimizers.Defaults(cell.optimizer));
  const OptionMap options = FirstGroup(defaults, low_rank, InterestingOptions(cell.optimizer));
  std::vector<optim::TextParamGroup> groups = {{{}, options}, {{}, SecondGroup(defaults, options)}};
  const bool projects = defaults.contains("project");
  size_t turn = 0;
  for (const autograd::ParameterPtr& parameter : model.Parameters()) {
    const Shape& shape = parameter->shape();
    const bool fits = shape.rank() == 2 && std::min(shape[0], shape[1]) >= low_rank.rank;
    groups[projects ? (fits ? 0 : 1) : turn++ % 2].params.push_back(parameter);
  }
  return ValueOrThrow(cell.catalog->optimizers.Make(cell.optimizer, std::move(groups)));
}

bool UpdatesInBackward(const optim::Optimizer& optimizer) {
  return optimizer.traits().fused_backward;
}

bool HasCodes(const optim::Optimizer& optimizer) {
  for (const optim::ParamView& view : optimizer.views()) {
    for (const optim::NamedState& state : view.states()) {
      if (IsCodes(state.kind)) return true;
    }
  }
  return false;
}

}  // namespace apogee::matrix
