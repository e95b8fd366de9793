// SPDX-License-Identifier: Apache-2.0

// StateDict: the state of an optimizer by name. A checkpoint saves it and load_state_dict loads it.
//
//   StateDict dict = optimizer.state_dict();
//   dict.params["wte.weight"].states["exp_avg"].value;      // Tensor, f32
//   absl::Status status = other.load_state_dict(dict);
//
// The tensors are handles on the live states, not copies: save or clone them before the next step.
#ifndef APOGEE_OPTIM_STATE_DICT_H_
#define APOGEE_OPTIM_STATE_DICT_H_

#include <map>
#include <string>
#include <vector>

#include "apogee/layout/layout.h"
#include "apogee/layout/state_kind.h"
#include "apogee/optim/options.h"
#include "apogee/tensor/tensor.h"

namespace apogee::optim {

struct StateEntry {
  StateKind kind = StateKind::kElementwise;
  Tensor value;
};

struct ParamState {
  // The number of updates so far. A parameter that never had a gradient has 0 and no states.
  int64_t step = 0;
  // By state name: "exp_avg", ...; "master" for fp32 master weights.
  std::map<std::string, StateEntry> states;
  // The position of this rank's element-wise states in the logical tensor.
  Layout layout;
};

// Numbers of a parameter group as a whole, by name ("model_norms", "step_num"). Equal on every
// rank.
using GroupState = std::map<std::string, std::vector<double>>;

struct StateDict {
  std::string optimizer;          // "adamw"
  std::vector<OptionMap> groups;  // every option of each group, the current learning rate included
  std::map<std::string, ParamState> params;  // by parameter name
  std::vector<GroupState> group_states;      // one per group; an empty vector: all are empty
};

}  // namespace apogee::optim

#endif  // APOGEE_OPTIM_STATE_DICT_H_
