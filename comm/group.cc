// SPDX-License-Identifier: Apache-2.0

#include "apogee/comm/group.h"

#include <exception>
#include <utility>

namespace apogee::comm {
namespace {

void CheckTensor(const char* op, const char* name, const Tensor& tensor) {
  APOGEE_CHECK(tensor.defined(), op, ": ", name, " is undefined");
  APOGEE_CHECK(tensor.is_contiguous(), op, ": ", name, " of shape ", tensor.shape(),
               " is not contiguous; call Contiguous() first");
}

// Copies received data from the host to the GPU, once.
class StagedWork : public Work {
 public:
  StagedWork(std::shared_ptr<Work> work, Tensor from, Tensor to)
      : work_(std::move(work)), from_(std::move(from)), to_(std::move(to)) {}

  void Wait() override {
    work_->Wait();
    Land();
  }
  bool IsDone() override { return work_->IsDone(); }
  // If the Work is dropped, the collective must still complete here. Not if this rank is failing:
  // then the peers must learn of the failure first.
  ~StagedWork() override {
    if (std::uncaught_exceptions() > exceptions_) return;
    try {
      Wait();
    } catch (...) {  // dropping the work means that its error need not be seen
    }
  }

 private:
  void Land() {
    if (from_.defined()) to_.CopyFrom(from_);
    from_ = to_ = Tensor();
  }

