// SPDX-License-Identifier: Apache-2.0

// The all-reduce of a group that spans machines: it sums first within each machine, then over the
// machines. For a tensor of S bytes and M machines, the network of each machine then carries
//
//   2 S (1 - 1 / M) bytes,
//
// for any number of members on it. Without the hierarchy it carries as much for each of its
// members. Private to comm/process.
//
//   const size_t local = MembersPerMachine(machines);      // {0, 0, 1, 1} -> 2
//   if (local > 1) StartHierarchicalAllReduce(operation, transfers, local);
#ifndef APOGEE_COMM_PROCESS_HIERARCHY_H_
#define APOGEE_COMM_PROCESS_HIERARCHY_H_

#include <span>

#include "apogee/comm/process/operation.h"

namespace apogee::comm::process {

// How many members to treat as one machine, given the machine of every member. It is the largest
// power of two such that each run of so many neighbouring members is on one machine. Then the tree
// over all members is the tree over the machines' sums. A machine of six members counts as three
// machines of two. Returns 1 (no hierarchy) if there is none, or if all members are on one machine.
size_t MembersPerMachine(std::span<const int> machines);

// Starts the exchange of such an all-reduce of large data. Every bit of the result is that of
// TreeReduce over all members.
void StartHierarchicalAllReduce(Operation& operation, Transfers& transfers,
                                size_t members_per_machine);

}  // namespace apogee::comm::process

#endif  // APOGEE_COMM_PROCESS_HIERARCHY_H_
