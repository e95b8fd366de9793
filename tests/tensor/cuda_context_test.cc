// SPDX-License-Identifier: Apache-2.0

// CudaContext: what it refuses and says then, its memory and ledger, copies from, to and between
// GPUs' contexts. Some cases need the GPU in software, which can be told to be missing or small.
#include "apogee/tensor/cuda/cuda_context.h"

#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <functional>

#include "apogee/core/error.h"
#include "apogee/tensor/cuda/cuda_graph.h"
#include "apogee/tensor/kernel_table.h"
#include "apogee/tensor/ops/matmul.h"
#include "apogee/tensor/tensor.h"
#include "apogee/tests/support/environment.h"
#include "apogee/tests/support/message_of.h"

namespace apogee {
namespace cuda_context_test {

using ::apogee::testing::Environment;
using ::apogee::testing::MessageOf;
using ::testing::AllOf;
using ::testing::HasSubstr;

ContextPtr Gpu(const CudaOptions& options = {}) { return ValueOrThrow(CudaContext(options)); }

class CudaContextTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (NumCudaDevices() == 0) GTEST_SKIP() << "no GPU: " << CudaContext().status();
  }
};

TEST(CudaContextWithoutGpuTest, SaysWhatIsMissing) {
  if (NumCudaDevices() > 0) GTEST_SKIP() << "there is a GPU";
  const absl::Status status = CudaContext().status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(status.message(), AllOf(HasSubstr("device cuda: "), HasSubstr("use device cpu")));
}

#ifdef APOGEE_EMULATED_CUDA
TEST_F(CudaContextTest, SaysWhyThereIsNoGpu) {
  const auto refused = [](const char* kind) {
    const Environment environment("APOGEE_EMULATED_GPU", kind);
    const absl::Status status = CudaContext().status();
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << kind;
    EXPECT_EQ(NumCudaDevices(), std::string(kind) == "old" ? 1 : 0);
    return std::string(status.message());
  };
  EXPECT_THAT(refused("no_driver"),
              AllOf(HasSubstr("there is no NVIDIA driver, or one older than this build's CUDA"),
                    HasSubstr("; use device cpu, or run on a machine with an NVIDIA GPU")));
  EXPECT_THAT(refused("none"),
              AllOf(HasSubstr("no GPU: cudaErrorNoDevice"), HasSubstr("; use device cpu")));
  EXPECT_THAT(refused("old"),
              AllOf(HasSubstr("cuda:0: the kernels of this build do not run on its architecture "
                              "50"),
                    HasSubstr("configure with -DCMAKE_CUDA_ARCHITECTURES=50")));
  // None of the errors stays behind.
  EXPECT_EQ(Tensor::Full({3}, DType::kF32, 2, Gpu()).ToVector<float>(),
            (std::vector<float>{2, 2, 2}));
}

// In a process of its own, whose GPU has 1 MiB.
TEST_F(CudaContextTest, NamesWhatMemoryRanOutFor) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const Environment environment("APOGEE_EMULATED_GPU_BYTES", "1048576");
  const auto run = [] {
    const ContextPtr gpu = Gpu();
    // Cached blocks are given back before memory counts as gone.
    Tensor::Full({655360}, DType::kU8, 1, gpu);
    const Tensor weight =
        Tensor::Full({131072}, DType::kF32, 3, gpu, MemoryCategory::kParameter);  // half of it
    const Tensor grad =
        Tensor::Full({65536}, DType::kF32, 3, gpu, MemoryCategory::kGradient);  // a quarter
    std::fprintf(stderr, "%s\n",
                 MessageOf([&] { Tensor::Empty({131072}, DType::kF32, gpu); }).c_str());
    const bool counted = gpu->ledger().live_total_bytes() == 786432;
    const bool works = Tensor::Full({32768}, DType::kF32, 5, gpu).ToVector<float>()[32767] == 5;
    const bool kept = weight.ToVector<float>()[131071] == 3;
    std::exit(counted && works && kept ? 0 : 1);
  };
  EXPECT_EXIT(run(), ::testing::ExitedWithCode(0),
              "out of memory on cuda:0: 524288 bytes for activation, 262144 of 1048576 free; this "
              "rank has 786432 bytes live, most of them 524288 of parameter, 262144 of gradient, "
              ".*; use a smaller batch or model, or shard it");
}

