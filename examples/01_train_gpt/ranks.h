// What rank 0 says for all ranks: sums over them, and how many there are with how much memory.
#ifndef APOGEE_EXAMPLES_01_TRAIN_GPT_RANKS_H_
#define APOGEE_EXAMPLES_01_TRAIN_GPT_RANKS_H_

#include <string>
#include <vector>

#include "apogee/comm/launch.h"
#include "apogee/core/process_memory.h"

// Element-wise over the ranks, the same result on each. Collective.
std::vector<double> SumOverRanks(const apogee::comm::World& world,
                                 const std::vector<double>& values);

// "2 threads", "4 ranks of 1 thread".
std::string DescribeRanks(const apogee::comm::World& world);

// The ledgers' peaks, one by one where the ranks' differ, against what the operating system has
// counted since `start`. Collective.
std::string DescribeMemory(const apogee::comm::World& world, const apogee::ProcessMemory& start);

#endif  // APOGEE_EXAMPLES_01_TRAIN_GPT_RANKS_H_
