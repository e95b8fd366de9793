// SPDX-License-Identifier: Apache-2.0

// Collectives between processes: the movement of data.
//
// A reduction is cut into one share per member. A member receives its share of all inputs, reduces
// it with TreeReduce, as threads do, and sends the result: so every bit is computed once. All data
// moves in chunks. So sending, reducing and receiving overlap, and no message comes near the 2^31
// bytes that MPI can count. All-reduces over several machines are in hierarchy.h.
#include <algorithm>
#include <cstring>

#include "apogee/comm/process/chunks.h"
#include "apogee/comm/process/hierarchy.h"
#include "apogee/comm/process/operation.h"
#include "apogee/comm/tree_reduce.h"

namespace apogee::comm::process {
namespace {

// Data up to this size is sent with the announcement of the call.
constexpr int64_t kSmallBytes = 2048;

struct Range {
  int64_t begin = 0, end = 0;  // in bytes
  int64_t num_chunks() const { return (end - begin + kChunkBytes - 1) / kChunkBytes; }
  int64_t chunk_begin(int64_t chunk) const { return std::min(end, begin + chunk * kChunkBytes); }
  int64_t chunk_bytes(int64_t chunk) const { return chunk_begin(chunk + 1) - chunk_begin(chunk); }
};

bool IsReduction(CollectiveKind kind) {
  return kind == CollectiveKind::kAllReduce || kind == CollectiveKind::kReduce ||
         kind == CollectiveKind::kReduceScatter;
}

// Number of input bytes that one member has for another.
int64_t BytesPerPeer(const CollectiveCall& call, size_t size) {
  if (call.kind == CollectiveKind::kRecv) return call.output.bytes();
  if (!call.input.defined()) return 0;
  const bool slices =
      call.kind == CollectiveKind::kReduceScatter || call.kind == CollectiveKind::kAllToAll;
  return slices ? call.input.bytes() / static_cast<int64_t>(size) : call.input.bytes();
}

// The exchange in which every member sends to every other directly, also across machines.
class DirectExchange : public Exchange {
 public:
  DirectExchange(Operation& operation, Transfers& transfers) : Exchange(operation, transfers) {}

  void Start() {
    switch (call_.kind) {
      case CollectiveKind::kAllReduce:
      case CollectiveKind::kReduceScatter:
      case CollectiveKind::kReduce:
        return StartReduction();
      case CollectiveKind::kBroadcast:
        return StartBroadcast();
      case CollectiveKind::kAllGather:
        ForPeers([&](size_t peer) {
          SendRange(peer, 0, call_.input, {0, call_.input.bytes()});
          ReceiveRange(peer, 0, call_.output, Slice(peer, call_.input.bytes()));
        });
        return Copy(BytesAt(call_.output, Slice(self_, call_.input.bytes()).begin),
                    call_.input.raw(), call_.input.bytes());
      case CollectiveKind::kAllToAll: {
        const int64_t element = DTypeSize(call_.input.dtype());
        const auto bytes_of = [element](const ToAllPart& part) {
          return Range{part.begin * element, (part.begin + part.count) * element};
        };
        ForPeers([&](size_t peer) {
          SendRange(peer, 0, call_.input, bytes_of(InputPart(call_, peer, size_)));
          ReceiveRange(peer, 0, call_.output, bytes_of(OutputPart(call_, peer, size_)));
        });
        const Range from = bytes_of(InputPart(call_, self_, size_));
        const Range to = bytes_of(OutputPart(call_, self_, size_));
        return Copy(BytesAt(call_.output, to.begin), BytesAt(call_.input, from.begin),
                    from.end - from.begin);
      }
      case CollectiveKind::kSend:
        return SendRange(1, 0, call_.input, {0, call_.input.bytes()});
      case CollectiveKind::kRecv:
        return ReceiveRange(0, 0, call_.output, {0, call_.output.bytes()});
      case CollectiveKind::kBarrier:
        return;
    }
  }

 private:
  static Range Slice(size_t index, int64_t bytes) {
    return {static_cast<int64_t>(index) * bytes, static_cast<int64_t>(index + 1) * bytes};
  }
  static void Copy(void* to, const void* from, int64_t bytes) {
    if (to != from && bytes > 0) std::memcpy(to, from, static_cast<size_t>(bytes));
  }
  // The part of the tensor that member `index` reduces, or passes on in a broadcast.
  Range Share(size_t index) const {
    const Tensor& tensor = call_.input;
    if (call_.kind == CollectiveKind::kReduceScatter) {
      return Slice(index, tensor.bytes() / static_cast<int64_t>(size_));
    }
    const int64_t element = DTypeSize(tensor.dtype());
    return {ShareBegin(tensor.numel(), index, size_, element) * element,
            ShareBegin(tensor.numel(), index + 1, size_, element) * element};
  }

