// SPDX-License-Identifier: Apache-2.0

// How the kernels walk lists of chunks: every pair of dtypes, lengths around the sizes of vectors
// and tiles, addresses that are not aligned, more chunks than one launch takes. Arithmetic is the
// subject of the optimizers' own tests.
#include <gtest/gtest.h>

#include <limits>

#include "apogee/optim/core/kernels.h"
#include "apogee/tests/support/buffer.h"
#include "apogee/tests/support/tolerance.h"

namespace apogee::optim {
namespace chunk_kernels_test {

constexpr int64_t kLengths[] = {0, 1, 3, 4, 5, 255, 1024, 4095, 4096, 4097, 16385, 40003};

void* At(Buffer& buffer, int64_t i) {
  return static_cast<char*>(buffer.data()) + i * DTypeSize(buffer.dtype());
}
std::vector<double> Rest(const Buffer& buffer, int64_t from) {
  const std::vector<double> values = buffer.values();
  return {values.begin() + from, values.end()};
}

// A parameter whose elements begin at `offset` of their memory.
struct Param {
  Param(DType dtype, DType grad_dtype, DType working_dtype, int64_t n, int64_t offset,
        unsigned seed)
      : offset(offset),
        weight(Buffer::Normal(dtype, n + offset, seed)),
        grad(Buffer::Normal(grad_dtype, n + offset, seed + 1)),
        state(Buffer::Normal(dtype, n + offset, seed + 2)),
        working(working_dtype, std::vector<double>(static_cast<size_t>(n + offset), 7)) {}
  SgdMomentumArgs::Chunk Chunk(bool with_working) {
    SgdMomentumArgs::Chunk chunk;
    chunk.weight = At(weight, offset);
    chunk.grad = At(grad, offset);
    chunk.grad_dtype = grad.dtype();
    chunk.working = with_working ? At(working, offset) : nullptr;
    chunk.working_dtype = working.dtype();
    chunk.n = weight.size() - offset;
    chunk.states = {At(state, offset)};
    chunk.element = {.lr = 0.25, .l2 = 0, .momentum = 0.9, .buf_scale = 0.5, .nesterov = false};
    return chunk;
  }

