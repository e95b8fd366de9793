// SPDX-License-Identifier: Apache-2.0

#include "apogee/optim/rule.h"

#include "apogee/optim/states/state_store.h"

namespace apogee::optim {

absl::Status UpdateRule::CheckGroupState(const GroupState& state, const OptionMap&) const {
  if (state.empty()) return absl::OkStatus();
  return InvalidArgument("it has a group state, but optimizer ", store().optimizer(), " has none");
}

}  // namespace apogee::optim
