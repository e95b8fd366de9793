// SPDX-License-Identifier: Apache-2.0

// Communicators over the stub NCCL, one per thread.
//
//   StubNccl stub;                                         // loads it, without faults
//   RunStubRanks(stub, 3, {}, [](StubRank& rank) {
//     rank.Submit({.kind = CollectiveKind::kAllReduce, ...})->Wait();
//   });
#ifndef APOGEE_TESTS_COMM_NCCL_NCCL_RANKS_H_
#define APOGEE_TESTS_COMM_NCCL_NCCL_RANKS_H_

#include <dlfcn.h>

#include <chrono>
#include <functional>
#include <memory>
#include <numeric>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "apogee/comm/nccl/communicator.h"
#include "apogee/tests/comm/nccl/stub_nccl.h"

namespace apogee::testing {

class StubNccl {
 public:
  StubNccl() : api_(ValueOrThrow(comm::nccl::NcclApi::Load(APOGEE_STUB_NCCL))) { SetFaults(""); }
  ~StubNccl() { SetFaults(""); }

  const std::shared_ptr<const comm::nccl::NcclApi>& api() const { return api_; }
  void SetFaults(const std::string& faults, int rank = -1) {
    Find<testing::SetFaults>("stub_nccl_set_faults")(faults.c_str(), rank);
  }
  int num_alive() { return Find<NumAlive>("stub_nccl_num_alive")(); }

 private:
  template <typename Function>
  Function Find(const char* name) {
    return reinterpret_cast<Function>(dlsym(dlopen(APOGEE_STUB_NCCL, RTLD_NOW), name));
  }
  std::shared_ptr<const comm::nccl::NcclApi> api_;
};

// One thread's communicator and stream.
class StubRank {
 public:
  explicit StubRank(comm::nccl::CommunicatorOptions options) : communicator_(std::move(options)) {}

  int rank() const { return communicator_.rank(); }
  int size() const { return communicator_.size(); }
  comm::nccl::OperationPtr Submit(comm::nccl::Call call) {
    call.stream = &stream_;
    call.is_complete = Event(stream_);
    return communicator_.Submit(std::move(call));
  }
  comm::nccl::Communicator& communicator() { return communicator_; }
  StubStream& stream() { return stream_; }

 private:
  StubStream stream_;
  comm::nccl::Communicator communicator_;
};

// `options`: timeout and tell_peers; `records`: folder of flight records. Ranks of the world are
// 10, 11 and so on, so that they are not those of the group.
inline comm::nccl::CommunicatorOptions StubOptions(StubNccl& stub, comm::nccl::UniqueId id,
                                                   int rank, int size,
                                                   comm::nccl::CommunicatorOptions options,
                                                   const std::string& records = "") {
  options.api = stub.api();
  options.id = id;
  options.rank = rank;
  options.world_ranks.resize(static_cast<size_t>(size));
  std::iota(options.world_ranks.begin(), options.world_ranks.end(), 10);
  options.record =
      std::make_shared<comm::FlightRecord>(10 + rank, 10 + size, options.timeout, records);
  return options;
}

inline void RunStubRanks(StubNccl& stub, int size, const comm::nccl::CommunicatorOptions& options,
                         const std::function<void(StubRank&)>& function,
                         const std::string& records = "") {
  const auto id = ValueOrThrow(stub.api()->NewUniqueId(std::chrono::seconds(10)));
  std::vector<std::thread> threads;
  for (int r = 0; r < size; ++r) {
    threads.emplace_back([&, r] {
      StubRank rank(StubOptions(stub, id, r, size, options, records));
      function(rank);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace apogee::testing

#endif  // APOGEE_TESTS_COMM_NCCL_NCCL_RANKS_H_