// What a capture cannot take back from the cache is free before it begins.
TEST_F(CudaContextTest, ACaptureHasTheMemoryThatWasCached) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const Environment environment("APOGEE_EMULATED_GPU_BYTES", "1048576");
  const auto run = [] {
    const ContextPtr gpu = Gpu();
    Tensor::Full({655360}, DType::kU8, 1, gpu);
    Tensor large;
    const CudaGraph graph = CudaGraph::Capture(gpu, {}, [&](const CudaGraph::Tensors&) {
      large = Tensor::Full({131072}, DType::kF32, 3, gpu);
    });
    graph.Launch({});
    std::exit(large.ToVector<float>()[131071] == 3 ? 0 : 1);
  };
  EXPECT_EXIT(run(), ::testing::ExitedWithCode(0), "");
}
#endif  // APOGEE_EMULATED_CUDA

TEST_F(CudaContextTest, RefusesADeviceThatIsNotThere) {
  const int count = NumCudaDevices();
  for (const int device : {-1, count, 1000}) {
    const absl::Status status = CudaContext({.device = device}).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(status.message(),
                AllOf(HasSubstr("device cuda:" + std::to_string(device)),
                      HasSubstr("there are GPUs 0 to " + std::to_string(count - 1))));
  }
}

TEST_F(CudaContextTest, MoreThanAnyGpuHas) {
  const ContextPtr gpu = Gpu();
  EXPECT_THAT(MessageOf([&] { Tensor::Empty({int64_t{1} << 50}, DType::kF32, gpu); }),
              HasSubstr("out of memory on cuda:0: 4503599627370496 bytes for activation"));
  EXPECT_EQ(gpu->ledger().live_total_bytes(), 0);
  EXPECT_EQ(Tensor::Full({1}, DType::kF32, 5, gpu).Item(), 5);
}

TEST_F(CudaContextTest, TheProcessorMayNotReadItsTensors) {
  const Tensor x = Tensor::Zeros({2}, DType::kF32, Gpu());
  EXPECT_THAT(MessageOf([&] { (void)x.data<float>(); }),
              HasSubstr("data(): the tensor is on cuda:0; read it with ToVector() or ToHost()"));
  EXPECT_EQ(x.ToHost().data<float>()[1], 0);
}

TEST_F(CudaContextTest, HasAHostContext) {
  const ContextPtr gpu = Gpu({.num_threads = 3});
  EXPECT_FALSE(gpu->is_host());
  EXPECT_TRUE(HostOf(gpu)->is_host());
  EXPECT_EQ(HostOf(gpu)->num_threads(), 3);
  EXPECT_EQ(HostOf(gpu)->device().ToString(), "cpu");
}

