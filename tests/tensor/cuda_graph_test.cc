// SPDX-License-Identifier: Apache-2.0

// CudaGraph: a launch computes what the function does, on new values; its memory is its own, and
// counted; what a graph cannot do is refused, with the context as it was.
#include "apogee/tensor/cuda/cuda_graph.h"

#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <optional>

#include "apogee/core/error.h"
#include "apogee/tensor/cpu/cpu_context.h"
#include "apogee/tensor/cuda/cuda_context.h"
#include "apogee/tensor/ops/elementwise.h"
#include "apogee/tensor/ops/matmul.h"
#include "apogee/tensor/ops/nn.h"
#include "apogee/tests/support/message_of.h"

namespace apogee {
namespace cuda_graph_test {

using ::apogee::testing::MessageOf;
using ::testing::AllOf;
using ::testing::HasSubstr;
using Tensors = CudaGraph::Tensors;

class CudaGraphTest : public ::testing::TestWithParam<bool> {
 protected:
  void SetUp() override {
    if (NumCudaDevices() == 0) GTEST_SKIP() << "no GPU: " << CudaContext().status();
    gpu_ = ValueOrThrow(CudaContext({.cache = GetParam()}));
  }
  Tensor Values(const std::vector<float>& values) const {
    return Tensor::FromVector<float>(values, {static_cast<int64_t>(values.size())}, gpu_);
  }
  Tensor Indices(const std::vector<int64_t>& values, const ContextPtr& context) const {
    return Tensor::FromVector<int64_t>(values, {static_cast<int64_t>(values.size())}, context);
  }

