// SPDX-License-Identifier: Apache-2.0

#include "apogee/checkpoint/background_saver.h"

#include <chrono>
#include <exception>
#include <utility>

namespace apogee::checkpoint {

void BackgroundSaver::Start(Write write) {
  APOGEE_CHECK(!running_.valid(), "a save is running: call Wait before the next one");
  auto run = [group = group_, write = std::move(write)]() mutable -> absl::Status {
    // Destroyed when the save ends, with the copies that it holds, not when somebody calls Wait.
    const Write once = std::move(write);
    try {
      return once(group);
    } catch (const std::exception& error) {
      return absl::InternalError(error.what());
    }
  };
  running_ = std::async(std::launch::async, std::move(run));
}

absl::Status BackgroundSaver::Wait() {
  if (!running_.valid()) return absl::OkStatus();
  return std::exchange(running_, {}).get();
}

void BackgroundSaver::Settle() const {
  if (running_.valid()) running_.wait();
}

std::optional<absl::Status> BackgroundSaver::Peek() {
  if (!running_.valid()) return absl::OkStatus();
  if (running_.wait_for(std::chrono::seconds(0)) != std::future_status::ready) return std::nullopt;
  return running_.get();
}

}  // namespace apogee::checkpoint
