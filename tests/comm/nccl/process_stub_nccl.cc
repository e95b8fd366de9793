// SPDX-License-Identifier: Apache-2.0

// An NCCL whose ranks are processes with emulated GPUs (tests/cuda_emulation): its calls are queued
// on the emulated streams. As libnccl.so.2, where a program's loader finds it. A message is a file
// in a folder that the unique id names; a send is over when its receiver has taken the message, as
// NCCL's may be, so that members whose calls are not in one order hang.
//
// It moves data, and refuses to reduce any. As strict as stub_nccl.cc: a communicator is
// non-blocking, used by one thread but for ncclCommAbort, and not called while it is in progress.
//
// STUB_NCCL_FAULT, in a process' environment: "never_completes": what is queued from then on waits
// until the abort; "slow": it takes 0.1 s; "version": another than the others'.
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "apogee/comm/nccl/abi.h"
#include "apogee/tests/cuda_emulation/stream.h"

namespace apogee::comm::nccl {

extern "C" Result ncclGroupStart();
extern "C" Result ncclGroupEnd();

namespace {

namespace fs = std::filesystem;

bool HasFault(const char* name) {
  const char* fault = std::getenv("STUB_NCCL_FAULT");
  return fault != nullptr && std::string(fault) == name;
}

void Write(const fs::path& path, const std::string& bytes) {
  const fs::path unfinished = path.string() + ".new";
  std::ofstream(unfinished, std::ios::binary) << bytes;
  std::error_code gone;  // another member has aborted and removed the folder
  fs::rename(unfinished, path, gone);
}

// What calls on streams share with the communicator, which may be gone.
struct State {
  fs::path folder;
  int rank, size;
  std::atomic<bool> aborted{false};
};

}  // namespace

struct OpaqueComm {
  std::shared_ptr<State> state;
  std::thread::id thread = std::this_thread::get_id();
  int polls_to_come = 2;  // until it is no longer in progress
  bool ready = false, finalizing = false, final = false;
  std::map<int, int64_t> num_sent = {}, num_received = {};

  bool HaveAll(const char* kind) const {
    // The first to see it may have removed all.
    if (!fs::exists(state->folder)) return finalizing;
    for (int r = 0; r < state->size; ++r) {
      if (!fs::exists(state->folder / (kind + std::to_string(r)))) return false;
    }
    return true;
  }
  bool InProgress() {
    ready = ready || HaveAll("come");
    final = final || (finalizing && HaveAll("final"));
    return polls_to_come > 0 || !ready || (finalizing && !final);
  }
  bool IsMisused() const { return thread != std::this_thread::get_id() || state->aborted; }
};

namespace {

struct Message {
  fs::path path;
  char* data;
  size_t bytes;
};

// One call's messages, on the stream's thread.
struct Transfer {
  std::shared_ptr<State> state;
  std::vector<Message> sends, receives;
  std::vector<Message> copies;  // of this member's own, from `from`
  const void* from = nullptr;
  bool never_completes = false, is_slow = false;

