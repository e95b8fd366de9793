// SPDX-License-Identifier: Apache-2.0

// Machine: how long kernels and collectives take, for the times of a plan.
//
//   plan::Machine gpus{.name = "declared", .ranks_per_machine = 8};
//   gpus.other = {.seconds_per_call = 5e-6, .seconds_per_flop = 1 / 400e12,
//                 .seconds_per_byte = 1 / 3e12};
//   gpus.within = {.bytes_per_second = 450e9, .latency_seconds = 3e-6};
//   gpus.between = {.bytes_per_second = 50e9, .latency_seconds = 5e-6};
//
// Or measured here: rates.h. A kernel call takes seconds_per_call + flops * seconds_per_flop +
// bytes * seconds_per_byte. Collectives over a link take, for n ranks and a payload of P bytes
// (comm/traffic.h), the time of the ring or tree that is best in each part:
//   all_reduce                                    2 (n - 1) / n P / bandwidth + 2 log2(n) latency
//   reduce_scatter, all_gather, all_to_all        (n - 1) / n P / bandwidth + log2(n) latency
//   broadcast, reduce                             P / bandwidth + log2(n) latency
//   send, recv                                    P / bandwidth + latency
// Groups that share a link at the same time are not slowed down by each other.
#ifndef APOGEE_PLAN_MACHINE_MACHINE_H_
#define APOGEE_PLAN_MACHINE_MACHINE_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "apogee/comm/traffic.h"

namespace apogee {
struct KernelCall;  // core/kernel_listener.h
}

namespace apogee::plan {

struct KernelRate {
  double seconds_per_call = 0, seconds_per_flop = 0, seconds_per_byte = 0;
};

// One direction, of one rank.
struct Link {
  double bytes_per_second = 0;
  double latency_seconds = 0;
};

// Of a collective between threads of one process.
struct ThreadsRate {
  double seconds_per_call = 0, seconds_per_byte = 0;  // of a group of two
};

struct Machine {
  std::string name = {};
  std::map<std::string, KernelRate> kernels = {};  // by KernelKey
  KernelRate other = {};                           // of kernels without a rate of their own
  // If not empty, ranks on one machine are threads, which share `cores` cores with `threads` of
  // each, and their collectives keep them busy.
  std::map<std::string, ThreadsRate> collectives = {};  // by CollectiveName
  int cores = 0, threads = 1;
  // Ranks that need more cores than there are take turns. Then a step takes this many times their
  // fair share of the cores, because of caches, and of wake-ups after collectives.
  double crowding = 1;
  int ranks_per_machine = 0;  // 0: all
  Link within = {}, between = {};

  bool shares_cores() const { return !collectives.empty(); }
  double SecondsOf(const KernelCall& call) const;
  // Whether these world ranks are on one machine.
  bool IsWithin(const std::vector<int>& members) const;
  double SecondsOf(comm::CollectiveKind kind, int64_t payload_bytes,
                   const std::vector<int>& members) const;
};

// "matmul f32".
std::string KernelKey(const KernelCall& call);

}  // namespace apogee::plan

#endif  // APOGEE_PLAN_MACHINE_MACHINE_H_
