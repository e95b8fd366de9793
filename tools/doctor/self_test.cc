// SPDX-License-Identifier: Apache-2.0

#include "apogee/tools/doctor/self_test.h"

#include <chrono>
#include <cmath>

#include "apogee/comm/launch.h"

namespace apogee::tools::doctor {
namespace {

constexpr int64_t kLargeBytes = 4 << 20;
constexpr int64_t kRateBytes = 16 << 20;

// Element i of rank r's input: an integer up to 60, so every dtype represents it and the sum of two
// exactly. The values have no pattern, so a wrong slice is noticed.
double Value(int rank, int64_t i) {
  uint64_t x = static_cast<uint64_t>(i) * 2 + static_cast<uint64_t>(rank) + 1;
  x *= 0x9e3779b97f4a7c15u;
  x ^= x >> 32;
  x *= 0xd6e8feb86659fd93u;
  return static_cast<double>((x >> 32) % 61);
}

class SelfTest {
 public:
  SelfTest(const comm::World& world, std::ostream& out) : world_(world), out_(out) {}

  void Run() {
    // Both orders of the members, since a rank's number in a group may differ from its number in
    // the world.
    const comm::GroupPtr all = world_.group(), reversed = world_.NewGroup({1, 0});
    for (const comm::GroupPtr& group : {all, reversed}) {
      group_ = group;
      Check<float>();
      Check<double>();
      Check<BFloat16>();
    }
    Begin("barrier");
    all->Barrier();
    group_ = all;
    const double rate = Rate();
    if (world_.rank() != 0) return;
    out_ << "checks " << num_checks_ << "\nall_reduce_mib_per_s " << std::llround(rate)
         << std::endl;
  }

 private:
  template <typename T>
  Tensor Input(int64_t n) const {
    const Tensor tensor = Tensor::Zeros({n}, DTypeOf<T>(), world_.context());
    T* data = tensor.data<T>();
    for (int64_t i = 0; i < n; ++i) data[i] = T(static_cast<float>(Value(group_->rank(), i)));
    return tensor;
  }

  void Begin(const std::string& what) {
    what_ = what;
    ++num_checks_;
    if (world_.rank() == 0) out_ << what << std::endl;
  }

  template <typename T, typename Expected>
  void Expect(const Tensor& tensor, const Expected& expected) const {
    const T* data = tensor.data<T>();
    for (int64_t i = 0; i < tensor.numel(); ++i) {
      const double value = static_cast<double>(ComputeType<T>(data[i]));
      APOGEE_CHECK(value == expected(i), what_, " of group ", group_->ToString(), ": element ", i,
                   " is ", value, ", must be ", expected(i));
    }
  }

  template <typename T>
  void Check() {
    for (const int64_t n : {int64_t{6}, kLargeBytes / int64_t{sizeof(T)} + 2}) CheckSize<T>(n);
  }

  // `n` is even: in scatters and gathers each member has one half.
  template <typename T>
  void CheckSize(int64_t n) {
    const std::string count = " of " + std::to_string(n) + " x " + DTypeName(DTypeOf<T>());
    comm::Group& group = *group_;
    const int rank = group.rank();
    const int64_t half = n / 2;
    const auto sum = [](int64_t i) { return Value(0, i) + Value(1, i); };
    const auto empty = [&](int64_t size) {
      return Tensor::Full({size}, DTypeOf<T>(), -1, world_.context());
    };

    Begin("all_reduce (sum)" + count);
    Tensor x = Input<T>(n);
    group.AllReduce(x);
    Expect<T>(x, sum);
    Begin("all_reduce (max)" + count);
    x = Input<T>(n);
    group.AllReduce(x, comm::ReduceOp::kMax);
    Expect<T>(x, [](int64_t i) { return std::max(Value(0, i), Value(1, i)); });
    Begin("reduce_scatter" + count);
    Tensor part = empty(half);
    group.ReduceScatter(part, Input<T>(n));
    Expect<T>(part, [&](int64_t i) { return sum(i + rank * half); });
    Begin("all_gather" + count);
    x = empty(n);
    group.AllGather(x, Input<T>(half));
    Expect<T>(x, [&](int64_t i) { return Value(i < half ? 0 : 1, i % half); });
    Begin("broadcast" + count);
    x = Input<T>(n);
    group.Broadcast(x, 1);
    Expect<T>(x, [](int64_t i) { return Value(1, i); });
    Begin("reduce" + count);
    x = Input<T>(n);
    group.Reduce(x, 1);
    Expect<T>(x, [&](int64_t i) { return rank == 1 ? sum(i) : Value(0, i); });
    Begin("all_to_all" + count);
    x = empty(n);
    group.AllToAll(x, Input<T>(n));
    Expect<T>(x, [&](int64_t i) { return Value(i < half ? 0 : 1, i % half + rank * half); });
    Begin("send and recv" + count);
    x = empty(n);
    const auto received = group.RecvAsync(x, 1 - rank);
    const auto sent = group.SendAsync(Input<T>(n), 1 - rank);
    sent->Wait();
    received->Wait();
    Expect<T>(x, [&](int64_t i) { return Value(1 - rank, i); });
  }

  // MiB/s of the fastest of several all-reduces.
  double Rate() {
    const Tensor x = Tensor::Full({kRateBytes / 4}, DType::kF32, 0, world_.context());
    double best = 1e30;
    for (int i = 0; i < 5; ++i) {
      Begin("all_reduce of 16 MiB");
      const auto start = std::chrono::steady_clock::now();
      group_->AllReduce(x);
      const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
      best = std::min(best, seconds.count());
    }
    return static_cast<double>(kRateBytes >> 20) / best;
  }

  const comm::World& world_;
  std::ostream& out_;
  comm::GroupPtr group_;
  std::string what_;
  int num_checks_ = 0;
};

}  // namespace

absl::Status RunSelfTest(bool processes, double timeout_seconds, std::ostream& out) {
  APOGEE_ASSIGN_OR_RETURN(const comm::Processes started, comm::StartedProcesses());
  if (started.size != (processes ? 2 : 1)) {
    return absl::FailedPreconditionError(internal::Concat(
        "this process is one of ", started.size, ", must be one of ", processes ? 2 : 1,
        processes ? ": mpirun may be of another MPI than the program, which then cannot see its "
                    "peers"
                  : ": start the self test of threads without mpirun"));
  }
  return comm::launch({.num_ranks = 2, .threads_per_rank = 1, .timeout_seconds = timeout_seconds},
                      [&](comm::World& world) { SelfTest(world, out).Run(); });
}

}  // namespace apogee::tools::doctor
