// SPDX-License-Identifier: Apache-2.0

// LocalWorld: the ranks of one process, and the state that their groups share. Private to
// comm/local; made by launch().
//
// Each rank has a thread that executes its shares of collectives. A share is queued only once every
// member has arrived. So these threads never wait for a peer, and collectives of different groups
// cannot block each other, regardless of the order of the calls.
#ifndef APOGEE_COMM_LOCAL_LOCAL_WORLD_H_
#define APOGEE_COMM_LOCAL_LOCAL_WORLD_H_

#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "apogee/comm/failure/flight_record.h"
#include "apogee/comm/group.h"
#include "apogee/comm/local/operation.h"

namespace apogee::comm::local {

// Runs tasks in order on one thread, which sleeps while there are none.
class TaskThread {
 public:
  TaskThread();
  ~TaskThread();  // runs the queued tasks, then joins
  void Post(std::function<void()> task);

 private:
  void Run();

  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<std::function<void()>> tasks_;
  bool stopping_ = false;
  std::thread thread_;
};

using FlightRecords = std::vector<std::shared_ptr<FlightRecord>>;

// The state that the members of one group share.
class GroupState {
 public:
  // `name`: names the group's lanes in a trace.
  GroupState(std::vector<int> members, std::vector<TaskThread*> threads, FlightRecords records,
             std::string name);

  // Starts member `rank`'s next call. Never waits for a peer.
  std::shared_ptr<Operation> Arrive(int rank, CollectiveCall call);
  // Call when `operation` did not finish in time: names the missing members, and fails the
  // operation for every member.
  void TimeOut(const std::shared_ptr<Operation>& operation, std::chrono::milliseconds timeout);
  // Member `rank` will make no more calls.
  void Leave(int rank, const std::string& reason);
  // Member `rank`'s next duplicate of this group. The first member to ask makes it. All handles of
  // a member share the count, so that no two of them get the same duplicate.
  std::shared_ptr<GroupState> Copy(int rank);

  const std::vector<int>& members() const { return members_; }
  const std::string& name() const { return flight_group_->name; }
  const std::shared_ptr<FlightRecord>& record(int rank) const {
    return records_[static_cast<size_t>(rank)];
  }

 private:
  // Operations that are matched by sequence number: those of the whole group, or those of a pair.
  struct Channel {
    std::vector<int64_t> next;  // next sequence number, by position in `ranks`
    std::map<int64_t, std::shared_ptr<Operation>> pending;
    std::vector<int> ranks;  // in the group
  };

  std::string Name(const Operation& operation, const CollectiveCall& call) const;
  // Records member `rank`'s call, which is an operation of the channel.
  void Note(int rank, const CollectiveCall& call, const Channel& channel, Operation& operation);
  // For example "0, 2": the world ranks of these ranks of the group.
  std::string WorldRanks(const std::vector<int>& ranks) const;
  // World ranks of the channel's members that have not arrived.
  std::vector<int> Missing(const Channel& channel, const Operation& operation) const;
  void FailLocked(Channel& channel, const std::shared_ptr<Operation>& operation,
                  const std::string& message);
  void Execute(const std::shared_ptr<Operation>& operation, const std::vector<int>& ranks);
  Channel& ChannelFor(int rank, const CollectiveCall& call, size_t& position);

  std::vector<int> members_;  // ranks in the world
  std::vector<TaskThread*> threads_;
  FlightRecords records_;  // by rank in the group
  std::shared_ptr<const FlightGroup> flight_group_;
  std::mutex mutex_;
  Channel all_;
  std::map<std::pair<int, int>, Channel> pairs_;  // (sender, receiver)
  std::map<int, std::string> gone_;               // rank in the group -> why
  std::map<int, std::shared_ptr<GroupState>> copies_;
  std::vector<int> num_copies_;  // duplicates that each member has asked for
  std::string broken_;           // the first error; empty: none
};

class LocalWorld {
 public:
  // `trace` may be null. `records`: one per rank.
  LocalWorld(FlightRecords records, std::chrono::milliseconds timeout, Trace* trace);

  int size() const { return static_cast<int>(threads_.size()); }
  // The handle of world rank `rank` on the group of `members` (world ranks, in the group's order).
  GroupPtr MakeGroup(int rank, const std::vector<int>& members);
  // Rank `rank` has returned or failed: fails the collectives that wait for it.
  void Leave(int rank, const std::string& reason);

 private:
  std::chrono::milliseconds timeout_;
  Trace* trace_;
  FlightRecords records_;
  std::vector<std::unique_ptr<TaskThread>> threads_;
  std::mutex mutex_;
  std::map<std::vector<int>, std::shared_ptr<GroupState>> groups_;
  std::map<int, std::string> gone_;
};

}  // namespace apogee::comm::local

#endif  // APOGEE_COMM_LOCAL_LOCAL_WORLD_H_
