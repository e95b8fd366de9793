// SPDX-License-Identifier: Apache-2.0

// The 1-bit all-reduce against a scalar one in double, its identities, its bytes, its errors.
#include "apogee/comm/compressed_all_reduce.h"

#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <mutex>

#include "apogee/core/rng.h"
#include "apogee/tests/support/run_ranks.h"
#include "apogee/tests/support/runs/scalar_compression.h"
#include "apogee/tests/support/test_context.h"

namespace apogee::comm {
namespace compressed_all_reduce_test {

using ::apogee::testing::RunRanks;
using ::apogee::testing::ScalarCompression;
using ::apogee::testing::Values;

// Rank r's input to call t: sizes from 1e-3 to 1e3, a few zeros.
Values Input(int rank, int call, int64_t n) {
  Values x;
  for (int64_t i = 0; i < n; ++i) {
    const auto bits =
        Philox(MakeKey(static_cast<uint64_t>(rank * 1000 + call), "x"), static_cast<uint64_t>(i));
    const double unit = static_cast<double>(bits[0]) / 4294967296.0 - 0.5;
    x.push_back(bits[1] % 17 == 0 ? 0 : unit * std::pow(10, static_cast<double>(i % 7) - 3));
  }
  return x;
}

struct Errors {
  Tensor worker, server;
};
Errors MakeErrors(const CompressedAllReduce& reduce, int64_t n, DType dtype,
                  const ContextPtr& context) {
  return {Tensor::Zeros({reduce.PaddedNumel(n)}, dtype, context),
          Tensor::Zeros({reduce.ChunkNumel(n)}, dtype, context)};
}

double Norm(const Values& x) {
  double sum = 0;
  for (const double value : x) sum += value * value;
  return std::sqrt(sum);
}
double Distance(const Values& x, const Values& y) {
  Values difference = x;
  for (size_t i = 0; i < x.size(); ++i) difference[i] -= y[i];
  return Norm(difference);
}

class CompressedAllReduceTest : public ::testing::TestWithParam<int> {};

// f64 has the oracle's signs at every call; f32 and bf16 may round one the other way, so that they
// are compared at the first call, from equal inputs.
TEST_P(CompressedAllReduceTest, IsTheScalarOne) {
  const int ranks = GetParam();
  for (const int64_t n : {1, 7, 8, 37, 300, 5000}) {
    for (const bool masked : {false, true}) {
      for (const DType dtype : {DType::kF64, DType::kF32, DType::kBF16}) {
        std::vector<bool> live;
        for (int64_t i = 0; masked && i < n; ++i) live.push_back(i % 3 != 1);
        const int calls = dtype == DType::kF64 ? 20 : 1;
        RunRanks(ranks, [&](World& world) {
          CompressedAllReduce reduce(world.group());
          ScalarCompression oracle(static_cast<size_t>(ranks), static_cast<size_t>(n), live);
          const DType kept = dtype == DType::kF64 ? DType::kF64 : DType::kF32;
          const Errors errors = MakeErrors(reduce, n, kept, world.context());
          Tensor bits;
          if (masked) {
            const Values mask(live.begin(), live.end());
            bits = reduce.PackLive(Tensor::FromVector<double>(mask, {n}, world.context()));
          }
          for (int call = 0; call < calls; ++call) {
            std::vector<Values> inputs;
            for (int r = 0; r < ranks; ++r) {
              const Tensor rounded =
                  Tensor::FromVector<double>(Input(r, call, n), {n}, world.context(), dtype);
              inputs.push_back(rounded.ToVector<double>());
            }
            const auto own = static_cast<size_t>(world.rank());
            const Tensor value =
                Tensor::FromVector<double>(inputs[own], {n}, world.context(), dtype);
            const CompressedTensor tensor{value, errors.worker, errors.server, bits};
            ASSERT_FALSE(reduce.Run({&tensor, 1}).has_value());
            const Values want = oracle.Run(inputs);
            const double limit = dtype == DType::kF64 ? 1e-12 : dtype == DType::kF32 ? 1e-5 : 5e-3;
            ASSERT_LE(Distance(value.ToVector<double>(), want), limit * Norm(want))
                << n << " elements, call " << call;
            const Values& worker = oracle.worker_error(own);
            ASSERT_LE(Distance(errors.worker.ToVector<double>(), worker),
                      std::max(limit, 1e-12) * (Norm(worker) + Norm(inputs[own])));
            const auto chunk = reduce.ChunkNumel(n);
            const Values& server = oracle.server_error();
            const Values own_server(server.begin() + world.rank() * chunk,
                                    server.begin() + (world.rank() + 1) * chunk);
            ASSERT_LE(Distance(errors.server.ToVector<double>(), own_server),
                      limit * (Norm(own_server) + Norm(want)));
          }
        });
      }
    }
  }
}

// Whatever the padding, a mean of ones is 1: scales count true elements only.
TEST_P(CompressedAllReduceTest, OnesStayOnes) {
  for (const int64_t n : {1, 10, 63, 64, 65, 768, 1000}) {
    RunRanks(GetParam(), [&](World& world) {
      CompressedAllReduce reduce(world.group());
      const Errors errors = MakeErrors(reduce, n, DType::kF32, world.context());
      for (int call = 0; call < 3; ++call) {
        const Tensor ones = Tensor::Full({n}, DType::kF32, 1, world.context());
        const CompressedTensor tensor{ones, errors.worker, errors.server};
        ASSERT_FALSE(reduce.Run({&tensor, 1}).has_value());
        for (const double x : ones.ToVector<double>()) ASSERT_EQ(x, 1) << n;
      }
    });
  }
}

// Results, worker errors and server errors add up to the means of what went in.
TEST_P(CompressedAllReduceTest, NothingIsLost) {
  constexpr int64_t kNumel = 53;
  constexpr int kCalls = 200;
  const int ranks = GetParam();
  std::mutex mutex;
  Values balance(kNumel, 0), total(kNumel, 0);
  RunRanks(ranks, [&](World& world) {
    CompressedAllReduce reduce(world.group());
    const Errors errors = MakeErrors(reduce, kNumel, DType::kF32, world.context());
    Values sum(kNumel, 0), in(kNumel, 0);
    for (int call = 0; call < kCalls; ++call) {
      const Values x = Input(world.rank(), call, kNumel);
      const Tensor value = Tensor::FromVector<double>(x, {kNumel}, world.context(), DType::kF32);
      const Values rounded = value.ToVector<double>();
      const CompressedTensor tensor{value, errors.worker, errors.server};
      ASSERT_FALSE(reduce.Run({&tensor, 1}).has_value());
      const Values out = value.ToVector<double>();
      for (size_t i = 0; i < sum.size(); ++i) sum[i] += out[i];
      for (size_t i = 0; i < sum.size(); ++i) in[i] += rounded[i];
    }
    const Values worker = errors.worker.ToVector<double>(),
                 server = errors.server.ToVector<double>();
    const std::lock_guard lock(mutex);
    for (size_t i = 0; i < balance.size(); ++i) {
      total[i] += std::fabs(in[i]) / ranks;
      balance[i] += (worker[i] - in[i] + sum[i]) / ranks;  // every rank has the same sum
      const auto first = static_cast<size_t>(world.rank()) * server.size();
      if (i >= first && i < first + server.size()) balance[i] += server[i - first];
    }
  });
  // Rounding errors are of the size of the largest values: the scale is one for all of them.
  for (const double x : balance) EXPECT_NEAR(x, 0, 1e-5 * Norm(total));
}

TEST_P(CompressedAllReduceTest, SeveralTensorsInOneCallAreSeveralCalls) {
  const std::vector<int64_t> sizes = {5, 64, 300, 1};
  RunRanks(GetParam(), [&](World& world) {
    CompressedAllReduce reduce(world.group());
    std::vector<CompressedTensor> fused, alone;
    for (int call = 0; call < 3; ++call) {
      for (size_t k = 0; k < sizes.size(); ++k) {
        const Values x = Input(world.rank(), static_cast<int>(k) + 10 * call, sizes[k]);
        for (auto* list : {&fused, &alone}) {
          const Tensor value =
              Tensor::FromVector<double>(x, {sizes[k]}, world.context(), DType::kF32);
          if (call == 0) {
            const Errors errors = MakeErrors(reduce, sizes[k], DType::kF32, world.context());
            list->push_back({value, errors.worker, errors.server});
          } else {
            (*list)[k].value = value;
          }
        }
      }
      reduce.Run(fused);
      for (size_t k = 0; k < sizes.size(); ++k) {
        reduce.Run({&alone[k], 1});
        ASSERT_EQ(fused[k].value.ToVector<float>(), alone[k].value.ToVector<float>());
        ASSERT_EQ(fused[k].worker_error.ToVector<float>(), alone[k].worker_error.ToVector<float>());
        ASSERT_EQ(fused[k].server_error.ToVector<float>(), alone[k].server_error.ToVector<float>());
      }
    }
  });
}

// One scale: the root of the mean square of all tensors.
TEST_P(CompressedAllReduceTest, SharedScale) {
  RunRanks(GetParam(), [&](World& world) {
    CompressedAllReduce reduce(world.group(), {.shared_scale = true});
    std::vector<CompressedTensor> tensors;
    for (const double value : {1.0, 7.0}) {
      const Errors errors = MakeErrors(reduce, 64, DType::kF32, world.context());
      tensors.push_back(
          {Tensor::Full({64}, DType::kF32, value, world.context()), errors.worker, errors.server});
    }
    reduce.Run(tensors);
    for (const CompressedTensor& tensor : tensors) {
      for (const double x : tensor.value.ToVector<double>()) ASSERT_NEAR(x, 5, 1e-6);
    }
  });
}

// What a rank sends is (size - 1) / size of the ledger's payload, in either collective.
TEST_P(CompressedAllReduceTest, SendsOneBitPerElementAndDirection) {
  const int ranks = GetParam();
  const int64_t n = int64_t{1} << 18;
  RunRanks(ranks, [&](World& world) {
    CompressedAllReduce reduce(world.group());
    const Errors errors = MakeErrors(reduce, n, DType::kF32, world.context());
    const CompressedTensor tensor{Tensor::Full({n}, DType::kF32, 1, world.context()), errors.worker,
                                  errors.server};
    const Traffic before = world.group()->traffic();
    reduce.Run({&tensor, 1});
    const Traffic moved = world.group()->traffic() - before;
    EXPECT_EQ(moved.total_calls(), 2);
    EXPECT_EQ(moved.calls(CollectiveKind::kAllToAll), 1);
    EXPECT_EQ(moved.calls(CollectiveKind::kAllGather), 1);
    const double sent = static_cast<double>(moved.total_bytes()) * (ranks - 1) / ranks;
    const double want = static_cast<double>(n) / 4 * (ranks - 1) / ranks + 8 * (ranks - 1);
    EXPECT_GE(sent, want);
    EXPECT_LE(sent, want + 2 * ranks * (ranks - 1));  // padding: less than 8 ranks elements
    // A ring all-reduce of f32 sends 2 (ranks - 1) / ranks * 4 n.
    const double dense = 8.0 * static_cast<double>(n) * (ranks - 1) / ranks;
    EXPECT_NEAR(dense / sent, 32, 0.1);
  });
}

// No rank has changed anything when one rank's values are not finite.
TEST_P(CompressedAllReduceTest, NonFiniteValuesLeaveEverythingAlone) {
  const int ranks = GetParam();
  for (const double bad :
       {std::numeric_limits<double>::quiet_NaN(), -std::numeric_limits<double>::infinity()}) {
    RunRanks(ranks, [&](World& world) {
      CompressedAllReduce reduce(world.group());
      std::vector<CompressedTensor> tensors;
      for (int k = 0; k < 2; ++k) {
        const Errors errors = MakeErrors(reduce, 20, DType::kF32, world.context());
        errors.worker.Fill(0.25);
        errors.server.Fill(0.5);
        Values x = Input(world.rank(), k, 20);
        if (k == 1 && world.rank() == ranks - 1) x[3] = bad;
        tensors.push_back({Tensor::FromVector<double>(x, {20}, world.context(), DType::kF32),
                           errors.worker, errors.server});
      }
      const auto value = tensors[0].value.ToVector<float>();
      EXPECT_EQ(reduce.Run(tensors), std::optional<size_t>(1));
      EXPECT_EQ(tensors[0].value.ToVector<float>(), value);
      for (const CompressedTensor& tensor : tensors) {
        for (const double x : tensor.worker_error.ToVector<double>()) ASSERT_EQ(x, 0.25);
        for (const double x : tensor.server_error.ToVector<double>()) ASSERT_EQ(x, 0.5);
      }
    });
  }
}

INSTANTIATE_TEST_SUITE_P(Ranks, CompressedAllReduceTest, ::testing::Values(2, 3, 4, 5));

TEST(CompressedAllReduce, OneRankLeavesValuesAlone) {
  const ContextPtr context = TestContext();
  CompressedAllReduce reduce(nullptr);
  const Tensor x = Tensor::FromVector<double>({1, -2, 3}, {3}, context, DType::kF32);
  const CompressedTensor tensor{x, {}, {}};
  EXPECT_FALSE(reduce.Run({&tensor, 1}).has_value());
  EXPECT_EQ(x.ToVector<double>(), (Values{1, -2, 3}));
}

TEST(CompressedAllReduce, MisuseIsExplained) {
  const absl::Status status = launch({.num_ranks = 2}, [](World& world) {
    CompressedAllReduce reduce(world.group());
    const Errors errors = MakeErrors(reduce, 20, DType::kF32, world.context());
    const Tensor longer = Tensor::Zeros({40}, DType::kF32, world.context());
    const CompressedTensor tensor{longer, errors.worker, errors.server};
    reduce.Run({&tensor, 1});
  });
  EXPECT_THAT(Message(status), ::testing::HasSubstr("worker_error must be f32 [48]"));
}

}  // namespace compressed_all_reduce_test
}  // namespace apogee::comm
