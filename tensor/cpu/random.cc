// SPDX-License-Identifier: Apache-2.0

// random and dropout: elements of a Philox stream. A block of 64 elements comes from 16 consecutive
// counters, whose rounds run side by side in vector lanes. A thread's range may start at any
// element: its first block starts at the counter of that element, and the elements before it are
// skipped.
#include <cmath>

#include "apogee/tensor/cpu/kernels.h"
#include "apogee/tensor/cpu/loops.h"
#include "apogee/tensor/cpu/vec_math.h"

namespace apogee::cpu {
namespace {

constexpr int64_t kBlock = 64;

// As Philox() of 16 counters. The words are in 64-bit lanes. Their upper halves hold leftovers of
// the products and are not cleared: a vector product of 32-bit words reads only the lower halves.
void PhiloxBlock(PhiloxKey key, uint64_t counter, uint32_t* words) {
#pragma omp simd
  for (uint64_t i = 0; i < kBlock / 4; ++i) {
    uint64_t a = counter + i, b = a >> 32, c = 0, d = 0;
    uint32_t key_a = key.a, key_b = key.b;
#pragma GCC unroll 10
    for (int round = 0; round < 10; ++round) {
      const uint64_t p0 = uint64_t{0xD2511F53u} * (a & 0xffffffffu);
      const uint64_t p1 = uint64_t{0xCD9E8D57u} * (c & 0xffffffffu);
      a = (p1 >> 32) ^ b ^ key_a;
      c = (p0 >> 32) ^ d ^ key_b;
      b = p1;
      d = p0;
      key_a += 0x9E3779B9u;
      key_b += 0xBB67AE85u;
    }
    words[4 * i] = static_cast<uint32_t>(a);
    words[4 * i + 1] = static_cast<uint32_t>(b);
    words[4 * i + 2] = static_cast<uint32_t>(c);
    words[4 * i + 3] = static_cast<uint32_t>(d);
  }
}

// Calls fn(i, words, count), where `words` are those of elements [i, i + count), counted from
// first_element. For full blocks count is a constant, so that the compiler unrolls and vectorises.
template <typename Fn>
void ForBlocks(PhiloxKey key, int64_t first_element, int64_t begin, int64_t end, const Fn& fn) {
  alignas(64) uint32_t words[kBlock];
  for (int64_t i = begin; i < end;) {
    const int64_t element = first_element + i;
    const int64_t skip = element % 4;
    PhiloxBlock(key, static_cast<uint64_t>(element / 4), words);
    const int64_t count = std::min(kBlock - skip, end - i);
    if (count == kBlock) {
      fn(i, words, kBlock);
    } else {
      fn(i, words + skip, count);
    }
    i += count;
  }
}

// Prefetches a block of x: the Philox rounds fill the out-of-order window, so the processor would
// not reach the next loads early by itself.
template <typename T>
void PrefetchBlock(const T* x) {
  for (int64_t i = 0; i < kBlock; i += 64 / static_cast<int64_t>(sizeof(T))) {
    __builtin_prefetch(x + i);
  }
}

// Box-Muller for a whole block of words: both elements of a pair are computed together.
template <typename C>
void NormalBlock(const uint32_t* words, C* values) {
#pragma omp simd
  for (int64_t pair = 0; pair < kBlock / 2; ++pair) {
    const C u = ToUniform(words[2 * pair]);
    const C turns = ToUniform(words[2 * pair + 1]);
    const C radius = std::sqrt(C(-2) * FastLog(u));
    if constexpr (std::is_same_v<C, double>) {
      values[2 * pair] = radius * std::cos(2 * M_PI * turns);
      values[2 * pair + 1] = radius * std::sin(2 * M_PI * turns);
    } else {
      const SinCos angle = FastSinCosTurns(turns);
      values[2 * pair] = radius * angle.cos;
      values[2 * pair + 1] = radius * angle.sin;
    }
  }
}

template <typename T>
void Uniform(const RandomArgs& args, T* y, int64_t begin, int64_t end) {
  using C = ComputeType<T>;
  const C low = static_cast<C>(args.low);
  const C span = static_cast<C>(args.high - args.low);
  ForBlocks(args.key, args.first_element, begin, end,
            [=](int64_t i, const uint32_t* words, int64_t count) {
#pragma omp simd
              for (int64_t j = 0; j < count; ++j)
                y[i + j] = Cast<T>(low + span * C(ToUniform(words[j])));
            });
}

template <typename T>
void Normal(const RandomArgs& args, T* y, int64_t begin, int64_t end) {
  using C = ComputeType<T>;
  const C mean = static_cast<C>(args.low);
  const C deviation = static_cast<C>(args.high);
  alignas(64) uint32_t words[kBlock];
  alignas(64) C values[kBlock];
  for (int64_t i = begin; i < end;) {
    const int64_t element = args.first_element + i;
    const int64_t skip = element % 4;
    const int64_t count = std::min(kBlock - skip, end - i);
    PhiloxBlock(args.key, static_cast<uint64_t>(element / 4), words);
    NormalBlock(words, values);
#pragma omp simd
    for (int64_t j = 0; j < count; ++j) y[i + j] = Cast<T>(mean + deviation * values[skip + j]);
    i += count;
  }
}

}  // namespace

void random(const DeviceContext& context, const RandomArgs& args) {
  DispatchFloat(args.dtype, "random", [&]<typename T>() {
    T* y = static_cast<T*>(args.y);
    ForElements(context, args.n, [&args, y](int64_t begin, int64_t end) {
      if (args.distribution == Distribution::kUniform) {
        Uniform(args, y, begin, end);
      } else {
        Normal(args, y, begin, end);
      }
    });
  });
}

void dropout(const DeviceContext& context, const DropoutArgs& args) {
  DispatchFloat(args.dtype, "dropout", [&]<typename T>() {
    using C = ComputeType<T>;
    const T* x = static_cast<const T*>(args.x);
    T* y = static_cast<T*>(args.y);
    const C scale = static_cast<C>(1 / (1 - args.p));
    // ToUniform(word) > p as a comparison of integers. It is exact for the double p.
    const int32_t threshold = static_cast<int32_t>(std::floor(args.p * 0x1p24));
    const auto drop = [=](int64_t i, const uint32_t* words, int64_t count) {
      PrefetchBlock(x + i + 16 * kBlock);
#pragma omp simd
      for (int64_t j = 0; j < count; ++j) {
        const bool keep = static_cast<int32_t>(words[j] >> 8) >= threshold;
        const C value = Load(x[i + j]) * scale;
        y[i + j] = Cast<T>(keep ? value : C(0));
      }
    };
    // If rows follow each other, they are one row.
    const int64_t row = args.row == args.row_stride ? args.n : args.row;
    ForElements(context, args.n, [=, &args](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end;) {
        const int64_t index = i / row, row_end = std::min((index + 1) * row, end);
        ForBlocks(args.key, args.first_element + index * (args.row_stride - args.row), i, row_end,
                  drop);
        i = row_end;
      }
    });
  });
}

}  // namespace apogee::cpu
