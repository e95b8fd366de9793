// SPDX-License-Identifier: Apache-2.0

#include "apogee/comm/nccl/steps.h"

#include <utility>

namespace apogee::comm::nccl {
namespace {

constexpr int64_t kAlignment = 16;  // the kernels load this many bytes at once

class Builder {
 public:
  Builder(const CollectiveCall& call, void* scratch, int rank, int size)
      : call_(call),
        any_(call.input.defined() ? call.input : call.output),
        scratch_(reinterpret_cast<uintptr_t>(scratch)),
        element_(DTypeSize(any_.dtype())),
        rank_(rank),
        size_(size) {}

  Steps Build() {
    switch (call_.kind) {
      case CollectiveKind::kAllReduce:
      case CollectiveKind::kReduce:
        Reduce();
        break;
      case CollectiveKind::kReduceScatter: {
        const int64_t slice = call_.output.numel();
        Step step = NewStep();
        SendSlices(step, slice);
        Gather(step, rank_ * slice, slice, call_.output.raw());
        Add(std::move(step));
        break;
      }
      case CollectiveKind::kAllToAll: {
        const auto size = static_cast<size_t>(size_);
        Step step = NewStep();
        ForPeers([&](int peer) {
          const ToAllPart to = InputPart(call_, static_cast<size_t>(peer), size);
          const ToAllPart from = OutputPart(call_, static_cast<size_t>(peer), size);
          step.call.sends.push_back({peer, At(call_.input, to.begin), to.count});
          step.call.receives.push_back({peer, At(call_.output, from.begin), from.count});
        });
        const auto self = static_cast<size_t>(rank_);
        const ToAllPart own = InputPart(call_, self, size);
        steps_.copies.push_back({At(call_.output, OutputPart(call_, self, size).begin),
                                 At(call_.input, own.begin), own.count * element_});
        Add(std::move(step));
        break;
      }
      default:
        AddPlain(call_.kind, call_.input.defined() ? call_.input.raw() : nullptr,
                 call_.output.defined() ? call_.output.raw() : nullptr, any_.numel());
    }
    return std::move(steps_);
  }

 private:
  // Starts after this member, so that not all members send to the first one at once.
  template <typename Fn>
  void ForPeers(const Fn& fn) const {
    for (int step = 1; step < size_; ++step) fn((rank_ + step) % size_);
  }
  void* At(const Tensor& tensor, int64_t element) const {
    return static_cast<char*>(tensor.raw()) + element * element_;
  }
  void* Take(int64_t elements) {
    const int64_t begin = steps_.scratch_bytes;
    steps_.scratch_bytes += (elements * element_ + kAlignment - 1) / kAlignment * kAlignment;
    return reinterpret_cast<void*>(scratch_ + static_cast<uintptr_t>(begin));
  }
  Step NewStep() const {
    return {.call = {.kind = call_.kind,
                     .op = call_.op,
                     .root = call_.root,
                     .dtype = any_.dtype(),
                     .count = any_.numel()},
            .reductions = {}};
  }
  void Add(Step step) { steps_.steps.push_back(std::move(step)); }
  // A call that NCCL offers itself. `count`: of the input, or of the output if there is no input.
  void AddPlain(CollectiveKind kind, const void* input, void* output, int64_t count) {
    Step step = NewStep();
    step.call.kind = kind;
    step.call.input = input;
    step.call.output = output;
    step.call.count = count;
    Add(std::move(step));
  }

  void SendSlices(Step& step, int64_t slice) const {
    ForPeers([&](int peer) {
      step.call.sends.push_back({peer, At(call_.input, peer * slice), slice});
    });
  }
  // Receives elements [begin, begin + count) of all members and reduces them to `output`.
  void Gather(Step& step, int64_t begin, int64_t count, void* output) {
    Reduction reduction{.inputs = std::vector<const void*>(static_cast<size_t>(size_)),
                        .output = output,
                        .count = count};
    reduction.inputs[static_cast<size_t>(rank_)] = At(call_.input, begin);
    ForPeers([&](int peer) {
      void* const slot = Take(count);
      step.call.receives.push_back({peer, slot, count});
      reduction.inputs[static_cast<size_t>(peer)] = slot;
    });
    step.reductions.push_back(std::move(reduction));
  }

  // Sends the result to all members, or to the root.
  void Reduce() {
    const bool to_all = call_.kind == CollectiveKind::kAllReduce;
    const bool gets = to_all || call_.root == rank_;
    const int64_t count = call_.input.numel();
    const int64_t unit = kAlignment / element_;
    const int64_t share = count * element_ <= kWholeBytes ? 0 : count / size_ / unit * unit;
    const int64_t cut = share * size_, tail = count - cut, own = rank_ * share;
    Step step = NewStep();
    void* const reduced = share == 0 ? nullptr : gets ? At(call_.output, own) : Take(share);
    if (share > 0) {
      SendSlices(step, share);
      Gather(step, own, share, reduced);
    }
    if (tail > 0) {
      ForPeers([&](int peer) {
        if (to_all || peer == call_.root) {
          step.call.sends.push_back({peer, At(call_.input, cut), tail});
        }
      });
      if (gets) Gather(step, cut, tail, At(call_.output, cut));
    }
    Add(std::move(step));
    if (share == 0) return;
    if (to_all) {
      return AddPlain(CollectiveKind::kAllGather, reduced, call_.output.raw(), share);
    }
    step = NewStep();
    if (!gets) {
      step.call.sends.push_back({call_.root, reduced, share});
    } else {
      ForPeers([&](int peer) {
        step.call.receives.push_back({peer, At(call_.output, peer * share), share});
      });
    }
    Add(std::move(step));
  }

  const CollectiveCall& call_;
  const Tensor& any_;
  const uintptr_t scratch_;
  const int64_t element_;
  const int rank_, size_;
  Steps steps_;
};

}  // namespace

Steps MakeSteps(const CollectiveCall& call, void* scratch, int rank, int size) {
  return Builder(call, scratch, rank, size).Build();
}

}  // namespace apogee::comm::nccl