  void SendRange(size_t peer, int phase, const Tensor& tensor, const Range& range) {
    for (int64_t c = 0; c < range.num_chunks(); ++c) {
      SendBytes(peer, phase, BytesAt(tensor, range.chunk_begin(c)), range.chunk_bytes(c));
    }
  }
  void ReceiveRange(size_t peer, int phase, const Tensor& tensor, const Range& range) {
    for (int64_t c = 0; c < range.num_chunks(); ++c) {
      ReceiveBytes(peer, phase, BytesAt(tensor, range.chunk_begin(c)), range.chunk_bytes(c));
    }
  }

  bool wants_all() const {
    return call_.kind == CollectiveKind::kAllReduce ||
           (call_.kind == CollectiveKind::kReduce && static_cast<size_t>(call_.root) == self_);
  }

  void StartReduction() {
    own_ = Share(self_);
    const int64_t slots = std::min(kWindow, own_.num_chunks());
    waiting_.resize(static_cast<size_t>(slots));
    gathered_.reset(new char[static_cast<size_t>(slots * kChunkBytes) * size_]);
    gathered_chunks_ = AddSteps(own_.num_chunks(), [this](int64_t chunk) { ReduceChunk(chunk); });
    for (int64_t c = 0; c < slots; ++c) GatherChunk(c);
    ForPeers([&](size_t peer) {
      const Range range = Share(peer);
      // The sum overwrites the addend, so the addend must have been sent before.
      InOrder* const sent = AddSteps(range.num_chunks(), [this, peer, range](int64_t chunk) {
        if (!wants_all()) return;
        ReceiveBytes(peer, 1, BytesAt(call_.output, range.chunk_begin(chunk)),
                     range.chunk_bytes(chunk));
      });
      for (int64_t c = 0; c < range.num_chunks(); ++c) {
        SendBytes(peer, 0, BytesAt(call_.input, range.chunk_begin(c)), range.chunk_bytes(c),
                  [sent, c] { sent->Ready(c); });
      }
    });
  }

  char* Gathered(int64_t chunk, size_t peer) {
    const int64_t slot = chunk % static_cast<int64_t>(waiting_.size());
    return gathered_.get() +
           (slot * static_cast<int64_t>(size_) + static_cast<int64_t>(peer)) * kChunkBytes;
  }
  void GatherChunk(int64_t chunk) {
    int& waiting = waiting_[static_cast<size_t>(chunk) % waiting_.size()];
    waiting = static_cast<int>(size_) - 1;
    ForPeers([&](size_t peer) {
      ReceiveBytes(peer, 0, Gathered(chunk, peer), own_.chunk_bytes(chunk),
                   [this, chunk, &waiting] {
                     if (--waiting == 0) gathered_chunks_->Ready(chunk);
                   });
    });
  }
  void ReduceChunk(int64_t chunk) {
    const int64_t at = own_.chunk_begin(chunk), bytes = own_.chunk_bytes(chunk);
    std::vector<const void*> inputs(size_);
    for (size_t r = 0; r < size_; ++r) {
      inputs[r] = r == self_ ? BytesAt(call_.input, at) : Gathered(chunk, r);
    }
    const bool scatter = call_.kind == CollectiveKind::kReduceScatter;
    // In a reduce, a member other than the root writes the sum to its own, otherwise unused slot.
    const bool for_root = call_.kind == CollectiveKind::kReduce && !wants_all();
    char* const sum = for_root  ? Gathered(chunk, self_)
                      : scatter ? BytesAt(call_.output, at - own_.begin)
                                : BytesAt(call_.output, at);
    void* const outputs[] = {sum};
    TreeReduce(CollectiveName(call_.kind), call_.input.dtype(), call_.op, inputs, outputs,
               bytes / DTypeSize(call_.input.dtype()));
    const int64_t next = chunk + static_cast<int64_t>(waiting_.size());
    const auto gather_next = [this, next] {
      if (next < own_.num_chunks()) GatherChunk(next);
    };
    if (for_root) {
      return SendBytes(static_cast<size_t>(call_.root), 1, sum, bytes, gather_next);
    }
    if (call_.kind == CollectiveKind::kAllReduce) {
      ForPeers([&](size_t peer) { SendBytes(peer, 1, sum, bytes); });
    }
    gather_next();
  }

