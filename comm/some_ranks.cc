// SPDX-License-Identifier: Apache-2.0

#include "apogee/comm/some_ranks.h"

#include <algorithm>
#include <cstring>

#include "apogee/comm/process/process_world.h"

namespace apogee::comm {
namespace {

std::string ToText(const NamedNumbers& values) {
  std::string text;
  for (const auto& [name, numbers] : values) {
    text += name + '\n' + std::to_string(numbers.size()) + '\n';
    text.append(reinterpret_cast<const char*>(numbers.data()), numbers.size() * sizeof(double));
  }
  return text;
}

NamedNumbers FromText(const std::string& text) {
  NamedNumbers values;
  size_t at = 0;
  const auto line = [&] {
    const size_t end = text.find('\n', at);
    std::string found = text.substr(at, end - at);
    at = end + 1;
    return found;
  };
  while (at < text.size()) {
    std::vector<double>& numbers = values[line()];
    numbers.resize(std::stoul(line()));
    const size_t bytes = numbers.size() * sizeof(double);
    if (bytes > 0) std::memcpy(numbers.data(), text.data() + at, bytes);
    at += bytes;
  }
  return values;
}

// Copies the root's value to all ranks.
void BroadcastText(const World& world, std::string& value, int root) {
  const auto mine = static_cast<double>(value.size());
  const ContextPtr& context = HostOf(world.context());
  const Tensor size = Tensor::Full({1}, DType::kI64, mine, context);
  world.group()->Broadcast(size, root);
  const Tensor bytes = Tensor::Zeros({size.data<int64_t>()[0]}, DType::kU8, context);
  if (world.rank() == root) std::copy(value.begin(), value.end(), bytes.data<uint8_t>());
  world.group()->Broadcast(bytes, root);
  value.assign(bytes.data<uint8_t>(), bytes.data<uint8_t>() + bytes.numel());
}

}  // namespace

absl::Status LaunchSome(const LaunchOptions& options, const std::function<void(World&)>& fn) {
  APOGEE_ASSIGN_OR_RETURN(const Processes processes, StartedProcesses());
  const bool is_some = options.num_ranks > 0 && options.num_ranks < processes.size;
  // For invalid options, launch returns the error.
  const bool is_valid = options.threads_per_rank >= 0 && options.timeout_seconds > 0;
  if (!is_some || !is_valid) return launch(options, fn);
  return process::Launch(options, std::max(1, options.threads_per_rank), fn);
}

void ShareByRank(std::vector<std::string>& values, double timeout_seconds) {
  const int size = ValueOrThrow(StartedProcesses()).size;
  if (size == 1) return;
  const absl::Status status =
      launch({.threads_per_rank = 1, .timeout_seconds = timeout_seconds}, [&](const World& world) {
        for (int r = 0; r < std::min(size, static_cast<int>(values.size())); ++r) {
          BroadcastText(world, values[static_cast<size_t>(r)], r);
        }
      });
  if (!status.ok()) throw CommError("sharing the ranks' results: " + Message(status));
}

void ShareByRank(std::vector<NamedNumbers>& values, double timeout_seconds) {
  if (ValueOrThrow(StartedProcesses()).size == 1) return;
  std::vector<std::string> texts;
  for (const NamedNumbers& own : values) texts.push_back(ToText(own));
  ShareByRank(texts, timeout_seconds);
  for (size_t r = 0; r < values.size(); ++r) values[r] = FromText(texts[r]);
}

}  // namespace apogee::comm