  const int exceptions_ = std::uncaught_exceptions();
  std::shared_ptr<Work> work_;
  Tensor from_, to_;
};

}  // namespace

std::string FormatRanks(const std::vector<int>& ranks) {
  std::string text = "[";
  for (const int rank : ranks) {
    if (text.size() > 1) text += ' ';
    text += std::to_string(rank);
  }
  return text + "]";
}

namespace {

ToAllPart PartOf(const std::vector<int64_t>& counts, const Tensor& tensor, size_t peer,
                 size_t size) {
  if (counts.empty()) {
    const int64_t count = tensor.numel() / static_cast<int64_t>(size);
    return {.begin = static_cast<int64_t>(peer) * count, .count = count};
  }
  ToAllPart part{.begin = 0, .count = counts[peer]};
  for (size_t r = 0; r < peer; ++r) part.begin += counts[r];
  return part;
}

}  // namespace

ToAllPart InputPart(const CollectiveCall& call, size_t peer, size_t size) {
  return PartOf(call.input_counts, call.input, peer, size);
}

ToAllPart OutputPart(const CollectiveCall& call, size_t peer, size_t size) {
  return PartOf(call.output_counts, call.output, peer, size);
}

TraceSpan TraceCall(const CollectiveCall& call) {
  return TraceSpan(call.lane, CollectiveName(call.kind),
                   {.category = "communication", .args = {{"bytes", call.payload_bytes}}});
}

Group::Group(int rank, std::vector<int> world_ranks, TraceLane* lane)
    : rank_(rank), world_ranks_(std::move(world_ranks)), lane_(lane) {}

std::shared_ptr<Work> Group::Start(CollectiveCall call, int64_t payload_bytes) {
  const char* op = CollectiveName(call.kind);
  if (call.input.defined() && call.output.defined()) {
    APOGEE_CHECK(call.input.dtype() == call.output.dtype(), op, ": input is ",
                 DTypeName(call.input.dtype()), ", output is ", DTypeName(call.output.dtype()));
    APOGEE_CHECK(call.input.device() == call.output.device(), op, ": input is on ",
                 call.input.device().ToString(), ", output on ", call.output.device().ToString());
  }
  APOGEE_CHECK(call.root >= 0 && call.root < size(), op, ": rank ", call.root, " is outside group ",
               ToString(), " of ", size());
  const Tensor& any = call.output.defined() ? call.output : call.input;
  APOGEE_CHECK(!any.defined() || any.context()->recorder() == nullptr, op,
               ": a collective cannot be part of a CUDA graph, and a graph is being captured; "
               "communicate outside of the captured code");
  traffic_.Add(call.kind, payload_bytes);
  call.lane = lane_;
  call.payload_bytes = payload_bytes;
  call.blocking = blocking_;
  if (!any.defined() || any.context()->is_host()) return Submit(std::move(call));
  return TakesDeviceMemory() ? Submit(std::move(call)) : SubmitStaged(std::move(call));
}

std::shared_ptr<Work> Group::SubmitStaged(CollectiveCall call) {
  const Tensor output = call.output;
  const bool in_place = output.defined() && call.input.defined() &&
                        output.raw() == call.input.raw() && output.numel() == call.input.numel();
  // A tensor that is only received into need not be copied to the host first.
  const bool reads = call.kind != CollectiveKind::kBroadcast || call.root == rank_;
  if (call.input.defined()) {
    call.input = reads
                     ? call.input.To(HostOf(call.input.context()), MemoryCategory::kCommunication)
                     : Tensor::Empty(call.input.shape(), call.input.dtype(),
                                     HostOf(call.input.context()), MemoryCategory::kCommunication);
  }
  if (output.defined()) {
    call.output = in_place ? call.input
                           : Tensor::Empty(output.shape(), output.dtype(), HostOf(output.context()),
                                           MemoryCategory::kCommunication);
  }
  const bool writes =
      output.defined() && (call.kind == CollectiveKind::kBroadcast
                               ? call.root != rank_
                               : call.kind != CollectiveKind::kReduce || call.root == rank_);
  const Tensor arrives = call.output;
  std::shared_ptr<Work> work = Submit(std::move(call));
  if (!writes) return work;
  return std::make_shared<StagedWork>(std::move(work), arrives, output);
}

std::shared_ptr<Work> Group::AllReduceAsync(const Tensor& tensor, ReduceOp op) {
  CheckTensor("all_reduce", "tensor", tensor);
  return Start({.kind = CollectiveKind::kAllReduce,
                .op = op,
                .input = tensor.Detach(),
                .output = tensor.Detach()},
               tensor.bytes());
}

std::shared_ptr<Work> Group::ReduceScatterAsync(const Tensor& output, const Tensor& input,
                                                ReduceOp op) {
  CheckTensor("reduce_scatter", "output", output);
  CheckTensor("reduce_scatter", "input", input);
  APOGEE_CHECK(input.numel() == output.numel() * size(), "reduce_scatter: input has ",
               input.numel(), " elements, must be ", size(), " times the output's ",
               output.numel());
  return Start({.kind = CollectiveKind::kReduceScatter,
                .op = op,
                .input = input.Detach(),
                .output = output.Detach()},
               input.bytes());
}

std::shared_ptr<Work> Group::AllGatherAsync(const Tensor& output, const Tensor& input) {
  CheckTensor("all_gather", "output", output);
  CheckTensor("all_gather", "input", input);
  APOGEE_CHECK(output.numel() == input.numel() * size(), "all_gather: output has ", output.numel(),
               " elements, must be ", size(), " times the input's ", input.numel());
  return Start(
      {.kind = CollectiveKind::kAllGather, .input = input.Detach(), .output = output.Detach()},
      output.bytes());
}

std::shared_ptr<Work> Group::BroadcastAsync(const Tensor& tensor, int root) {
  CheckTensor("broadcast", "tensor", tensor);
  return Start({.kind = CollectiveKind::kBroadcast,
                .root = root,
                .input = tensor.Detach(),
                .output = tensor.Detach()},
               tensor.bytes());
}

std::shared_ptr<Work> Group::ReduceAsync(const Tensor& tensor, int root, ReduceOp op) {
  CheckTensor("reduce", "tensor", tensor);
  return Start({.kind = CollectiveKind::kReduce,
                .op = op,
                .root = root,
                .input = tensor.Detach(),
                .output = tensor.Detach()},
               tensor.bytes());
}

std::shared_ptr<Work> Group::AllToAllAsync(const Tensor& output, const Tensor& input) {
  CheckTensor("all_to_all", "output", output);
  CheckTensor("all_to_all", "input", input);
  APOGEE_CHECK(output.numel() == input.numel() && input.numel() % size() == 0,
               "all_to_all: input has ", input.numel(), " elements and output ", output.numel(),
               "; both must be the same multiple of the group's size ", size());
  APOGEE_CHECK(output.storage() != input.storage(),
               "all_to_all: output must not share input's memory");
  return Start(
      {.kind = CollectiveKind::kAllToAll, .input = input.Detach(), .output = output.Detach()},
      input.bytes());
}

std::shared_ptr<Work> Group::AllToAllAsync(const Tensor& output, std::vector<int64_t> output_counts,
                                           const Tensor& input, std::vector<int64_t> input_counts) {
  CheckTensor("all_to_all", "output", output);
  CheckTensor("all_to_all", "input", input);
  const auto check = [&](const char* name, const Tensor& tensor,
                         const std::vector<int64_t>& counts) {
    APOGEE_CHECK(static_cast<int>(counts.size()) == size(), "all_to_all: ", counts.size(),
                 " counts of the ", name, ", must be one for each of ", size(), " members");
    int64_t sum = 0;
    for (const int64_t count : counts) {
      APOGEE_CHECK(count >= 0, "all_to_all: a count of the ", name, " is ", count);
      sum += count;
    }
    APOGEE_CHECK(sum == tensor.numel(), "all_to_all: the counts of the ", name, " add up to ", sum,
                 ", but it has ", tensor.numel(), " elements");
  };
  check("output", output, output_counts);
  check("input", input, input_counts);
  const auto self = static_cast<size_t>(rank_);
  APOGEE_CHECK(input_counts[self] == output_counts[self], "all_to_all: rank ", rank_, " keeps ",
               input_counts[self], " elements of its input, but ", output_counts[self],
               " of its output come from itself");
  const int64_t leaves = (input.numel() - input_counts[self]) * DTypeSize(input.dtype());
  return Start({.kind = CollectiveKind::kAllToAll,
                .input = input.Detach(),
                .output = output.Detach(),
                .input_counts = std::move(input_counts),
                .output_counts = std::move(output_counts)},
               leaves);
}

std::shared_ptr<Work> Group::SendAsync(const Tensor& tensor, int destination) {
  CheckTensor("send", "tensor", tensor);
  APOGEE_CHECK(destination != rank_, "send: rank ", rank_, " cannot send to itself");
  return Start({.kind = CollectiveKind::kSend, .root = destination, .input = tensor.Detach()},
               tensor.bytes());
}

std::shared_ptr<Work> Group::RecvAsync(const Tensor& tensor, int source) {
  CheckTensor("recv", "tensor", tensor);
  APOGEE_CHECK(source != rank_, "recv: rank ", rank_, " cannot receive from itself");
  return Start({.kind = CollectiveKind::kRecv, .root = source, .output = tensor.Detach()},
               tensor.bytes());
}

std::shared_ptr<Work> Group::BarrierAsync() { return Start({.kind = CollectiveKind::kBarrier}, 0); }

template <typename Fn>
void Group::StartAndWait(const Fn& start) {
  struct Reset {
    bool& blocking;
    ~Reset() { blocking = false; }
  };
  std::shared_ptr<Work> work;
  {
    const Reset reset{blocking_};
    blocking_ = true;
    work = start();
  }
  work->Wait();
}

void Group::AllReduce(const Tensor& tensor, ReduceOp op) {
  StartAndWait([&] { return AllReduceAsync(tensor, op); });
}

void Group::ReduceScatter(const Tensor& output, const Tensor& input, ReduceOp op) {
  StartAndWait([&] { return ReduceScatterAsync(output, input, op); });
}

void Group::AllGather(const Tensor& output, const Tensor& input) {
  StartAndWait([&] { return AllGatherAsync(output, input); });
}

void Group::Broadcast(const Tensor& tensor, int root) {
  StartAndWait([&] { return BroadcastAsync(tensor, root); });
}

void Group::Reduce(const Tensor& tensor, int root, ReduceOp op) {
  StartAndWait([&] { return ReduceAsync(tensor, root, op); });
}

void Group::AllToAll(const Tensor& output, const Tensor& input) {
  StartAndWait([&] { return AllToAllAsync(output, input); });
}

void Group::AllToAll(const Tensor& output, std::vector<int64_t> output_counts, const Tensor& input,
                     std::vector<int64_t> input_counts) {
  StartAndWait([&] {
    return AllToAllAsync(output, std::move(output_counts), input, std::move(input_counts));
  });
}

void Group::Send(const Tensor& tensor, int destination) {
  StartAndWait([&] { return SendAsync(tensor, destination); });
}

void Group::Recv(const Tensor& tensor, int source) {
  StartAndWait([&] { return RecvAsync(tensor, source); });
}

void Group::Barrier() {
  StartAndWait([&] { return BarrierAsync(); });
}

}  // namespace apogee::comm