  // The root gives each member a share, and each member passes its share on to the others. So no
  // process sends everything to everybody.
  void StartBroadcast() {
    const auto root = static_cast<size_t>(call_.root);
    if (self_ == root) {
      ForPeers([&](size_t peer) {
        SendRange(peer, 0, call_.input, Share(peer));
        SendRange(peer, 1, call_.input, Share(root));
      });
      return;
    }
    ReceiveRange(root, 1, call_.output, Share(root));
    const Range own = Share(self_);
    InOrder* const pass_on = AddSteps(own.num_chunks(), [this, root, own](int64_t chunk) {
      ForPeers([&](size_t peer) {
        if (peer == root) return;
        SendBytes(peer, 1, BytesAt(call_.output, own.chunk_begin(chunk)), own.chunk_bytes(chunk));
      });
    });
    for (int64_t c = 0; c < own.num_chunks(); ++c) {
      ReceiveBytes(root, 0, BytesAt(call_.output, own.chunk_begin(c)), own.chunk_bytes(c),
                   [pass_on, c] { pass_on->Ready(c); });
    }
    ForPeers([&](size_t peer) {
      if (peer != root) ReceiveRange(peer, 1, call_.output, Share(peer));
    });
  }

  Range own_;
  std::vector<int> waiting_;          // by slot: inputs of its chunk that have not arrived yet
  std::unique_ptr<char[]> gathered_;  // [slot][member][kChunkBytes]
  InOrder* gathered_chunks_ = nullptr;
};

}  // namespace

std::optional<std::string> SmallData(const CollectiveCall& call, size_t self, size_t peer,
                                     size_t size) {
  if (!call.input_counts.empty()) return std::nullopt;  // members have sizes of their own
  const int64_t bytes = BytesPerPeer(call, size);
  if (bytes > kSmallBytes) return std::nullopt;
  const bool none =
      call.kind == CollectiveKind::kRecv || !call.input.defined() ||
      (call.kind == CollectiveKind::kBroadcast && static_cast<size_t>(call.root) != self) ||
      (call.kind == CollectiveKind::kReduce && static_cast<size_t>(call.root) != peer);
  if (none || bytes == 0) return std::string();
  const bool slices =
      call.kind == CollectiveKind::kReduceScatter || call.kind == CollectiveKind::kAllToAll;
  const int64_t begin = slices ? static_cast<int64_t>(peer) * bytes : 0;
  return std::string(BytesAt(call.input, begin), static_cast<size_t>(bytes));
}

void FinishSmall(const Operation& operation) {
  const CollectiveCall& call = operation.call;
  const size_t size = operation.members.size();
  const int64_t bytes = BytesPerPeer(call, size);
  if (bytes == 0) return;
  // members[self].data holds this member's own data too, copied when it made the call.
  const auto data = [&](size_t r) { return operation.members[r].data.data(); };
  const auto root = static_cast<size_t>(call.root);
  if (IsReduction(call.kind)) {
    if (call.kind == CollectiveKind::kReduce && root != operation.self) return;
    std::vector<const void*> inputs;
    for (size_t r = 0; r < size; ++r) inputs.push_back(data(r));
    void* const outputs[] = {call.output.raw()};
    TreeReduce(CollectiveName(call.kind), call.input.dtype(), call.op, inputs, outputs,
               bytes / DTypeSize(call.input.dtype()));
  } else if (call.kind == CollectiveKind::kAllGather || call.kind == CollectiveKind::kAllToAll) {
    for (size_t r = 0; r < size; ++r) {
      std::memcpy(BytesAt(call.output, static_cast<int64_t>(r) * bytes), data(r),
                  static_cast<size_t>(bytes));
    }
  } else if (call.kind == CollectiveKind::kBroadcast) {
    if (root != operation.self) {
      std::memcpy(call.output.raw(), data(root), static_cast<size_t>(bytes));
    }
  } else if (call.kind == CollectiveKind::kRecv) {
    std::memcpy(call.output.raw(), data(0), static_cast<size_t>(bytes));
  }
}

void StartExchange(Operation& operation, Transfers& transfers) {
  if (operation.call.kind == CollectiveKind::kAllReduce) {
    std::vector<int> machines;
    for (const int rank : operation.ranks) machines.push_back(transfers.MachineOf(rank));
    const size_t local = MembersPerMachine(machines);
    if (local > 1) return StartHierarchicalAllReduce(operation, transfers, local);
  }
  auto exchange = std::make_shared<DirectExchange>(operation, transfers);
  operation.exchange = exchange;
  exchange->Start();
}

}  // namespace apogee::comm::process
