// SPDX-License-Identifier: Apache-2.0

// Which processes of a job share a machine. Private to comm.
//
//   APOGEE_ASSIGN_OR_RETURN(const auto per_machine, RanksPerMachineInEnvironment());
#ifndef APOGEE_COMM_TRANSPORT_MACHINES_H_
#define APOGEE_COMM_TRANSPORT_MACHINES_H_

#include <optional>
#include <string>

#include "apogee/core/status.h"

namespace apogee::comm {

// The value of APOGEE_RANKS_PER_MACHINE, which makes so many processes, in the order of their
// ranks, count as a machine of their own. Absent: machines are what they are. InvalidArgument for
// anything but a positive number.
absl::StatusOr<std::optional<int>> RanksPerMachineInEnvironment();

// A name that only this machine has, as long as it runs: machines may share a host name; the boot's
// id is of one.
std::string ThisMachine();

}  // namespace apogee::comm

#endif  // APOGEE_COMM_TRANSPORT_MACHINES_H_
