// SPDX-License-Identifier: Apache-2.0

// An NCCL over host memory: its ranks are threads of one process, its streams StubStreams. As
// strict as NCCL: a communicator is non-blocking, used by one thread but for ncclCommAbort, and not
// called while it is in progress. Faults (stub_nccl_set_faults) make it hang where NCCL has been
// seen to.
//
// Built three times: as it is, as an old version (STUB_VERSION), and without ncclCommAbort
// (STUB_WITHOUT_ABORT).
#include "apogee/tests/comm/nccl/stub_nccl.h"

#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "apogee/comm/nccl/abi.h"
#include "apogee/tests/comm/nccl/stub_rounds.h"

#ifndef STUB_VERSION
#define STUB_VERSION 22105
#endif

namespace apogee::comm::nccl {
namespace {

using testing::StubStream;

struct Transfer {
  size_t bytes;
  Post post;
};

struct World {
  int size = 0, num_come = 0, num_finalized = 0;
  std::map<int64_t, Round> rounds;
  std::map<std::pair<int, int>, std::deque<Transfer>> sends, recvs;
};

// Never destroyed: threads may hang in here when the process ends.
auto& mutex = *new std::mutex;
auto& changed = *new std::condition_variable;
auto& worlds = *new std::map<std::string, std::shared_ptr<World>>;
auto& faults = *new std::map<int, std::string>;
int num_ids = 0, num_alive = 0;

}  // namespace

struct OpaqueComm {
  std::shared_ptr<World> world;
  int rank;
  std::thread::id thread = std::this_thread::get_id();
  int polls_to_come = 0;  // until it is no longer in progress
  int64_t num_rounds = 0;
  bool finalizing = false, aborted = false;

