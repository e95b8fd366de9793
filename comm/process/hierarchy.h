// SPDX-License-Identifier: Apache-2.0

// The all-reduce of a group that spans machines: sums first within each machine, then over the
// machines, whose networks so carry 2 S (1 - 1 / M) bytes per machine (S: the tensor, M: the
// machines) whatever the number of members on one, instead of that times this number. Private to
// comm/process.
//
//   const size_t local = MembersPerMachine(machines);      // {0, 0, 1, 1} -> 2
//   if (local > 1) StartHierarchicalAllReduce(operation, transfers, local);
#ifndef APOGEE_COMM_PROCESS_HIERARCHY_H_
#define APOGEE_COMM_PROCESS_HIERARCHY_H_

#include <span>

#include "apogee/comm/process/operation.h"

namespace apogee::comm::process {

// How many members to take for one machine, given the machine of every member, such that the tree
// over all is the tree over the machines' sums: the largest power of two for which every so many
// members next to each other in the group are on one machine. A machine of six counts as three of
// two. 1 where there is none, and where all members are on one machine: no hierarchy.
size_t MembersPerMachine(std::span<const int> machines);

// Starts the exchange of an all-reduce of large data in such a group; every bit of the result is
// that of TreeReduce over all members.
void StartHierarchicalAllReduce(Operation& operation, Transfers& transfers,
                                size_t members_per_machine);

}  // namespace apogee::comm::process

#endif  // APOGEE_COMM_PROCESS_HIERARCHY_H_
