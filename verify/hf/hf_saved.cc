// SPDX-License-Identifier: Apache-2.0

#include "apogee/booster/pretrained.h"
#include "apogee/checkpoint/hf/hf_weights.h"
#include "apogee/core/process/temp_folder.h"
#include "apogee/verify/hf/hf_replay.h"

namespace apogee::verify {

void CompareSaved(const nn::HfModel& hf, const HfReplay& replay) {
  const TempFolder temporary;
  APOGEE_CHECK(!temporary.path().empty(), "no folder can be made in TMPDIR (default: /tmp)");
  std::vector<checkpoint::TensorPart> parts;
  for (const autograd::ParameterPtr& parameter : hf.module->Parameters()) {
    parts.push_back({parameter->name(), parameter->data(), Layout(parameter->shape())});
  }
  const std::string folder = temporary.path() + "/saved";
  OkOrThrow(checkpoint::SaveModelWeights({checkpoint::RealFileSystem(), folder}, parts,
                                         {.config_json = hf.config_json}, /*group=*/nullptr));
  const nn::HfModel loaded =
      ValueOrThrow(LoadPretrained(folder, replay.golden.context(), {.dtype = replay.dtype}));
  for (const checkpoint::TensorPart& part : parts) {
    const autograd::ParameterPtr same = loaded.module->FindParameter(part.name);
    APOGEE_CHECK(same != nullptr, "the saved model has no parameter \"", part.name, "\"");
    replay.comparison.Elements(same->data().ToVector<double>(), part.value.ToVector<double>(), {},
                               part.name + ", saved and loaded");
  }
}

}  // namespace apogee::verify
