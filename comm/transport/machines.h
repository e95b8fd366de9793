// SPDX-License-Identifier: Apache-2.0

// Which processes of a job are on the same machine. Private to comm.
//
//   APOGEE_ASSIGN_OR_RETURN(const auto per_machine, RanksPerMachineInEnvironment());
#ifndef APOGEE_COMM_TRANSPORT_MACHINES_H_
#define APOGEE_COMM_TRANSPORT_MACHINES_H_

#include <optional>
#include <string>

#include "apogee/core/status.h"

namespace apogee::comm {

// The value of APOGEE_RANKS_PER_MACHINE: each run of so many ranks then counts as one machine.
// std::nullopt if it is not set: the real machines count. InvalidArgument for anything but a
// positive number.
absl::StatusOr<std::optional<int>> RanksPerMachineInEnvironment();

// A name that only this machine has while it runs: the host name, which machines may share, and the
// id of its boot.
std::string ThisMachine();

}  // namespace apogee::comm

#endif  // APOGEE_COMM_TRANSPORT_MACHINES_H_
