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
#include <cstring>
#include <map>
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

// The same for values by name.
inline void ShareByRank(std::vector<std::map<std::string, std::vector<double>>>& values) {
  if (NumProcesses() == 1) return;
  std::vector<std::string> texts;
  for (const auto& ranks_own : values) {
    std::string& text = texts.emplace_back();
    for (const auto& [name, numbers] : ranks_own) {
      text += name + '\n' + std::to_string(numbers.size()) + '\n';
      text.append(reinterpret_cast<const char*>(numbers.data()), numbers.size() * sizeof(double));
    }
  }
  ShareByRank(texts);
  for (size_t r = 0; r < values.size(); ++r) {
    values[r].clear();
    for (size_t at = 0; at < texts[r].size();) {
      const auto line = [&] {
        const size_t end = texts[r].find('\n', at);
        const std::string found = texts[r].substr(at, end - at);
        at = end + 1;
        return found;
      };
      std::vector<double>& numbers = values[r][line()];
      numbers.resize(std::stoul(line()));
      std::memcpy(numbers.data(), texts[r].data() + at, numbers.size() * sizeof(double));
      at += numbers.size() * sizeof(double);
    }
  }
}

}  // namespace apogee::testing

#endif  // APOGEE_TESTS_SUPPORT_LAUNCH_RANKS_H_
