// SPDX-License-Identifier: Apache-2.0

// The computation of the stub NCCL's collectives, once all members have posted their calls.
#ifndef APOGEE_TESTS_COMM_NCCL_STUB_ROUNDS_H_
#define APOGEE_TESTS_COMM_NCCL_STUB_ROUNDS_H_

#include <algorithm>
#include <map>
#include <optional>
#include <vector>

#include "apogee/comm/nccl/abi.h"
#include "apogee/tests/comm/nccl/stub_nccl.h"

namespace apogee::comm::nccl {

enum class Kind { kAllReduce, kReduceScatter, kAllGather, kBroadcast, kReduce };

struct Post {
  const void* input;
  void* output;
  testing::StubStream* stream;
};

// One collective of all members. `count` as in NCCL's call.
struct Round {
  Kind kind;
  int64_t count;
  DType dtype;
  RedOp op;
  int root;
  std::map<int, Post> posts = {};
};

inline size_t Bytes(int64_t count, DType dtype) {
  constexpr int64_t kSizes[] = {4, 2, 2, 8, 8, 4, 1, 1};
  return static_cast<size_t>(count * kSizes[static_cast<size_t>(dtype)]);
}

inline double Reduced(const Round& round, const std::map<int, std::vector<char>>& inputs,
                      int64_t i) {
  std::optional<double> result;
  for (const auto& [rank, input] : inputs) {
    const double value = testing::LoadElement(round.dtype, input.data(), i);
    if (!result) {
      result = value;
    } else {
      result = round.op == kRedSum ? *result + value : std::max(*result, value);
    }
  }
  return *result;
}

inline void Execute(const Round& round, int size) {
  const auto bytes = Bytes(round.count, round.dtype);
  const bool scatter = round.kind == Kind::kReduceScatter;
  std::map<int, std::vector<char>> inputs;
  for (const auto& [rank, post] : round.posts) {
    const auto* const from = static_cast<const char*>(post.input);
    if (round.count > 0) inputs[rank].assign(from, from + bytes * (scatter ? size : 1));
  }
  for (const auto& [rank, post] : round.posts) {
    for (int64_t i = 0; i < round.count; ++i) {
      const auto store = [&, to = post.output](int64_t at, double value) {
        testing::StoreElement(round.dtype, to, at, value);
      };
      switch (round.kind) {
        case Kind::kAllReduce:
          store(i, Reduced(round, inputs, i));
          break;
        case Kind::kReduceScatter:
          store(i, Reduced(round, inputs, rank * round.count + i));
          break;
        case Kind::kAllGather:
          for (int r = 0; r < size; ++r) {
            store(r * round.count + i, testing::LoadElement(round.dtype, inputs[r].data(), i));
          }
          break;
        case Kind::kBroadcast:
          store(i, testing::LoadElement(round.dtype, inputs[round.root].data(), i));
          break;
        case Kind::kReduce:
          if (rank == round.root) store(i, Reduced(round, inputs, i));
          break;
      }
    }
    ++post.stream->completed;
  }
}

}  // namespace apogee::comm::nccl

#endif  // APOGEE_TESTS_COMM_NCCL_STUB_ROUNDS_H_
