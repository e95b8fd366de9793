// SPDX-License-Identifier: Apache-2.0

// LaunchSome and ShareByRank: launches with fewer ranks than processes, and results that every
// process gets. For programs that run jobs of several sizes, such as the tests and `apogee matrix`.
//
//   std::vector<std::string> results(2);
//   absl::Status status = LaunchSome({.num_ranks = 2}, [&](World& world) {
//     results[world.rank()] = Train(world);
//   });
//   ShareByRank(results);  // every process has both results, also those that ran no rank
//
// Every process calls both functions, equally often. If ranks are threads, LaunchSome is launch,
// and ShareByRank does nothing.
#ifndef APOGEE_COMM_SOME_RANKS_H_
#define APOGEE_COMM_SOME_RANKS_H_

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "apogee/comm/launch.h"

namespace apogee::comm {

// Like launch, but num_ranks may be less than the number of processes. The other processes run
// nothing and return the same status once the ranks have ended. With fewer ranks than processes,
// threads_per_rank 0 means one thread.
absl::Status LaunchSome(const LaunchOptions& options, const std::function<void(World&)>& fn);

// Copies element r from process r to every process. The vectors must be equally long everywhere.
// Elements beyond the number of processes stay as they are. Throws CommError if a process does not
// arrive within the timeout, or is lost.
void ShareByRank(std::vector<std::string>& values, double timeout_seconds = 60);

using NamedNumbers = std::map<std::string, std::vector<double>>;
// The same for numbers by name, such as weights; values are copied bit by bit. Names must not
// contain line breaks.
void ShareByRank(std::vector<NamedNumbers>& values, double timeout_seconds = 60);

}  // namespace apogee::comm

#endif  // APOGEE_COMM_SOME_RANKS_H_