TEST_F(CudaContextTest, CopiesStridedAndCastTensors) {
  const ContextPtr gpu = Gpu(), host = HostOf(gpu);
  const std::vector<float> values = {1, 2, 3, 4, 5, 6};
  const std::vector<float> transposed = {1, 4, 2, 5, 3, 6};
  const Tensor near = Tensor::FromVector<float>(values, {2, 3}, host);
  const Tensor far = near.To(gpu);
  EXPECT_EQ(far.device().ToString(), "cuda:0");
  EXPECT_EQ(far.ToVector<float>(), values);
  EXPECT_EQ(far.Transpose(0, 1).ToVector<float>(), transposed);
  EXPECT_EQ(near.Transpose(0, 1).To(gpu).ToVector<float>(), transposed);
  // Both at once, into and out of a part of a tensor.
  const Tensor wide = Tensor::Zeros({3, 4}, DType::kBF16, gpu);
  wide.Slice(1, 1, 2).CopyFrom(near.Transpose(0, 1));
  EXPECT_EQ(wide.ToVector<double>(), (std::vector<double>{0, 1, 4, 0, 0, 2, 5, 0, 0, 3, 6, 0}));
  const Tensor back = Tensor::Zeros({2, 3}, DType::kF64, host);
  back.CopyFrom(wide.Slice(1, 1, 2).Transpose(0, 1));
  EXPECT_EQ(back.ToVector<float>(), values);
  back.Slice(1, 0, 1).CopyFrom(wide.Slice(0, 2, 1).Slice(1, 1, 2).Transpose(0, 1));
  EXPECT_EQ(back.ToVector<float>(), (std::vector<float>{3, 2, 3, 6, 5, 6}));
  EXPECT_TRUE(Tensor::Zeros({0, 3}, DType::kF32, gpu).To(host).ToVector<float>().empty());
  EXPECT_THROW(far.CopyFrom(near.Transpose(0, 1)), Error);
}

// More than the ring of pinned memory holds, and sources that change as soon as the call is back.
TEST_F(CudaContextTest, UploadsKeepWhatTheyWereGiven) {
  const ContextPtr gpu = Gpu();
  constexpr int64_t kMiB = int64_t{1} << 20;
  std::vector<std::vector<uint8_t>> expected;
  uint32_t random = 1;
  for (const int64_t bytes :
       {int64_t{1}, int64_t{255}, int64_t{257}, kMiB, kMiB + 1, 7 * kMiB / 2, 9 * kMiB + 13}) {
    expected.emplace_back(static_cast<size_t>(bytes));
    for (uint8_t& value : expected.back()) {
      value = static_cast<uint8_t>((random = 1664525 * random + 1013904223) >> 24);
    }
  }
  std::vector<std::vector<uint8_t>> sources = expected;
  std::vector<Tensor> uploaded;
  for (const auto& values : expected) {
    uploaded.push_back(Tensor::Empty({static_cast<int64_t>(values.size())}, DType::kU8, gpu));
  }
  const Tensor late = Tensor::Full({16 * kMiB}, DType::kF32, 1, gpu);  // the GPU is busy
  for (size_t i = 0; i < sources.size(); ++i) {
    gpu->CopyFromHost(uploaded[i].raw(), sources[i].data(), uploaded[i].bytes());
    std::fill(sources[i].begin(), sources[i].end(), uint8_t{0});
  }
  for (size_t i = 0; i < uploaded.size(); ++i) {
    EXPECT_TRUE(uploaded[i].ToVector<uint8_t>() == expected[i]) << "upload " << i;
  }
}

// The host's memory, in which kernels work as in the GPU's, in the order of the one stream.
TEST_F(CudaContextTest, PinnedContext) {
  const ContextPtr gpu = Gpu();
  const ContextPtr pinned = PinnedContext(gpu);
  EXPECT_EQ(pinned->device(), gpu->device());
  EXPECT_EQ(HostOf(pinned), HostOf(gpu));
  const int64_t n = 100003;
  const Tensor late = Tensor::Full({16 << 20}, DType::kF32, 1, gpu);  // the GPU is busy
  const Tensor near = Tensor::Empty({n}, DType::kF32, gpu);
  const Tensor far = Tensor::Empty({n}, DType::kF64, pinned, MemoryCategory::kOptimizerState);
  for (int round = 0; round < 5; ++round) {
    near.Fill(round);
    far.CopyFrom(near);  // a kernel of the GPU writes there
    near.Fill(-1);
    near.CopyFrom(far);
    far.Fill(7);
    EXPECT_EQ(near.ToVector<float>(), std::vector<float>(n, static_cast<float>(round)));
  }
  EXPECT_EQ(far.ToVector<double>(), std::vector<double>(n, 7));
  std::vector<double> values(n, 3);
  far.SetValues(values);
  values.assign(n, 4);
  EXPECT_EQ(far.To(HostOf(gpu)).ToVector<double>(), std::vector<double>(n, 3));
  EXPECT_EQ(pinned->ledger().live_bytes(MemoryCategory::kOptimizerState), n * 8);
  EXPECT_EQ(gpu->ledger().live_bytes(MemoryCategory::kOptimizerState), 0);
  EXPECT_THAT(MessageOf([&] { PinnedContext(HostOf(gpu)); }),
              HasSubstr("PinnedContext: needs the context of a GPU, got cpu"));
  EXPECT_THAT(MessageOf([] { PinnedContext(nullptr); }), HasSubstr("got none"));
}