  ContextPtr gpu_;
};
INSTANTIATE_TEST_SUITE_P(WithAndWithoutACache, CudaGraphTest, ::testing::Bool());

TEST_P(CudaGraphTest, ALaunchRunsItOnNewValues) {
  const Tensor total = Values({0, 0, 0});
  Tensor doubled;
  const CudaGraph graph = CudaGraph::Capture(gpu_, {Values({1, 2, 3})}, [&](const Tensors& in) {
    // A block made, freed and made again within the graph, and an upload.
    const Tensor more = ops::Add(ops::Scale(in[0], 3), Values({1, 1, 1}));
    doubled = ops::Scale(more, 2);
    ops::Accumulate(total, more);
  });
  EXPECT_EQ(total.ToVector<float>(), (std::vector<float>{0, 0, 0})) << "nothing has run";
  graph.Launch({Values({1, 2, 3})});
  EXPECT_EQ(doubled.ToVector<float>(), (std::vector<float>{8, 14, 20}));
  // Others take and write what memory is free.
  for (int i = 0; i < 8; ++i) Tensor::Full({3}, DType::kF32, 77, gpu_);
  const Tensor on_host = Tensor::FromVector<float>({10, 20, 30}, {3}, CpuContext());
  graph.Launch({on_host});
  EXPECT_EQ(doubled.ToVector<float>(), (std::vector<float>{62, 122, 182}));
  EXPECT_EQ(total.ToVector<float>(), (std::vector<float>{35, 68, 101}));
}

TEST_P(CudaGraphTest, NobodyElseGetsItsMemory) {
  Tensor before = Values({5, 6, 7});
  Tensor result, temporary_result;
  const CudaGraph graph = CudaGraph::Capture(gpu_, {Values({1, 1, 1})}, [&](const Tensors& in) {
    const Tensor temporary = ops::Scale(in[0], 2);
    result = ops::Add(before, temporary);
    before = Tensor();  // was there before the capture: replays read it again
    temporary_result = ops::Scale(temporary, 2);
    const Tensor other = ops::Scale(temporary_result, 5);  // might take its place
    ops::Accumulate(result, other);
  });
  std::vector<Tensor> others;
  for (int i = 0; i < 16; ++i) others.push_back(Tensor::Full({3}, DType::kF32, -1, gpu_));
  for (int i = 0; i < 3; ++i) {
    graph.Launch({Values({1, 2, 3})});
    EXPECT_EQ(result.ToVector<float>(), (std::vector<float>{27, 50, 73})) << i;
  }
  for (const Tensor& other : others) {
    EXPECT_EQ(other.ToVector<float>(), (std::vector<float>{-1, -1, -1}));
  }
}

// Nor what it still writes when its results have been dropped.
TEST_P(CudaGraphTest, NobodyElseGetsAResultThatWasDropped) {
  Tensor result;
  const CudaGraph graph = CudaGraph::Capture(
      gpu_, {Values({1, 1, 1})}, [&](const Tensors& in) { result = ops::Scale(in[0], 2); });
  graph.Launch({Values({1, 2, 3})});
  result = Tensor();
  std::vector<Tensor> others;
  for (int i = 0; i < 16; ++i) others.push_back(Tensor::Full({3}, DType::kF32, -1, gpu_));
  graph.Launch({Values({1, 2, 3})});
  for (const Tensor& other : others) {
    EXPECT_EQ(other.ToVector<float>(), (std::vector<float>{-1, -1, -1}));
  }
}

TEST_P(CudaGraphTest, ItsMemoryIsCountedAndGivenBack) {
  const Tensor x = Values(std::vector<float>(5000, 1));
  gpu_->Synchronize();
  const MemoryLedger& ledger = gpu_->ledger();
  const int64_t live = ledger.live_total_bytes(), slack = ledger.slack_bytes();
  Tensor kept;
  {
    const CudaGraph graph = CudaGraph::Capture(
        gpu_, {x}, [&](const Tensors& in) { kept = ops::Scale(ops::Add(in[0], in[0]), 2); });
    // Its input and the result; what is between them is held, and free.
    EXPECT_EQ(ledger.live_total_bytes(), live + 2 * x.bytes());
    EXPECT_GE(ledger.slack_bytes(), slack + x.bytes());
    gpu_->allocator().ReleaseCache();
    EXPECT_GE(ledger.slack_bytes(), x.bytes()) << "a graph's memory is no cache";
    graph.Launch({x});
  }
  EXPECT_EQ(kept.ToVector<float>()[4999], 4) << "what is still in use outlives the graph";
  kept = Tensor();
  EXPECT_EQ(ledger.live_total_bytes(), live);
  gpu_->allocator().ReleaseCache();
  EXPECT_EQ(ledger.live_total_bytes(), live);
  EXPECT_LE(ledger.slack_bytes(), slack);
}

// A graph's output that the function of another graph frees: both go on using the block.
TEST_P(CudaGraphTest, TwoGraphsThatUseOneBlock) {
  Tensor between, result;
  std::optional<CudaGraph> first, second;
  first.emplace(CudaGraph::Capture(gpu_, {Values({1})},
                                   [&](const Tensors& in) { between = ops::Scale(in[0], 2); }));
  second.emplace(CudaGraph::Capture(gpu_, {}, [&](const Tensors&) {
    result = ops::Scale(between, 10);
    between = Tensor();
  }));
  first->Launch({Values({3})});
  second->Launch({});
  EXPECT_EQ(result.Item(), 60);
  first.reset();
  const Tensor other = Values({-1}), another = Values({-2});
  second->Launch({});
  EXPECT_EQ(result.Item(), 60);
  EXPECT_EQ(other.Item(), -1);
  EXPECT_EQ(another.Item(), -2);
}

// The driver may wait for the GPU when it gets memory back.
TEST_P(CudaGraphTest, GivesNoMemoryToTheDriverInTheCapture) {
  const Tensor x = Values({1, 2, 3});
  Tensor::Empty({4096}, DType::kF32, gpu_);  // a cached block, if there is a cache
  Tensor twice;
  const CudaGraph graph = CudaGraph::Capture(gpu_, {x}, [&](const Tensors& in) {
    twice = ops::Scale(in[0], 2);
    gpu_->allocator().ReleaseCache();
  });
  graph.Launch({x});
  EXPECT_EQ(twice.ToVector<float>(), (std::vector<float>{2, 4, 6}));
  const std::string message = MessageOf([&] {
    CudaGraph::Capture(gpu_, {x}, [&](const Tensors& in) {
      ops::Scale(in[0], 2);
      Tensor::Empty({int64_t{1} << 50}, DType::kF32, gpu_);
    });
  });
  EXPECT_THAT(message, HasSubstr("out of memory on cuda:0"));
  EXPECT_EQ(gpu_->recorder(), nullptr);
  EXPECT_EQ(ops::Scale(x, 3).ToVector<float>(), (std::vector<float>{3, 6, 9}));
}

TEST_P(CudaGraphTest, RefusesWhatReadsOnTheHostAndGoesOn) {
  const Tensor x = Values({1, 2, 3}), y = Values({0, 0, 0});
  const int64_t live = gpu_->ledger().live_total_bytes();
  const ContextPtr other = ValueOrThrow(CudaContext());
  const std::pair<const char*, std::function<void(const Tensor&)>> cases[] = {
      {"ToVector", [](const Tensor& t) { t.ToVector<float>(); }},
      {"Item", [](const Tensor& t) { t.Slice(0, 0, 1).Item(); }},
      {"ToHost", [](const Tensor& t) { t.ToHost(); }},
      {"Synchronize", [&](const Tensor&) { gpu_->Synchronize(); }},
      {"Synchronize", [&](const Tensor& t) { Tensor::EmptyLike(t).To(other).CopyFrom(t); }},
      {"dropout", [](const Tensor& t) { ops::Dropout(t, 0.5, {}, 0); }},
      {"random", [](const Tensor& t) { ops::FillNormal(t, 0, 1, {}); }},
      {"CudaGraph", [&](const Tensor&) { CudaGraph::Capture(gpu_, {}, [](const Tensors&) {}); }},
  };
  for (const auto& [name, call] : cases) {
    const auto capture = [&, &call = call] {
      CudaGraph::Capture(gpu_, {x}, [&](const Tensors& in) {
        const Tensor twice = ops::Scale(in[0], 2);
        ops::Accumulate(y, twice);
        call(twice);
      });
    };
    EXPECT_THAT(MessageOf(capture), AllOf(HasSubstr(name), HasSubstr("captured"))) << name;
    EXPECT_EQ(gpu_->recorder(), nullptr);
    EXPECT_EQ(gpu_->ledger().live_total_bytes(), live) << name;
    EXPECT_EQ(ops::Add(x, y).ToVector<float>(), (std::vector<float>{1, 2, 3})) << "nothing ran";
  }
  EXPECT_THAT(MessageOf([] { CudaGraph::Capture(CpuContext(), {}, [](const Tensors&) {}); }),
              HasSubstr("CudaGraph: needs the context of a GPU, got cpu"));
  EXPECT_THAT(MessageOf([] { CudaGraph::Capture(nullptr, {}, [](const Tensors&) {}); }),
              HasSubstr("got null"));
  // Another kind of exception, which is not ours.
  EXPECT_THROW(
      CudaGraph::Capture(gpu_, {}, [](const Tensors&) { throw std::runtime_error("own"); }),
      std::runtime_error);
  EXPECT_EQ(x.ToVector<float>(), (std::vector<float>{1, 2, 3}));
}

TEST_P(CudaGraphTest, EveryLaunchChecksItsIndices) {
  const Tensor table = Tensor::FromVector<float>({0, 1, 10, 11, 20, 21}, {3, 2}, gpu_);
  Tensor rows;
  const CudaGraph graph =
      CudaGraph::Capture(gpu_, {Indices({0, 1, 2, 0}, gpu_)}, [&](const Tensors& in) {
        // A part of an input, and values from the host.
        const Tensor first = ops::EmbeddingForward(in[0].Slice(0, 1, 3), table);
        rows = ops::Add(first, ops::EmbeddingForward(Indices({2, 2, 2}, gpu_), table));
      });
  const Tensor at_first = rows;
  for (const ContextPtr& context : {gpu_, CpuContext()}) {
    graph.Launch({Indices({0, 2, 1, 0}, context)});
    const std::vector<float> expected = {40, 42, 30, 32, 20, 22};
    EXPECT_EQ(rows.ToVector<float>(), expected);
    EXPECT_EQ(MessageOf([&] {
                graph.Launch({Indices({0, 1, 3, 0}, context)});
              }),
              MessageOf([&] {
                ops::EmbeddingForward(Indices({1, 3, 0}, gpu_), table);
              }));
    EXPECT_THAT(MessageOf([&] {
                  graph.Launch({Indices({0, 1, 3, 0}, context)});
                }),
                HasSubstr("embedding: index 3 at position 1 is outside [0, 3)"));
    EXPECT_EQ(rows.ToVector<float>(), expected) << "nothing ran";
    graph.Launch({Indices({99, 2, 1, 0}, context)});  // one that nobody uses
    EXPECT_THAT(MessageOf([&] {
                  graph.Launch({Indices({0, 2, 1}, context)});
                }),
                HasSubstr("Launch needs 1 tensors of the shapes"));
  }
}

TEST_P(CudaGraphTest, RefusesIndicesThatItCouldNotCheck) {
  const Tensor table = Tensor::FromVector<float>({0, 1, 10, 11, 20, 21}, {3, 2}, gpu_);
  const Tensor before = Indices({0, 1}, gpu_);
  const std::function<void(const Tensor&)> functions[] = {
      [&](const Tensor&) { ops::EmbeddingForward(before, table); },
      [&](const Tensor& in) { ops::EmbeddingForward(in.Clone(), table); },
      [&](const Tensor& in) {
        in.CopyFrom(before);
        ops::EmbeddingForward(in, table);
      },
      [&](const Tensor& in) {
        in.Fill(0);
        ops::EmbeddingForward(in, table);
      }};
  for (const auto& fn : functions) {
    EXPECT_THAT(MessageOf([&] {
                  CudaGraph::Capture(gpu_, {before}, [&](const Tensors& in) { fn(in[0]); });
                }),
                HasSubstr("embedding: its indices would have to be read on the host"));
  }
  // As outside of a graph.
  EXPECT_THAT(MessageOf([&] {
                CudaGraph::Capture(gpu_, {Indices({0, 7}, gpu_)},
                                   [&](const Tensors& in) { ops::EmbeddingForward(in[0], table); });
              }),
              HasSubstr("embedding: index 7 at position 1 is outside [0, 3)"));
}

TEST_P(CudaGraphTest, TheNumberOfTargetsIsAPartOfIt) {
  const Tensor logits = Tensor::FromVector<float>({1, 2, 3, 3, 1, 2}, {2, 3}, gpu_);
  Tensor loss;
  const CudaGraph graph = CudaGraph::Capture(
      gpu_, {Indices({0, -100}, gpu_)},
      [&](const Tensors& in) { loss = ops::CrossEntropyForward(logits, in[0], -100).loss; });
  const auto eager = [&](const Tensor& targets) {
    return ops::CrossEntropyForward(logits, targets, -100).loss.Item();
  };
  for (const std::vector<int64_t>& targets : {std::vector<int64_t>{2, -100}, {-100, 1}}) {
    const Tensor values = Indices(targets, gpu_);
    ASSERT_TRUE(graph.Takes({values}));
    graph.Launch({values});
    EXPECT_EQ(loss.Item(), eager(values));
  }
  EXPECT_FALSE(graph.Takes({Indices({0, 1}, gpu_)}));
  EXPECT_FALSE(graph.Takes({Indices({0, 1, 2}, gpu_)}));
  EXPECT_FALSE(graph.Takes({}));
  EXPECT_THAT(MessageOf([&] {
                graph.Launch({Indices({0, 1}, CpuContext())});
              }),
              HasSubstr("the number of ignored targets differs from the capture"));
  EXPECT_THAT(MessageOf([&] {
                graph.Launch({Indices({3, -100}, gpu_)});
              }),
              HasSubstr("cross_entropy: index 3 at position 0 is outside [0, 3)"));
}

// cuBLASLt's workspaces come from the graph's memory.
TEST_P(CudaGraphTest, ProductsHaveTheBitsOfEagerOnes) {
  const auto matrix = [&](uint32_t seed) {
    const Tensor x = Tensor::Empty({96, 96}, DType::kF32, gpu_);
    ops::FillNormal(x, 0, 1, MakeKey(seed, "x"));
    return x;
  };
  const Tensor a = matrix(1), b = matrix(2);
  const Tensor expected = ops::MatMul(ops::MatMul(a, b), b);
  Tensor product;
  const CudaGraph graph = CudaGraph::Capture(gpu_, {matrix(3)}, [&](const Tensors& in) {
    product = ops::MatMul(ops::MatMul(in[0], b), b);
  });
  graph.Launch({a});
  EXPECT_EQ(product.ToVector<float>(), expected.ToVector<float>());
}

}  // namespace cuda_graph_test
}  // namespace apogee