  int64_t offset;
  Buffer weight, grad, state, working;
};

// buf = 0.9 buf + 0.5 g, w -= 0.25 buf, for all parameters at once.
void CheckUpdate(std::vector<Param> params, DType dtype, bool with_working) {
  const ContextPtr context = TestContext({.num_threads = 2});
  std::vector<std::vector<double>> weights, states;
  std::vector<SgdMomentumArgs::Chunk> chunks;
  for (Param& p : params) {
    std::vector<double> w = p.weight.values(), buf = p.state.values();
    const std::vector<double> g = p.grad.values();
    for (size_t i = static_cast<size_t>(p.offset); i < w.size(); ++i) {
      buf[i] = 0.9 * buf[i] + 0.5 * g[i];
      w[i] -= 0.25 * buf[i];
    }
    weights.push_back(w);
    states.push_back(buf);
    chunks.push_back(p.Chunk(with_working));
  }
  OptimKernelsFor(*context).sgd_momentum(*context, {dtype, 1, chunks});
  for (size_t p = 0; p < params.size(); ++p) {
    const double tolerance = Tolerance(dtype, ErrorKind::kElementwise);
    ExpectClose(params[p].weight.values(), weights[p], tolerance);
    ExpectClose(params[p].state.values(), states[p], tolerance);
    // Rounded from the new weights, exactly; what is before the first element is left alone.
    std::vector<double> expected =
        Buffer(params[p].working.dtype(), params[p].weight.values()).values();
    std::fill_n(expected.begin(), with_working ? params[p].offset : params[p].weight.size(), 7);
    ASSERT_EQ(params[p].working.values(), expected) << "parameter " << p;
  }
}

TEST(ChunkKernelsTest, EveryPairOfDTypes) {
  for (const DType dtype : {DType::kF32, DType::kF64}) {
    for (const DType grad : kFloats) {
      for (const DType working : kFloats) {
        std::vector<Param> params;
        for (const int64_t n : {5, 4096}) params.emplace_back(dtype, grad, working, n, 0, 1u);
        params.emplace_back(dtype, grad, working, 1029, 3, 2u);
        CheckUpdate(std::move(params), dtype, true);
      }
    }
  }
}

TEST(ChunkKernelsTest, LengthsAndAddresses) {
  for (const int64_t offset : {0, 1, 2, 4}) {
    std::vector<Param> params;
    for (const int64_t n : kLengths) {
      params.emplace_back(DType::kF32, DType::kBF16, DType::kBF16, n, offset,
                          static_cast<unsigned>(n));
    }
    CheckUpdate(std::move(params), DType::kF32, offset == 1);
  }
}

TEST(ChunkKernelsTest, MoreChunksThanOneLaunchTakes) {
  std::vector<Param> params;
  for (unsigned i = 0; i < 700; ++i) {
    params.emplace_back(DType::kF32, DType::kF32, DType::kBF16, i % 37, 0, i);
  }
  CheckUpdate(std::move(params), DType::kF32, true);
}

TEST(ChunkKernelsTest, NoChunks) {
  const ContextPtr context = TestContext();
  const OptimKernels& kernels = OptimKernelsFor(*context);
  kernels.grad_norm(*context, {NormKind::kL2, {}});
  kernels.grad_scale(*context, {1, 1, {}});
  CheckUpdate({}, DType::kF32, true);
}

double NormOf(NormKind kind, const std::vector<double>& x) {
  double result = 0;
  for (const double value : x) {
    if (kind == NormKind::kL2) result += value * value;
    if (kind == NormKind::kL1) result += std::abs(value);
    if (kind == NormKind::kMax) result = std::max(result, std::abs(value));
  }
  return result;
}

void CheckNorms(std::vector<Buffer> grads, int64_t offset) {
  const ContextPtr context = TestContext({.num_threads = 2});
  for (const NormKind kind : {NormKind::kL2, NormKind::kL1, NormKind::kMax}) {
    std::vector<NormChunk> chunks;
    for (Buffer& g : grads) chunks.push_back({At(g, offset), g.dtype(), g.size() - offset, -1});
    OptimKernelsFor(*context).grad_norm(*context, {kind, chunks});
    for (size_t i = 0; i < grads.size(); ++i) {
      const double expected = NormOf(kind, Rest(grads[i], offset));
      ASSERT_NEAR(chunks[i].result, expected, 1e-12 * expected)
          << "chunk " << i << " of " << grads[i].size() - offset << ", kind "
          << static_cast<int>(kind);
    }
  }
}

TEST(ChunkKernelsTest, Norms) {
  for (const int64_t offset : {0, 1}) {
    std::vector<Buffer> grads;
    for (const DType dtype : kFloats) {
      for (const int64_t n : kLengths) {
        grads.push_back(Buffer::Normal(dtype, n + offset, static_cast<unsigned>(n)));
      }
    }
    CheckNorms(grads, offset);
  }
}

TEST(ChunkKernelsTest, NormsOfMoreChunksThanOneLaunchTakes) {
  std::vector<Buffer> grads;
  for (unsigned i = 0; i < 900; ++i) grads.push_back(Buffer::Normal(DType::kF32, i % 5, i));
  CheckNorms(grads, 0);
}

TEST(ChunkKernelsTest, NormsAreOfF64) {
  const ContextPtr context = TestContext();
  std::vector<double> values(70000, 1e-8);
  values[69999] = 1e30;  // its square is no f32
  values[3] = -1e30;
  Buffer grad(DType::kF32, values);
  NormChunk chunk{grad.data(), DType::kF32, grad.size(), 0};
  OptimKernelsFor(*context).grad_norm(*context, {NormKind::kL2, {&chunk, 1}});
  EXPECT_NEAR(chunk.result / 2e60, 1, 1e-6);
}

TEST(ChunkKernelsTest, NormsKeepNaN) {
  const ContextPtr context = TestContext({.num_threads = 2});
  for (const NormKind kind : {NormKind::kL2, NormKind::kL1, NormKind::kMax}) {
    for (const int64_t at : {0, 39999, 40002}) {
      std::vector<double> values(40003, 2);
      values[static_cast<size_t>(at)] = std::numeric_limits<double>::quiet_NaN();
      Buffer grad(DType::kBF16, values), good(DType::kBF16, std::vector<double>(40003, 2));
      NormChunk chunks[] = {{grad.data(), DType::kBF16, grad.size(), 0},
                            {good.data(), DType::kBF16, good.size(), 0}};
      OptimKernelsFor(*context).grad_norm(*context, {kind, chunks});
      EXPECT_TRUE(std::isnan(chunks[0].result)) << at;
      EXPECT_EQ(chunks[1].result, NormOf(kind, good.values()));
    }
  }
}

TEST(ChunkKernelsTest, Scale) {
  const ContextPtr context = TestContext({.num_threads = 2});
  for (const int64_t offset : {0, 1}) {
    std::vector<Buffer> grads, before;
    for (const DType dtype : kFloats) {
      for (const int64_t n : kLengths) {
        grads.push_back(Buffer::Normal(dtype, n + offset, static_cast<unsigned>(n)));
      }
    }
    before = grads;
    std::vector<ScaleChunk> chunks;
    for (Buffer& g : grads) chunks.push_back({At(g, offset), g.dtype(), g.size() - offset});
    OptimKernelsFor(*context).grad_scale(*context, {0.5, 0.75, chunks});
    for (size_t i = 0; i < grads.size(); ++i) {
      std::vector<double> expected = before[i].values();
      for (size_t k = static_cast<size_t>(offset); k < expected.size(); ++k) {
        expected[k] = std::clamp(0.5 * expected[k], -0.75, 0.75);
      }
      ExpectClose(grads[i].values(), expected,
                  Tolerance(grads[i].dtype(), ErrorKind::kElementwise));
    }
  }
}

}  // namespace chunk_kernels_test
}  // namespace apogee::optim