// The bits of the product in the GPU's memory; nothing but c is written.
TEST_F(CudaContextTest, ProductsInPinnedMemory) {
  const ContextPtr gpu = Gpu();
  const int64_t batch = 2, m = 5, n = 7, k = 3, pad = 2;
  std::vector<double> results[2];
  for (const double beta : {0.0, 0.5}) {
    for (const int64_t gap : {int64_t{0}, pad}) {
      for (const bool trans : {false, true}) {
        for (const bool far : {false, true}) {
          const ContextPtr context = far ? PinnedContext(gpu) : gpu;
          const auto filled = [&](int64_t count, double step) {
            std::vector<double> values;
            for (int64_t i = 0; i < count; ++i) values.push_back(std::sin(step * (i + 1)));
            return Tensor::FromVector(values, {count}, context, DType::kF32);
          };
          const Tensor a = filled(batch * m * k, 0.1), b = filled(batch * k * n, 0.2);
          const Tensor bias = filled(n, 0.3), c = filled(batch * m * (n + gap), 0.4);
          context->kernels().matmul(*context, {.dtype = DType::kF32,
                                               .c_dtype = DType::kF32,
                                               .bias_dtype = DType::kF32,
                                               .a = a.raw(),
                                               .b = b.raw(),
                                               .c = c.raw(),
                                               .bias = bias.raw(),
                                               .batch = batch,
                                               .m = m,
                                               .n = n,
                                               .k = k,
                                               .a_trans = trans,
                                               .b_trans = trans,
                                               .lda = trans ? m : k,
                                               .ldb = trans ? k : n,
                                               .ldc = n + gap,
                                               .a_batch = m * k,
                                               .b_batch = k * n,
                                               .c_batch = m * (n + gap),
                                               .alpha = 1.5,
                                               .beta = beta});
          results[far] = c.ToVector<double>();
        }
        EXPECT_EQ(results[0], results[1]);
      }
    }
  }
}

TEST_F(CudaContextTest, ProductsOfOperandsInBothMemories) {
  const ContextPtr gpu = Gpu(), pinned = PinnedContext(gpu);
  const Tensor a = Tensor::FromVector<float>({1, 2, 3, 4}, {2, 2}, gpu);
  const Tensor b = Tensor::FromVector<float>({5, 6, 7, 8}, {2, 2}, gpu);
  const Tensor bias = Tensor::FromVector<float>({1, -1}, {2}, gpu);
  const std::vector<float> expected = {20, 21, 44, 49};
  for (const int far : {0, 1, 2, 3, 4, 5, 6, 7}) {
    const auto placed = [&](const Tensor& x, int bit) { return (far & bit) ? x.To(pinned) : x; };
    const Tensor c = ops::MatMul(placed(a, 1), placed(b, 2), {.bias = placed(bias, 4)});
    EXPECT_EQ(c.ToVector<float>(), expected) << far;
  }
  EXPECT_THAT(MessageOf([&] { ops::MatMul(a, b.ToHost()); }),
              HasSubstr("matmul: operands need one device, got cuda:0 and cpu"));
}