  template <typename Fn>
  bool WaitUntil(const Fn& fn) const {
    while (!state->aborted && !fn()) std::this_thread::sleep_for(std::chrono::microseconds(100));
    return !state->aborted;
  }
  void Run() const {
    if (is_slow) std::this_thread::sleep_for(std::chrono::milliseconds(100));
    if (never_completes) WaitUntil([] { return false; });
    if (state->aborted) return;
    for (const Message& copy : copies) std::memcpy(copy.data, from, copy.bytes);
    for (const Message& send : sends) Write(send.path, std::string(send.data, send.bytes));
    for (const Message& receive : receives) {
      if (!WaitUntil([&] { return fs::exists(receive.path); })) return;
      std::string bytes(fs::file_size(receive.path), '\0');
      std::ifstream(receive.path, std::ios::binary).read(bytes.data(), std::ssize(bytes));
      if (bytes.size() != receive.bytes) {
        std::fprintf(stderr, "stub NCCL: %s has %zu bytes, %zu are expected\n",
                     receive.path.c_str(), bytes.size(), receive.bytes);
        std::abort();
      }
      std::memcpy(receive.data, bytes.data(), bytes.size());
      fs::remove(receive.path);
    }
    for (const Message& send : sends) {
      if (!WaitUntil([&] { return !fs::exists(send.path); })) return;
    }
  }
};

thread_local int group_depth = 0;
thread_local Comm group_comm = nullptr;
thread_local Stream group_stream = nullptr;
thread_local Transfer group;

size_t Bytes(size_t count, DataType dtype) {
  constexpr size_t kSizes[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2};
  return count * kSizes[dtype];
}

Message MessageOf(Comm comm, int from, int to, const void* data, size_t bytes) {
  const bool is_send = from == comm->state->rank;
  const int64_t number = is_send ? comm->num_sent[to]++ : comm->num_received[from]++;
  return {comm->state->folder /
              (std::to_string(from) + "-" + std::to_string(to) + "-" + std::to_string(number)),
          static_cast<char*>(const_cast<void*>(data)), bytes};
}

Result Queue(Comm comm, Transfer transfer, Stream stream) {
  transfer.state = comm->state;
  transfer.never_completes = HasFault("never_completes");
  transfer.is_slow = HasFault("slow");
  cuda_emulation::StreamOf(static_cast<cudaStream_t>(stream))
      .Queue([transfer = std::move(transfer)] { transfer.Run(); });
  comm->polls_to_come = 2;
  return kInProgress;
}

// Both ways at once, from and to whom `count` elements go.
Result Collective(Comm comm, Stream stream, const std::vector<int>& to,
                  const std::vector<int>& from, const void* input, void* output, size_t bytes,
                  bool by_rank) {
  if (comm->IsMisused() || comm->InProgress()) return kInvalidUsage;
  Transfer transfer;
  transfer.from = input;
  const int self = comm->state->rank;
  for (const int r : to) {
    if (r != self) transfer.sends.push_back(MessageOf(comm, self, r, input, bytes));
  }
  for (const int r : from) {
    char* const slot = static_cast<char*>(output) + (by_rank ? static_cast<size_t>(r) * bytes : 0);
    if (r != self) {
      transfer.receives.push_back(MessageOf(comm, r, self, slot, bytes));
    } else if (slot != input) {
      transfer.copies.push_back({{}, slot, bytes});
    }
  }
  return Queue(comm, std::move(transfer), stream);
}

Result PointToPoint(Comm comm, Stream stream, int from, int to, const void* data, size_t bytes) {
  if (comm->IsMisused() || comm->InProgress()) return kInvalidUsage;
  if (group_depth == 0 && from == to) return kInvalidUsage;
  ncclGroupStart();
  const bool is_send = from == comm->state->rank;
  group_comm = comm;
  group_stream = stream;
  (is_send ? group.sends : group.receives).push_back(MessageOf(comm, from, to, data, bytes));
  return ncclGroupEnd();
}

std::vector<int> All(Comm comm) {
  std::vector<int> ranks;
  for (int r = 0; r < comm->state->size; ++r) ranks.push_back(r);
  return ranks;
}

}  // namespace

extern "C" {

Result ncclGetVersion(int* version) {
  *version = HasFault("version") ? 22809 : 22105;
  return kSuccess;
}

Result ncclGetUniqueId(UniqueId* id) {
  *id = {};
  const fs::path base = fs::exists("/dev/shm") ? "/dev/shm" : fs::temp_directory_path();
  const std::string name = base / "stub_nccl_XXXXXX";
  std::snprintf(id->internal, sizeof(id->internal), "%s", name.c_str());
  if (mkdtemp(id->internal) == nullptr) return kSystemError;
  // What no communicator removes, because none was made or its process died.
  static struct Folders {
    ~Folders() {
      std::error_code gone;
      for (const std::string& name : names) fs::remove_all(name, gone);
    }
    std::vector<std::string> names;
  } folders;
  folders.names.emplace_back(id->internal);
  return kSuccess;
}

Result ncclCommInitRankConfig(Comm* comm, int size, UniqueId id, int rank, Config* config) {
  if (config->magic != 0xcafebeef || config->blocking != 0) return kInvalidArgument;
  auto state = std::make_shared<State>();
  state->folder = id.internal;
  state->rank = rank;
  state->size = size;
  Write(state->folder / ("come" + std::to_string(rank)), "");
  __atomic_store_n(comm, new OpaqueComm{.state = std::move(state)}, __ATOMIC_RELEASE);
  return kInProgress;
}

Result ncclCommGetAsyncError(Comm comm, Result* error) {
  if (comm->IsMisused()) return kInvalidUsage;
  *error = comm->InProgress() ? kInProgress : kSuccess;
  if (comm->polls_to_come > 0) --comm->polls_to_come;
  return kSuccess;
}

Result ncclCommFinalize(Comm comm) {
  if (comm->IsMisused() || comm->InProgress() || comm->finalizing) return kInvalidUsage;
  Write(comm->state->folder / ("final" + std::to_string(comm->state->rank)), "");
  comm->finalizing = true;
  comm->polls_to_come = 2;
  return kInProgress;
}

Result ncclCommDestroy(Comm comm) {
  if (comm->IsMisused() || comm->InProgress() || !comm->finalizing) return kInvalidUsage;
  std::error_code gone;
  fs::remove_all(comm->state->folder, gone);
  delete comm;
  return kSuccess;
}

// Any thread. The communicator's own may be in a call: its memory stays.
Result ncclCommAbort(Comm comm) {
  comm->state->aborted = true;
  std::error_code gone;
  fs::remove_all(comm->state->folder, gone);
  static auto& kept = *new std::vector<Comm>;
  kept.push_back(comm);
  return kSuccess;
}

const char* ncclGetErrorString(Result) { return "a stub's error"; }
const char* ncclGetLastError(Comm) { return "the stub's last words"; }

Result ncclAllGather(const void* input, void* output, size_t count, DataType dtype, Comm comm,
                     Stream stream) {
  return Collective(comm, stream, All(comm), All(comm), input, output, Bytes(count, dtype), true);
}
Result ncclBroadcast(const void* input, void* output, size_t count, DataType dtype, int root,
                     Comm comm, Stream stream) {
  const bool is_root = root == comm->state->rank;
  return Collective(comm, stream, is_root ? All(comm) : std::vector<int>(), std::vector{root},
                    input, output, Bytes(count, dtype), false);
}
Result ncclSend(const void* input, size_t count, DataType dtype, int peer, Comm comm,
                Stream stream) {
  return PointToPoint(comm, stream, comm->state->rank, peer, input, Bytes(count, dtype));
}
Result ncclRecv(void* output, size_t count, DataType dtype, int peer, Comm comm, Stream stream) {
  return PointToPoint(comm, stream, peer, comm->state->rank, output, Bytes(count, dtype));
}

// Sums of NCCL have an order of their own: nothing of Apogee may ask for them.
Result ncclAllReduce(const void*, void*, size_t, DataType, RedOp, Comm, Stream) {
  return kInvalidUsage;
}
Result ncclReduceScatter(const void*, void*, size_t, DataType, RedOp, Comm, Stream) {
  return kInvalidUsage;
}
Result ncclReduce(const void*, void*, size_t, DataType, RedOp, int, Comm, Stream) {
  return kInvalidUsage;
}

Result ncclGroupStart() {
  ++group_depth;
  return kSuccess;
}
Result ncclGroupEnd() {
  if (--group_depth > 0 || group_comm == nullptr) return kSuccess;
  return Queue(std::exchange(group_comm, nullptr), std::exchange(group, {}), group_stream);
}

}  // extern "C"

}  // namespace apogee::comm::nccl
