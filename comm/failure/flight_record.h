// SPDX-License-Identifier: Apache-2.0

// FlightRecord: a rank's last collectives and their outcomes, for `apogee hang-report`.
//
//   auto record = std::make_shared<FlightRecord>(rank, num_ranks, timeout, directory);
//   const uint64_t id = record->Call({group, -1, -1, sequence, Fingerprint(call)});
//   record->SetMoving(id);                     // all members have arrived
//   record->Finish(id, "");                    // or the error, and the ranks that had not arrived
//   record->WriteWithin(std::chrono::seconds(1));   // DIRECTORY/rank0.json
//
// Keeps the last kNumCalls calls, and older ones that are still running, at about 200 bytes each,
// and for every group the number of calls. All calls may come from any thread. Private to comm.
#ifndef APOGEE_COMM_FAILURE_FLIGHT_RECORD_H_
#define APOGEE_COMM_FAILURE_FLIGHT_RECORD_H_

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <tuple>
#include <vector>

#include "apogee/comm/fingerprint.h"
#include "apogee/core/status.h"

namespace apogee::comm {

// Ranks whose calls share one numbering. One object per group.
struct FlightGroup {
  std::string name;        // "[0 2]", "[0 2] copy 1"
  std::vector<int> ranks;  // in the world
};

struct FlightCall {
  std::shared_ptr<const FlightGroup> group;
  // World ranks, for send and recv. -1: a call of the whole group.
  int sender = -1, receiver = -1;
  int64_t sequence = 0;
  Fingerprint fingerprint = {};
};

class FlightRecord : public std::enable_shared_from_this<FlightRecord> {
 public:
  using Clock = std::chrono::steady_clock;
  static constexpr size_t kNumCalls = 256;

  // With an empty directory nothing is ever written.
  FlightRecord(int rank, int num_ranks, std::chrono::milliseconds timeout, std::string directory);

  // Makes the directory. Removes this rank's file of an earlier run and, on rank 0, also the files
  // of ranks that this run does not have.
  absl::Status Prepare() const;

  uint64_t Call(const FlightCall& call);
  void SetMoving(uint64_t id);
  void Finish(uint64_t id, const std::string& error, const std::vector<int>& missing = {});
  // `how`: "returned", or "failed: " and the reason.
  void EndFunction(const std::string& how);
  // Notes that a collective has waited for this rank for the whole timeout.
  void SetWaitedFor();

  bool waited_for() const;
  // Whether the rank's function is waiting for a collective.
  bool is_waiting() const;
  // When the function last called a collective or waited for one. The current time while it waits.
  Clock::time_point active_at() const;

  // While it lives, the rank's function counts as waiting for a collective, and so not as idle.
  class Waiting {
   public:
    explicit Waiting(FlightRecord& record) : record_(record) { record_.AddWaiting(1); }
    ~Waiting() { record_.AddWaiting(-1); }
    Waiting(const Waiting&) = delete;
    Waiting& operator=(const Waiting&) = delete;

   private:
    FlightRecord& record_;
  };

  std::string ToJson() const;
  // Writes the record in a thread of its own and waits for at most `limit`: a hanging disk must not
  // keep a process from ending. Replaces the file atomically. Prints an error to stderr.
  void WriteWithin(std::chrono::milliseconds limit);

 private:
  enum class State : uint8_t { kWaiting, kMoving, kDone, kFailed };
  struct Entry {
    FlightCall call;
    State state = State::kWaiting;
    Clock::time_point called = {}, ended = {};
    std::string error = {};
    std::vector<int> missing = {};  // world ranks
  };
  using ChannelKey = std::tuple<std::shared_ptr<const FlightGroup>, int, int>;

  void AddWaiting(int count);
  Entry* Find(uint64_t id);
  void Forget();
  std::string path() const;
  absl::Status Write() const;

  const int rank_, num_ranks_;
  const std::chrono::milliseconds timeout_;
  const std::string directory_;
  const Clock::time_point started_ = Clock::now();

  mutable std::mutex mutex_;
  std::map<uint64_t, Entry> entries_;  // by id, so oldest first
  uint64_t next_id_ = 0;
  std::map<ChannelKey, int64_t> num_calls_;
  std::string function_ = "running";
  bool waited_for_ = false;
  int num_waiting_ = 0;
  Clock::time_point active_at_ = started_;
  mutable std::mutex writing_;
};

}  // namespace apogee::comm

#endif  // APOGEE_COMM_FAILURE_FLIGHT_RECORD_H_
