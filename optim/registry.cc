// SPDX-License-Identifier: Apache-2.0

#include "apogee/optim/registry.h"

#include <functional>
#include <string_view>
#include <type_traits>

#include "apogee/optim/adam/adam.h"
#include "apogee/optim/adam/lamb.h"
#include "apogee/optim/adam/scaled_adam.h"
#include "apogee/optim/factored/adafactor.h"
#include "apogee/optim/factored/adalomo.h"
#include "apogee/optim/factored/came.h"
#include "apogee/optim/lowbit/adamw8bit.h"
#include "apogee/optim/lowrank/galore_adafactor.h"
#include "apogee/optim/lowrank/galore_adamw.h"
#include "apogee/optim/lowrank/galore_adamw8bit.h"
#include "apogee/optim/momentum/lars.h"
#include "apogee/optim/momentum/lion.h"
#include "apogee/optim/momentum/lomo.h"
#include "apogee/optim/momentum/sgd.h"
#include "apogee/optim/onebit/onebit_adam.h"
#include "apogee/optim/onebit/onebit_lamb.h"
#include "apogee/optim/onebit/zero_one_adam.h"

namespace apogee::optim {
namespace {

struct Entry {
  std::function<absl::StatusOr<std::unique_ptr<Optimizer>>(const std::string& what,
                                                           std::vector<TextParamGroup>)>
      make;
  OptionMap defaults;
  bool takes_local_gradients;
};

template <typename OptimizerType, typename Options>
Entry MakeEntry(const Options& defaults) {
  const auto make =
      [defaults](const std::string& what,
                 std::vector<TextParamGroup> groups) -> absl::StatusOr<std::unique_ptr<Optimizer>> {
    std::vector<ParamGroup<Options>> typed;
    for (TextParamGroup& group : groups) {
      typed.push_back({std::move(group.params), defaults});
      APOGEE_RETURN_IF_ERROR(SetOptions(group.options, what, typed.back().options));
    }
    try {
      return std::make_unique<OptimizerType>(std::move(typed));
    } catch (const Error& error) {
      return InvalidArgument(error.what());
    }
  };
  return {make, GetOptions(defaults), std::is_base_of_v<LocalGradientOptimizer, OptimizerType>};
}

const std::map<std::string, Entry>& Registry() {
  static const auto& registry = *new std::map<std::string, Entry>{
      {"adafactor", MakeEntry<Adafactor>(AdafactorOptions{})},
      {"adafactor_torch", MakeEntry<Adafactor>(AdafactorOptions::Torch())},
      {"adalomo", MakeEntry<AdaLomo>(AdaLomoOptions{})},
      {"adam", MakeEntry<Adam>(AdamOptions{})},
      {"adamw", MakeEntry<AdamW>(AdamWOptions{})},
      {"adamw8bit", MakeEntry<AdamW8bit>(AdamW8bitOptions{})},
      {"adamw_hf", MakeEntry<AdamW>(AdamWOptions::HuggingFace())},
      {"galore_adafactor", MakeEntry<GaLoreAdafactor>(GaLoreAdafactorOptions{})},
      {"galore_adamw", MakeEntry<GaLoreAdamW>(GaLoreAdamWOptions{})},
      {"galore_adamw8bit", MakeEntry<GaLoreAdamW8bit>(GaLoreAdamW8bitOptions{})},
      {"came", MakeEntry<Came>(CameOptions{})},
      {"lamb", MakeEntry<Lamb>(LambOptions{})},
      {"lamb_apex", MakeEntry<Lamb>(LambOptions::Apex())},
      {"lamb_colossal", MakeEntry<Lamb>(LambOptions::Colossal())},
      {"lamb_deepspeed", MakeEntry<Lamb>(LambOptions::DeepSpeed())},
      {"lars", MakeEntry<Lars>(LarsOptions{})},
      {"lion", MakeEntry<Lion>(LionOptions{})},
      {"lomo", MakeEntry<Lomo>(LomoOptions{})},
      {"onebit_adam", MakeEntry<OneBitAdam>(OneBitAdamOptions{})},
      {"onebit_adam_deepspeed", MakeEntry<OneBitAdam>(OneBitAdamOptions::DeepSpeed())},
      {"onebit_lamb", MakeEntry<OneBitLamb>(OneBitLambOptions{})},
      {"scaled_adam", MakeEntry<ScaledAdam>(ScaledAdamOptions{})},
      {"scaled_adam_icefall", MakeEntry<ScaledAdam>(ScaledAdamOptions::Icefall())},
      {"scaled_adam_icefall_2023", MakeEntry<ScaledAdam>(ScaledAdamOptions::Icefall2023())},
      {"sgd", MakeEntry<Sgd>(SgdOptions{})},
      {"zero_one_adam", MakeEntry<ZeroOneAdam>(ZeroOneAdamOptions{})},
  };
  return registry;
}

absl::StatusOr<const Entry*> Find(const std::string& name) {
  // The distributed form is the same class (distributed.h).
  constexpr std::string_view kDistributed = "distributed_";
  const auto found =
      Registry().find(name.starts_with(kDistributed) ? name.substr(kDistributed.size()) : name);
  if (found == Registry().end()) return NotFound(UnknownName("optimizer", name, OptimizerNames()));
  return &found->second;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Optimizer>> MakeOptimizer(const std::string& name,
                                                         std::vector<autograd::ParameterPtr> params,
                                                         const OptionMap& options) {
  return MakeOptimizer(name, std::vector<TextParamGroup>{{std::move(params), options}});
}

absl::StatusOr<std::unique_ptr<Optimizer>> MakeOptimizer(const std::string& name,
                                                         std::vector<TextParamGroup> groups) {
  APOGEE_ASSIGN_OR_RETURN(const Entry* entry, Find(name));
  return entry->make("optimizer " + name, std::move(groups));
}

std::vector<std::string> OptimizerNames() {
  std::vector<std::string> names;
  for (const auto& [name, entry] : Registry()) names.push_back(name);
  return names;
}

bool TakesLocalGradients(const std::string& name) {
  const absl::StatusOr<const Entry*> entry = Find(name);
  return entry.ok() && (*entry)->takes_local_gradients;
}

absl::StatusOr<OptionMap> OptimizerDefaults(const std::string& name) {
  APOGEE_ASSIGN_OR_RETURN(const Entry* entry, Find(name));
  return entry->defaults;
}

}  // namespace apogee::optim