// Two ranks that share a GPU.
TEST_F(CudaContextTest, CopiesBetweenContextsOfOneGpu) {
  const ContextPtr a = Gpu(), b = Gpu();
  const int64_t n = 100000;
  const Tensor to = Tensor::Empty({n}, DType::kF64, b);
  for (int round = 0; round < 20; ++round) {
    {
      const Tensor from = Tensor::Full({n}, DType::kF32, round, a);
      to.CopyFrom(from);
    }
    // In the block that `from` had.
    Tensor::Full({n}, DType::kF32, -1, a);
    EXPECT_EQ(to.ToVector<double>(), std::vector<double>(n, round));
  }
  EXPECT_EQ(b->ledger().live_total_bytes(), n * 8);
  EXPECT_EQ(a->ledger().live_total_bytes(), 0);
  EXPECT_EQ(to.To(a).context(), a);
}

TEST_F(CudaContextTest, CountsByCategory) {
  const ContextPtr gpu = Gpu();
  const MemoryLedger& ledger = gpu->ledger();
  {
    const Tensor weight = Tensor::Zeros({100}, DType::kF32, gpu, MemoryCategory::kParameter);
    const Tensor x = Tensor::Zeros({10}, DType::kF64, gpu);
    x.storage()->set_category(MemoryCategory::kGradient);
    const Workspace workspace(*gpu, 1000);
    EXPECT_EQ(ledger.live_bytes(MemoryCategory::kParameter), 400);
    EXPECT_EQ(ledger.live_bytes(MemoryCategory::kActivation), 0);
    EXPECT_EQ(ledger.live_bytes(MemoryCategory::kGradient), 80);
    EXPECT_EQ(ledger.live_bytes(MemoryCategory::kWorkspace), 1000);
    // Rounded up to 512, 256 and 1024.
    EXPECT_EQ(ledger.slack_bytes(), 512 + 256 + 1024 - 1480);
  }
  EXPECT_EQ(ledger.live_total_bytes(), 0);
  EXPECT_EQ(ledger.peak_total_bytes(), 1480);
  EXPECT_EQ(HostOf(gpu)->ledger().live_total_bytes(), 0);
}

TEST_F(CudaContextTest, ABudgetOfModelDataHoldsAndCostsNothing) {
  const ContextPtr gpu = Gpu();
  gpu->ledger().set_model_data_limit(1000);
  EXPECT_THROW(Tensor::Zeros({251}, DType::kF32, gpu, MemoryCategory::kParameter), Error);
  gpu->allocator().ReleaseCache();
  EXPECT_EQ(gpu->ledger().live_total_bytes() + gpu->ledger().slack_bytes(), 0);
  Tensor::Zeros({250}, DType::kF32, gpu, MemoryCategory::kParameter);
}

TEST_F(CudaContextTest, KeepsFreedBlocksUntilToldNotTo) {
  const ContextPtr gpu = Gpu();
  const MemoryLedger& ledger = gpu->ledger();
  const void* block = Tensor::Zeros({1 << 20}, DType::kF32, gpu).raw();
  EXPECT_EQ(ledger.slack_bytes(), 4 << 20);
  const Tensor again = Tensor::Zeros({1 << 20}, DType::kF32, gpu);
  EXPECT_EQ(again.raw(), block);
  EXPECT_EQ(ledger.slack_bytes(), 0);
  Tensor::Zeros({1 << 18}, DType::kF32, gpu);
  gpu->allocator().ReleaseCache();
  EXPECT_EQ(ledger.slack_bytes(), 0);
  EXPECT_EQ(again.ToVector<float>()[(1 << 20) - 1], 0);
}

TEST_F(CudaContextTest, KeepsNothingWithoutACache) {
  const ContextPtr gpu = Gpu({.cache = false});
  Tensor::Zeros({100}, DType::kF32, gpu);
  EXPECT_EQ(gpu->ledger().live_total_bytes() + gpu->ledger().slack_bytes(), 0);
  EXPECT_EQ(gpu->ledger().peak_reserved_bytes(), 400);
  EXPECT_EQ(Tensor::Full({3}, DType::kU8, 7, gpu).ToVector<int32_t>(),
            (std::vector<int32_t>{7, 7, 7}));
}

}  // namespace cuda_context_test
}  // namespace apogee
