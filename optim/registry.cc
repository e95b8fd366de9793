// SPDX-License-Identifier: Apache-2.0

#include "apogee/optim/registry.h"

#include <string_view>

#include "apogee/optim/adam/adam.h"
#include "apogee/optim/adam/lamb.h"
#include "apogee/optim/adam/scaled_adam.h"
#include "apogee/optim/averaged/schedule_free.h"
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
#include "apogee/optim/orthogonal/dion.h"
#include "apogee/optim/orthogonal/muon.h"
#include "apogee/optim/orthogonal/soap.h"

namespace apogee::optim {
namespace {

// The distributed form is the same class (distributed.h).
constexpr std::string_view kDistributed = "distributed_";

}  // namespace

OptimizerRegistry::OptimizerRegistry() {
  Add<Adafactor>("adafactor");
  Add<Adafactor>("adafactor_torch", AdafactorOptions::Torch());
  Add<AdaLomo>("adalomo");
  Add<Adam>("adam");
  Add<AdamW>("adamw");
  Add<AdamW8bit>("adamw8bit");
  Add<AdamW>("adamw_hf", AdamWOptions::HuggingFace());
  Add<Dion>("dion");
  Add<GaLoreAdafactor>("galore_adafactor");
  Add<GaLoreAdamW>("galore_adamw");
  Add<GaLoreAdamW8bit>("galore_adamw8bit");
  Add<Came>("came");
  Add<Lamb>("lamb");
  Add<Lamb>("lamb_apex", LambOptions::Apex());
  Add<Lamb>("lamb_colossal", LambOptions::Colossal());
  Add<Lamb>("lamb_deepspeed", LambOptions::DeepSpeed());
  Add<Lars>("lars");
  Add<Lion>("lion");
  Add<Lomo>("lomo");
  Add<Muon>("muon");
  Add<Muon>("muon_deepseek4", MuonOptions::DeepSeek4());
  Add<Muon>("muon_dion", MuonOptions::Dion());
  Add<Muon>("muon_moonlight", MuonOptions::Moonlight());
  Add<Muon>("muon_torch", MuonOptions::Torch());
  Add<Muon>("normuon", MuonOptions::NorMuon());
  Add<OneBitAdam>("onebit_adam");
  Add<OneBitAdam>("onebit_adam_deepspeed", OneBitAdamOptions::DeepSpeed());
  Add<OneBitLamb>("onebit_lamb");
  Add<ScaledAdam>("scaled_adam");
  Add<ScaledAdam>("scaled_adam_icefall", ScaledAdamOptions::Icefall());
  Add<ScaledAdam>("scaled_adam_icefall_2023", ScaledAdamOptions::Icefall2023());
  Add<ScheduleFreeAdamW>("schedule_free_adamw");
  Add<ScheduleFreeSgd>("schedule_free_sgd");
  Add<Sgd>("sgd");
  Add<Soap>("soap");
  Add<ZeroOneAdam>("zero_one_adam");
}

void OptimizerRegistry::AddEntry(const std::string& name, Entry entry) {
  APOGEE_CHECK(!name.starts_with(kDistributed), "OptimizerRegistry: an optimizer is named \"", name,
               "\"; give it a name that does not begin with \"", kDistributed, "\"");
  entries_.Add(name, std::move(entry));
}

absl::StatusOr<const OptimizerRegistry::Entry*> OptimizerRegistry::Find(
    const std::string& name) const {
  return entries_.Find(name.starts_with(kDistributed) ? name.substr(kDistributed.size()) : name);
}

absl::StatusOr<std::unique_ptr<Optimizer>> OptimizerRegistry::Make(
    const std::string& name, std::vector<autograd::ParameterPtr> params,
    const OptionMap& options) const {
  return Make(name, std::vector<TextParamGroup>{{std::move(params), options}});
}

absl::StatusOr<std::unique_ptr<Optimizer>> OptimizerRegistry::Make(
    const std::string& name, std::vector<TextParamGroup> groups) const {
  APOGEE_ASSIGN_OR_RETURN(const Entry* entry, Find(name));
  return entry->make("optimizer " + name, std::move(groups));
}

bool OptimizerRegistry::TakesLocalGradients(const std::string& name) const {
  const absl::StatusOr<const Entry*> entry = Find(name);
  return entry.ok() && (*entry)->takes_local_gradients;
}

absl::StatusOr<OptionMap> OptimizerRegistry::Defaults(const std::string& name) const {
  APOGEE_ASSIGN_OR_RETURN(const Entry* entry, Find(name));
  return entry->defaults;
}

absl::StatusOr<OptionMap> OptimizerRegistry::Help(const std::string& name) const {
  APOGEE_ASSIGN_OR_RETURN(const Entry* entry, Find(name));
  return entry->help;
}

const OptimizerRegistry& BuiltInOptimizers() {
  static const auto& registry = *new OptimizerRegistry;
  return registry;
}

}  // namespace apogee::optim
