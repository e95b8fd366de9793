// SPDX-License-Identifier: Apache-2.0

// Launches of fewer ranks than processes, and results that every process has: for programs that run
// jobs of several sizes, such as the tests and `apogee matrix`.
//
//   std::vector<std::string> results(2);
//   absl::Status status = LaunchSome({.num_ranks = 2}, [&](World& world) {
//     results[world.rank()] = Train(world);
//   });
//   ShareByRank(results);  // every process has both, whether it was one of the two or not
//
// Every process calls both, equally often. Where ranks are threads, LaunchSome is launch, and there
// is nothing to share.
#ifndef APOGEE_COMM_SOME_RANKS_H_
#define APOGEE_COMM_SOME_RANKS_H_

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "apogee/comm/launch.h"

namespace apogee::comm {

// Like launch, but fewer ranks than processes are allowed: the processes beyond them do nothing,
// and return what the others return once these have ended. Each of fewer ranks has one thread where
// threads_per_rank is 0.
absl::Status LaunchSome(const LaunchOptions& options, const std::function<void(World&)>& fn);

// Gives every process the elements of every rank, each taken from its own process. The vectors are
// equally long everywhere; elements beyond the number of processes stay as they are. Throws
// CommError when a process does not come within the timeout, or is lost.
void ShareByRank(std::vector<std::string>& values, double timeout_seconds = 60);

using NamedNumbers = std::map<std::string, std::vector<double>>;
// The same for numbers by name, such as weights, bit by bit. Names have no line breaks.
void ShareByRank(std::vector<NamedNumbers>& values, double timeout_seconds = 60);

}  // namespace apogee::comm

#endif  // APOGEE_COMM_SOME_RANKS_H_