  bool Has(const std::string& fault) const {
    return ("," + faults[rank] + "," + faults[-1] + ",").find("," + fault + ",") !=
           std::string::npos;
  }
  bool InProgress() const {
    return polls_to_come > 0 || world->num_come < world->size ||
           (finalizing && (world->num_finalized < world->size || Has("finalize_hangs")));
  }
  bool IsMisused() const { return thread != std::this_thread::get_id() || aborted; }
};

namespace {

// NCCL returns at once and goes on by itself.
Result Begin(Comm comm) {
  comm->polls_to_come = comm->Has("slow") ? 110 : 2;
  return kInProgress;
}

void Hang(std::unique_lock<std::mutex>& lock) {
  changed.wait(lock, [] { return false; });
}

// By NCCL's number; 3 and 5 are types that Apogee has not.
DType FromNccl(DataType dtype) {
  constexpr DType kTypes[] = {DType::kI8, DType::kU8,  DType::kI32, {},          DType::kI64,
                              {},         DType::kF16, DType::kF32, DType::kF64, DType::kBF16};
  return kTypes[dtype];
}

Result Collective(Comm comm, Round round, const void* input, void* output, Stream stream) {
  std::unique_lock lock(mutex);
  if (comm->IsMisused() || comm->InProgress()) return kInvalidUsage;
  if (comm->Has("enqueue_fails")) return kInvalidArgument;
  if (comm->Has("enqueue_hangs")) changed.wait(lock, [&] { return comm->aborted; });
  if (comm->Has("enqueue_never_returns")) Hang(lock);
  auto* const device = static_cast<StubStream*>(stream);
  ++device->queued;
  if (comm->Has("never_completes")) return Begin(comm);
  World& world = *comm->world;
  Round& shared = world.rounds.try_emplace(comm->num_rounds, round).first->second;
  if (shared.kind != round.kind || shared.count != round.count || shared.dtype != round.dtype) {
    return kInvalidArgument;
  }
  shared.posts[comm->rank] = {input, output, device};
  if (shared.posts.size() == static_cast<size_t>(world.size)) {
    Execute(shared, world.size);
    world.rounds.erase(comm->num_rounds);
  }
  ++comm->num_rounds;
  return Begin(comm);
}

thread_local int group_depth = 0;
thread_local std::vector<std::function<void()>> group_calls;

Result PointToPoint(Comm comm, bool is_send, int peer, Transfer transfer) {
  std::lock_guard lock(mutex);
  if (comm->IsMisused() || comm->InProgress()) return kInvalidUsage;
  const auto post = [comm, is_send, peer, transfer] {
    ++transfer.post.stream->queued;
    World& world = *comm->world;
    const auto channel = is_send ? std::pair(comm->rank, peer) : std::pair(peer, comm->rank);
    (is_send ? world.sends : world.recvs)[channel].push_back(transfer);
    auto& sends = world.sends[channel];
    auto& recvs = world.recvs[channel];
    while (!sends.empty() && !recvs.empty()) {
      const Transfer& from = sends.front();
      const Transfer& to = recvs.front();
      if (to.bytes > 0) std::memcpy(to.post.output, from.post.input, to.bytes);
      ++from.post.stream->completed;
      ++to.post.stream->completed;
      sends.pop_front();
      recvs.pop_front();
    }
    Begin(comm);
  };
  if (group_depth > 0) {
    group_calls.push_back(post);
    return kSuccess;
  }
  if (peer == comm->rank) return kInvalidUsage;
  post();
  return kInProgress;
}

}  // namespace

extern "C" {

void stub_nccl_set_faults(const char* names, int rank) {
  std::lock_guard lock(mutex);
  if (rank < 0) faults.clear();
  faults[rank] = names;
}

int stub_nccl_num_alive() {
  std::lock_guard lock(mutex);
  return num_alive;
}

Result ncclGetVersion(int* version) {
  *version = STUB_VERSION;
  return kSuccess;
}

Result ncclGetUniqueId(UniqueId* id) {
  std::unique_lock lock(mutex);
  if (faults[-1] == "id_hangs") Hang(lock);
  *id = {};
  std::snprintf(id->internal, sizeof(id->internal), "id %d", num_ids++);
  return kSuccess;
}

Result ncclCommInitRankConfig(Comm* comm, int size, UniqueId id, int rank, Config* config) {
  std::unique_lock lock(mutex);
  if (config->magic != 0xcafebeef || config->size < sizeof(Config) || config->version < 21400 ||
      config->blocking != 0) {
    return kInvalidArgument;
  }
  auto& world = worlds[id.internal];
  if (world == nullptr) world = std::make_shared<World>();
  world->size = size;
  auto* const made = new OpaqueComm{.world = world, .rank = rank};
  if (made->Has("init_never_returns")) Hang(lock);
  ++num_alive;
  world->num_come += made->Has("init_in_progress") ? 0 : 1;
  __atomic_store_n(comm, made, __ATOMIC_RELEASE);
  return Begin(made);
}

Result ncclCommGetAsyncError(Comm comm, Result* error) {
  std::unique_lock lock(mutex);
  if (comm->IsMisused()) return kInvalidUsage;
  if (comm->Has("poll_hangs")) changed.wait(lock, [&] { return comm->aborted; });
  *error = comm->InProgress() ? kInProgress : kSuccess;
  if (comm->Has("async_error")) *error = kRemoteError;
  if (comm->polls_to_come > 0) --comm->polls_to_come;
  return kSuccess;
}

Result ncclCommFinalize(Comm comm) {
  std::lock_guard lock(mutex);
  if (comm->IsMisused() || comm->InProgress() || comm->finalizing) return kInvalidUsage;
  comm->finalizing = true;
  ++comm->world->num_finalized;
  return Begin(comm);
}

Result ncclCommDestroy(Comm comm) {
  std::unique_lock lock(mutex);
  if (comm->IsMisused() || comm->InProgress() || !comm->finalizing) return kInvalidUsage;
  if (comm->Has("destroy_never_returns")) Hang(lock);
  --num_alive;
  delete comm;
  return kSuccess;
}

#ifndef STUB_WITHOUT_ABORT
// The memory stays, known to leak checkers: calls that hung are released, and still look at it.
Result ncclCommAbort(Comm comm) {
  std::unique_lock lock(mutex);
  if (comm->Has("abort_never_returns")) Hang(lock);
  if (comm->Has("abort_late")) {
    lock.unlock();
    std::this_thread::sleep_for(std::chrono::milliseconds(900));
    lock.lock();
  }
  comm->aborted = true;
  static auto& kept = *new std::vector<Comm>;
  kept.push_back(comm);
  --num_alive;
  changed.notify_all();
  return kSuccess;
}
#endif

const char* ncclGetErrorString(Result result) {
  return result == kRemoteError ? "a remote process exited" : "a stub's error";
}
const char* ncclGetLastError(Comm) { return "the stub's last words"; }

Result ncclAllReduce(const void* input, void* output, size_t count, DataType dtype, RedOp op,
                     Comm comm, Stream stream) {
  return Collective(comm, {Kind::kAllReduce, static_cast<int64_t>(count), FromNccl(dtype), op, 0},
                    input, output, stream);
}
Result ncclReduceScatter(const void* input, void* output, size_t count, DataType dtype, RedOp op,
                         Comm comm, Stream stream) {
  return Collective(comm,
                    {Kind::kReduceScatter, static_cast<int64_t>(count), FromNccl(dtype), op, 0},
                    input, output, stream);
}
Result ncclAllGather(const void* input, void* output, size_t count, DataType dtype, Comm comm,
                     Stream stream) {
  return Collective(comm,
                    {Kind::kAllGather, static_cast<int64_t>(count), FromNccl(dtype), kRedSum, 0},
                    input, output, stream);
}
Result ncclBroadcast(const void* input, void* output, size_t count, DataType dtype, int root,
                     Comm comm, Stream stream) {
  return Collective(comm,
                    {Kind::kBroadcast, static_cast<int64_t>(count), FromNccl(dtype), kRedSum, root},
                    input, output, stream);
}
Result ncclReduce(const void* input, void* output, size_t count, DataType dtype, RedOp op, int root,
                  Comm comm, Stream stream) {
  return Collective(comm, {Kind::kReduce, static_cast<int64_t>(count), FromNccl(dtype), op, root},
                    input, output, stream);
}
Result ncclSend(const void* input, size_t count, DataType dtype, int peer, Comm comm,
                Stream stream) {
  return PointToPoint(comm, true, peer,
                      {Bytes(static_cast<int64_t>(count), FromNccl(dtype)),
                       {input, nullptr, static_cast<StubStream*>(stream)}});
}
Result ncclRecv(void* output, size_t count, DataType dtype, int peer, Comm comm, Stream stream) {
  return PointToPoint(comm, false, peer,
                      {Bytes(static_cast<int64_t>(count), FromNccl(dtype)),
                       {nullptr, output, static_cast<StubStream*>(stream)}});
}
Result ncclGroupStart() {
  ++group_depth;
  return kSuccess;
}
Result ncclGroupEnd() {
  if (--group_depth > 0) return kSuccess;
  std::lock_guard lock(mutex);
  for (const auto& call : group_calls) call();
  const bool any = !group_calls.empty();
  group_calls.clear();
  return any ? kInProgress : kSuccess;
}

}  // extern "C"

}  // namespace apogee::comm::nccl
