// SPDX-License-Identifier: Apache-2.0

#include "apogee/comm/nccl/communicator.h"

#include "apogee/comm/nccl/communicator_threads.h"

namespace apogee::comm::nccl {
namespace {

// Checks the options before anything is made from them.
CommunicatorOptions Checked(CommunicatorOptions options) {
  if (options.name.empty()) options.name = FormatRanks(options.world_ranks);
  const auto size = static_cast<int>(options.world_ranks.size());
  APOGEE_CHECK(options.api != nullptr, "nccl: group ", options.name,
               ": api is null; give what NcclApi::Load returned");
  APOGEE_CHECK(options.record != nullptr, "nccl: group ", options.name,
               ": record is null; a FlightRecord without a directory keeps nothing on disk");
  APOGEE_CHECK(options.rank >= 0 && options.rank < size, "nccl: group ", options.name, ": rank ",
               options.rank, " is not one of its ", size, " members, 0 to ", size - 1);
  APOGEE_CHECK(options.timeout.count() > 0, "nccl: group ", options.name, ": a timeout of ",
               options.timeout.count(), " ms; it must be positive");
  return options;
}

}  // namespace

Communicator::Communicator(CommunicatorOptions given) {
  CommunicatorOptions options = Checked(std::move(given));
  rank_ = options.rank;
  timeout_ = options.timeout;
  record_ = options.record;
  group_ = std::make_shared<FlightGroup>(
      FlightGroup{.name = options.name, .ranks = options.world_ranks});
  const bool wait = options.wait;
  threads_ = std::make_unique<CommunicatorThreads>(std::move(options));
  try {
    threads_->Start();
    if (wait) threads_->WaitReady();
  } catch (...) {
    threads_->End();
    throw;
  }
}

Communicator::~Communicator() { threads_->End(); }

void Communicator::Abort(const std::string& why) { threads_->Abort(why); }
int64_t Communicator::num_sleeps() const { return threads_->num_sleeps(); }

void Communicator::Check(const Call& call) const {
  using enum CollectiveKind;
  const CollectiveKind kind = call.kind;
  const std::string name = CollectiveName(kind);
  APOGEE_CHECK(kind != kBarrier, "nccl: NCCL has no barrier; all_reduce one element");
  APOGEE_CHECK(call.is_complete, "nccl: ", name, ": is_complete is empty; give a function that ",
               "says whether the stream has completed the operation");
  APOGEE_CHECK(call.count >= 0, "nccl: ", name, ": count ", call.count, " is negative");
  for (const auto* pieces : {&call.sends, &call.receives}) {
    for (const Piece& piece : *pieces) {
      APOGEE_CHECK(piece.peer >= 0 && piece.peer < size() && piece.count >= 0 &&
                       (piece.data != nullptr || piece.count == 0),
                   "nccl: ", name, ": a piece of ", piece.count, " elements",
                   piece.data == nullptr ? " without an address" : "", " for rank ", piece.peer,
                   " of a group of ", size());
    }
  }
  if (IsExchange(call)) return;
  if (kind == kReduceScatter || kind == kAllToAll) {
    APOGEE_CHECK(call.count % size() == 0, "nccl: ", name, ": the input's ", call.count,
                 " elements cannot be shared by ", size(), " members; pad them");
  }
  const bool pair = kind == kSend || kind == kRecv;
  if (pair || kind == kBroadcast || kind == kReduce) {
    APOGEE_CHECK(call.root >= 0 && call.root < size(), "nccl: ", name, ": rank ", call.root,
                 " is not in group ", group_->name, ", whose members are 0 to ", size() - 1);
  }
  APOGEE_CHECK(!pair || call.root != rank_, "nccl: ", name, ": rank ", rank_,
               " is this member itself; copy instead");
  if (call.count == 0) return;
  const bool reads = kind != kBroadcast && kind != kRecv;
  const bool writes = kind != kSend && (kind != kReduce || call.root == rank_);
  APOGEE_CHECK(!reads || call.input != nullptr, "nccl: ", name, ": input is null");
  APOGEE_CHECK(!writes || call.output != nullptr, "nccl: ", name, ": output is null");
}

OperationPtr Communicator::Submit(Call call) {
  Check(call);
  FlightCall recorded{.group = group_};
  recorded.fingerprint.kind = call.kind;
  recorded.fingerprint.op = call.op;
  recorded.fingerprint.root = call.root;
  recorded.fingerprint.has_tensor = true;
  recorded.fingerprint.dtype = call.dtype;
  recorded.fingerprint.numel = call.count;
  if (call.kind == CollectiveKind::kSend || call.kind == CollectiveKind::kRecv) {
    const int self = group_->ranks[static_cast<size_t>(rank_)];
    const int peer = group_->ranks[static_cast<size_t>(call.root)];
    recorded.sender = call.kind == CollectiveKind::kSend ? self : peer;
    recorded.receiver = call.kind == CollectiveKind::kSend ? peer : self;
  }
  recorded.sequence = num_calls_[{recorded.sender, recorded.receiver}]++;
  const uint64_t id = record_->Call(recorded);
  const std::string name = recorded.fingerprint.ToString() + " #" +
                           std::to_string(recorded.sequence) + " of group " + group_->name;
  auto operation =
      std::make_shared<Operation>(std::move(call), name, Clock::now() + timeout_, record_, id);
  threads_->Add(operation);
  return operation;
}

}  // namespace apogee::comm::nccl
