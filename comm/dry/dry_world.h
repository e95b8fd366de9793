// SPDX-License-Identifier: Apache-2.0

// DryWorld: the ranks of a dry launch that run, and the state of their groups. Private to comm/dry;
// made by DryLaunch.
#ifndef APOGEE_COMM_DRY_DRY_WORLD_H_
#define APOGEE_COMM_DRY_DRY_WORLD_H_

#include <chrono>
#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "apogee/comm/dry/dry_launch.h"

namespace apogee::comm::dry {

// One collective: the calls of the members that run, and only of these, since a world may have
// many others.
struct Operation {
  std::vector<CollectiveCall> calls;  // by place in `ranks`
  std::vector<int> ranks;             // ranks in the group that run
  std::vector<bool> arrived;          // by place, too
  size_t num_arrived = 0;
  bool done = false;
  std::string error;
  std::condition_variable finished;
  double begin = 0, end = 0;  // virtual time
};

// The members of a group. All groups share the world's mutex.
struct GroupState {
  std::vector<int> members;  // ranks in the world
  std::vector<int> behind;   // by rank in the group: itself if it runs, else its stand-in
  std::vector<int> running;  // ranks in the group that run
  // Operations of the whole group, and of pairs (sender, receiver), matched by number.
  struct Channel {
    std::map<int, int64_t> next;  // by rank in the group
    std::map<int64_t, std::shared_ptr<Operation>> pending;
    double free_at = 0;  // virtual time: the end of the last operation
  };
  Channel all;
  std::map<std::pair<int, int>, Channel> pairs;
  std::map<int, std::shared_ptr<GroupState>> copies;
  std::map<int, int> num_copies;  // by rank in the group
};

class DryWorld {
 public:
  explicit DryWorld(DryOptions options);

  GroupPtr MakeGroup(int rank, const std::vector<int>& members);
  std::shared_ptr<GroupState> Copy(GroupState& state, int rank);
  void Tell(int world_rank, const CollectiveCall& call) const {
    if (options_.on_call) options_.on_call(world_rank, call);
  }
  // Member `rank`'s next call. Never waits for a peer.
  std::shared_ptr<Operation> Arrive(GroupState& state, int rank, CollectiveCall call);
  // For member `rank`. Throws CommError if the operation failed, or if a member does not arrive in
  // time.
  void Wait(const GroupState& state, int rank, Operation& operation);
  // In virtual time, if there is a clock: a program that asks must not learn how fast threads are.
  bool IsDone(const GroupState& state, int rank, const Operation& operation);
  // Waits in virtual time. `limit` is of real time: a member that does not arrive in it never will.
  bool WaitFor(const GroupState& state, int rank, Operation& operation,
               std::chrono::milliseconds limit);
  // World rank `rank` has returned or failed: all that wait for it fail.
  void Leave(int rank, const std::string& reason);

 private:
  std::shared_ptr<GroupState> MakeState(const std::vector<int>& members) const;
  void Finish(Operation& operation, const std::string& error);
  // The clock's side of member `rank`'s call, and of its wait.
  CollectiveCost Price(const GroupState& state, int rank, const CollectiveCall& call,
                       const std::vector<int>& pair, Operation& operation) const;
  void WaitInTime(const GroupState& state, int rank, const Operation& operation) const;
  // `pair`: sender and receiver; empty for an operation of the whole group.
  static void Move(const GroupState& state, const Operation& operation,
                   const std::vector<int>& pair);
  // Fails a channel's operations whose missing member has left.
  void FailWithout(const GroupState& state, GroupState::Channel& channel);
  void FailAll(GroupState& state);

  DryOptions options_;
  std::mutex mutex_;
  std::map<std::vector<int>, std::shared_ptr<GroupState>> groups_;
  std::map<int, std::string> gone_;  // world rank -> why
};

// Whether the inputs of calls such as this one are small enough to move.
bool Moves(const CollectiveCall& call);
// Moves them. `calls` has a call for every member.
void MoveSmall(const std::vector<CollectiveCall>& calls, const std::vector<int>& running);

}  // namespace apogee::comm::dry

#endif  // APOGEE_COMM_DRY_DRY_WORLD_H_
