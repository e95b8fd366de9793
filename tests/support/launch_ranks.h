// comm::launch for tests that also run under mpirun, where ranks are processes.
//
//   const absl::Status status = LaunchRanks({.num_ranks = 3}, [&](comm::World& world) {
//     results[world.rank()] = ...;
//   });
//   ShareByRank(results);            // what the other processes have written
//
// There the processes beyond num_ranks do nothing, but run the rest of the test like all others.
#ifndef APOGEE_TESTS_SUPPORT_LAUNCH_RANKS_H_
#define APOGEE_TESTS_SUPPORT_LAUNCH_RANKS_H_

#include <algorithm>
#include <string>
#include <vector>

#include "apogee/comm/process/process_world.h"

namespace apogee::testing {

// 1 where ranks are threads.
inline int NumProcesses() { return ValueOrThrow(comm::StartedProcesses()).size; }

inline absl::Status LaunchRanks(const comm::LaunchOptions& options,
                                const std::function<void(comm::World&)>& fn) {
  if (NumProcesses() == 1) return comm::launch(options, fn);
  return comm::process::Launch(options, std::max(1, options.threads_per_rank), fn);
}

// Gives every process the elements of every rank, each taken from its own process.
inline void ShareByRank(std::vector<std::string>& values) {
  const int size = NumProcesses();
  if (size == 1) return;
  OkOrThrow(comm::launch({.threads_per_rank = 1}, [&](comm::World& world) {
    for (int r = 0; r < std::min(size, static_cast<int>(values.size())); ++r) {
      std::string& value = values[static_cast<size_t>(r)];
      const Tensor bytes =
          Tensor::Full({1}, DType::kI64, static_cast<double>(value.size()), world.context());
      world.group()->Broadcast(bytes, r);
      const Tensor text = Tensor::Zeros({bytes.data<int64_t>()[0]}, DType::kU8, world.context());
      if (world.rank() == r) std::copy(value.begin(), value.end(), text.data<uint8_t>());
      world.group()->Broadcast(text, r);
      value.assign(text.data<uint8_t>(), text.data<uint8_t>() + text.numel());
    }
  }));
}

}  // namespace apogee::testing

#endif  // APOGEE_TESTS_SUPPORT_LAUNCH_RANKS_H_
