// SPDX-License-Identifier: Apache-2.0

#include "apogee/comm/failure/flight_record.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <system_error>
#include <utility>

#include "apogee/comm/failure/run_within.h"
#include "apogee/core/text/text.h"

namespace apogee::comm {
namespace {

constexpr const char* kStateNames[] = {"waiting", "moving", "done", "failed"};

std::string Milliseconds(std::chrono::steady_clock::duration duration) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.3f",
                std::chrono::duration<double, std::milli>(duration).count());
  return text;
}

std::string JsonList(const std::vector<int>& numbers) {
  std::string list = "[";
  for (const int number : numbers) {
    if (list.size() > 1) list += ',';
    list += std::to_string(number);
  }
  return list + "]";
}

std::string FileName(int rank) { return "rank" + std::to_string(rank) + ".json"; }

}  // namespace

FlightRecord::FlightRecord(int rank, int num_ranks, std::chrono::milliseconds timeout,
                           std::string directory)
    : rank_(rank), num_ranks_(num_ranks), timeout_(timeout), directory_(std::move(directory)) {}

std::string FlightRecord::path() const {
  return (std::filesystem::path(directory_) / FileName(rank_)).string();
}

absl::Status FlightRecord::Prepare() const {
  if (directory_.empty()) return absl::OkStatus();
  std::error_code error;
  std::filesystem::create_directories(directory_, error);
  if (!error) std::filesystem::remove(path(), error);
  for (int r = num_ranks_; rank_ == 0 && !error; ++r) {
    if (!std::filesystem::remove(std::filesystem::path(directory_) / FileName(r), error)) break;
  }
  if (!error && access(directory_.c_str(), W_OK) != 0) {
    error = std::error_code(errno, std::generic_category());
  }
  if (!error) return absl::OkStatus();
  return InvalidArgument("launch: flight_record_dir ", directory_,
                         " cannot be used: ", error.message(),
                         "; give a folder that you may write to");
}

uint64_t FlightRecord::Call(const FlightCall& call) {
  std::lock_guard lock(mutex_);
  num_calls_[{call.group, call.sender, call.receiver}] = call.sequence + 1;
  active_at_ = Clock::now();
  entries_[next_id_] = {.call = call, .called = active_at_};
  if (entries_.size() > kNumCalls) Forget();
  return next_id_++;
}

// Drops the oldest call that has ended; if too many are still running, the oldest of those.
void FlightRecord::Forget() {
  const auto ended = std::ranges::find_if(entries_, [](const auto& entry) {
    return entry.second.state == State::kDone || entry.second.state == State::kFailed;
  });
  entries_.erase(ended == entries_.end() ? entries_.begin() : ended);
}

FlightRecord::Entry* FlightRecord::Find(uint64_t id) {
  const auto found = entries_.find(id);
  return found == entries_.end() ? nullptr : &found->second;
}

void FlightRecord::SetMoving(uint64_t id) {
  std::lock_guard lock(mutex_);
  if (Entry* const entry = Find(id)) entry->state = State::kMoving;
}

void FlightRecord::Finish(uint64_t id, const std::string& error, const std::vector<int>& missing) {
  std::lock_guard lock(mutex_);
  Entry* const entry = Find(id);
  if (entry == nullptr) return;
  entry->state = error.empty() ? State::kDone : State::kFailed;
  entry->error = error;
  entry->missing = missing;
  entry->ended = Clock::now();
}

void FlightRecord::EndFunction(const std::string& how) {
  std::lock_guard lock(mutex_);
  function_ = how;
}

void FlightRecord::SetWaitedFor() {
  std::lock_guard lock(mutex_);
  waited_for_ = true;
}

bool FlightRecord::waited_for() const {
  std::lock_guard lock(mutex_);
  return waited_for_;
}

bool FlightRecord::is_waiting() const {
  std::lock_guard lock(mutex_);
  return num_waiting_ > 0;
}

FlightRecord::Clock::time_point FlightRecord::active_at() const {
  std::lock_guard lock(mutex_);
  return num_waiting_ > 0 ? Clock::now() : active_at_;
}

void FlightRecord::AddWaiting(int count) {
  std::lock_guard lock(mutex_);
  num_waiting_ += count;
  active_at_ = Clock::now();
}

std::string FlightRecord::ToJson() const {
  char host[256] = "";
  gethostname(host, sizeof(host) - 1);
  std::lock_guard lock(mutex_);
  const auto now = Clock::now();
  std::string json =
      "{\"format\":\"apogee flight record\",\"version\":1,\"rank\":" + std::to_string(rank_) +
      ",\"num_ranks\":" + std::to_string(num_ranks_) + ",\"process\":" + std::to_string(getpid()) +
      ",\"host\":" + JsonQuoted(host) + ",\"timeout_ms\":" + std::to_string(timeout_.count()) +
      ",\"age_ms\":" + Milliseconds(now - started_) + ",\"function\":" + JsonQuoted(function_) +
      ",\n\"channels\":[";
  std::map<ChannelKey, size_t> numbers;
  for (const auto& [key, num_calls] : num_calls_) {
    const auto& [group, sender, receiver] = key;
    json += numbers.empty() ? "\n" : ",\n";
    numbers.emplace(key, numbers.size());
    json += "{\"group\":" + JsonQuoted(group->name) + ",\"ranks\":" + JsonList(group->ranks) +
            ",\"sender\":" + std::to_string(sender) + ",\"receiver\":" + std::to_string(receiver) +
            ",\"num_calls\":" + std::to_string(num_calls) + "}";
  }
  json += "],\n\"calls\":[";
  const char* separator = "\n";
  for (const auto& [id, entry] : entries_) {
    const FlightCall& call = entry.call;
    json += separator;
    separator = ",\n";
    json += "{\"channel\":" + std::to_string(numbers.at({call.group, call.sender, call.receiver})) +
            ",\"sequence\":" + std::to_string(call.sequence) +
            ",\"call\":" + JsonQuoted(call.fingerprint.ToString()) + ",\"state\":\"" +
            kStateNames[static_cast<size_t>(entry.state)] +
            "\",\"called_ms\":" + Milliseconds(entry.called - started_);
    if (entry.ended != Clock::time_point{}) {
      json += ",\"ended_ms\":" + Milliseconds(entry.ended - started_);
    }
    if (!entry.error.empty()) json += ",\"error\":" + JsonQuoted(entry.error);
    if (!entry.missing.empty()) json += ",\"missing\":" + JsonList(entry.missing);
    json += "}";
  }
  return json + "]}\n";
}

absl::Status FlightRecord::Write() const {
  std::lock_guard lock(writing_);  // so the last call to get here writes the newest state
  const std::string part = path() + ".part";
  {
    std::ofstream file(part, std::ios::binary | std::ios::trunc);
    file << ToJson();
    if (!file.flush()) return absl::UnavailableError("cannot write " + part);
  }
  std::error_code error;
  std::filesystem::rename(part, path(), error);
  if (!error) return absl::OkStatus();
  return absl::UnavailableError("cannot write " + path() + ": " + error.message());
}

void FlightRecord::WriteWithin(std::chrono::milliseconds limit) {
  if (directory_.empty()) return;
  RunWithin(limit, [self = shared_from_this()] {
    const absl::Status status = self->Write();
    if (status.ok()) return;
    std::fprintf(stderr, "apogee: flight record of rank %d: %s\n", self->rank_,
                 Message(status).c_str());
  });
}

}  // namespace apogee::comm
