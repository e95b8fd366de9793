// SPDX-License-Identifier: Apache-2.0

// The kernels of 1-bit messages, each against a loop over elements. They add and compare only, so
// results are equal, not close; sums of squares are close.
#include "apogee/comm/sign_kernels.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "apogee/tests/support/buffer.h"

namespace apogee::comm {
namespace sign_kernels_test {

using Values = std::vector<double>;

DType ErrorDType(DType dtype) { return dtype == DType::kF64 ? DType::kF64 : DType::kF32; }

// In the errors' type, as the kernels compute.
double Round(DType error_dtype, double x) {
  return error_dtype == DType::kF64 ? x : static_cast<float>(x);
}

// One message of n elements, padded: values with zeros of both signs among them, errors, and which
// take part.
struct Message {
  Message(DType dtype, int64_t n, bool masked, unsigned seed)
      : num_values(n),
        numel((n + 7) / 8 * 8 + 16),
        num_live(n),
        value(Buffer::Normal(dtype, n, seed)),
        error(Buffer::Normal(ErrorDType(dtype), numel, seed + 1)),
        live_bits(DType::kU8, numel / 8) {
    Values x = value.values();
    Values e = error.values();
    for (size_t i = 0; i < x.size(); i += 5) x[i] = e[i] = i % 2 == 0 ? 0.0 : -0.0;
    value = Buffer(dtype, x);
    error = Buffer(ErrorDType(dtype), e);
    Values bits(static_cast<size_t>(numel / 8), masked ? 0 : 255);
    for (int64_t i = 0; masked && i < numel; ++i) {
      if (i % 3 != 1) bits[static_cast<size_t>(i / 8)] += 1 << (i % 8);
    }
    live_bits = Buffer(DType::kU8, bits);
    live = masked ? static_cast<const uint8_t*>(live_bits.data()) : nullptr;
  }
  bool IsLive(int64_t i) const { return i < num_live && (live == nullptr || i % 3 != 1); }
  // value + error, 0 where not live.
  Values Sum() const {
    const Values x = value.values(), e = error.values();
    Values sum;
    for (int64_t i = 0; i < numel; ++i) {
      const auto at = static_cast<size_t>(i);
      const double of = i < num_values ? x[at] + e[at] : e[at];
      sum.push_back(IsLive(i) ? Round(error.dtype(), of) : 0);
    }
    return sum;
  }

  int64_t num_values, numel, num_live;
  Buffer value, error, live_bits;
  const uint8_t* live;
};

bool Bit(const Values& bytes, int64_t i) {
  return (static_cast<int>(bytes[static_cast<size_t>(i / 8)]) >> (i % 8) & 1) != 0;
}

// The signs of what is live, and the sum of squares of it.
void ExpectSigns(const Message& m, const Values& x, const Buffer& bits, double squares) {
  const Values bytes = bits.values();
  double sum = 0;
  for (int64_t i = 0; i < m.numel; ++i) {
    const double each = x[static_cast<size_t>(i)];
    if (m.IsLive(i)) {
      ASSERT_EQ(Bit(bytes, i), each >= 0) << "element " << i;
    }
    sum += each * each;
  }
  EXPECT_NEAR(squares, sum, 1e-12 * sum);
}

class SignKernelsTest : public ::testing::TestWithParam<DType> {
 protected:
  template <typename Fn>
  void ForEachMessage(const Fn& fn) {
    for (const int64_t n : {0, 1, 7, 8, 37, 300, 5000, 70001}) {
      for (const bool masked : {false, true}) {
        SCOPED_TRACE(::testing::Message() << n << " elements" << (masked ? ", masked" : ""));
        fn(Message(GetParam(), n, masked, static_cast<unsigned>(n)));
      }
    }
  }
  const ContextPtr context_ = TestContext({.num_threads = 2});
  const SignKernels& kernels_ = SignKernelsFor(*context_);
};

TEST_P(SignKernelsTest, Pack) {
  ForEachMessage([&](const Message& m) {
    Buffer bits(DType::kU8, m.numel / 8);
    double squares = -1;
    kernels_.pack(*context_,
                  {m.value.dtype(), m.error.dtype(), m.value.data(), m.num_values, m.error.data(),
                   m.live, m.num_live, m.numel, static_cast<uint8_t*>(bits.data()), &squares});
    ExpectSigns(m, m.Sum(), bits, squares);
  });
}

TEST_P(SignKernelsTest, Collect) {
  ForEachMessage([&](const Message& m) {
    for (const int senders : {1, 3, 70}) {
      std::vector<Buffer> messages;
      std::vector<const uint8_t*> sent;
      Values scales;
      for (int j = 0; j < senders; ++j) {
        Values bytes;
        for (int64_t b = 0; b < m.numel / 8; ++b) {
          bytes.push_back(static_cast<double>((b * 37 + j * 101) % 256));
        }
        messages.emplace_back(DType::kU8, bytes);
        scales.push_back(0.25 + 0.375 * j);
      }
      for (const Buffer& message : messages) {
        sent.push_back(static_cast<const uint8_t*>(message.data()));
      }
      const DType dtype = m.error.dtype();
      Buffer error = m.error, bits(DType::kU8, m.numel / 8);
      double squares = -1;
      kernels_.collect(*context_, {dtype, sent, scales, error.data(), m.live, m.num_live, m.numel,
                                   static_cast<uint8_t*>(bits.data()), &squares});
      std::vector<Values> signs;
      for (const Buffer& message : messages) signs.push_back(message.values());
      const Values old = m.error.values();
      Values want;
      for (int64_t i = 0; i < m.numel; ++i) {
        double x = 0;
        for (size_t j = 0; j < signs.size(); ++j) {
          const double share = Round(dtype, scales[j] / senders);
          x = Round(dtype, x + (Bit(signs[j], i) ? share : -share));
        }
        want.push_back(m.IsLive(i) ? Round(dtype, x + old[static_cast<size_t>(i)]) : 0);
      }
      ASSERT_EQ(error.values(), want);
      ExpectSigns(m, want, bits, squares);
    }
  });
}

TEST_P(SignKernelsTest, KeepError) {
  ForEachMessage([&](const Message& m) {
    const DType dtype = m.error.dtype();
    Buffer error = m.error;
    const double scale = Round(dtype, 0.3);
    kernels_.keep_error(*context_, {dtype, scale, error.data(), m.live, m.num_live, m.numel});
    Values want = m.error.values();
    for (int64_t i = 0; i < m.numel; ++i) {
      double& e = want[static_cast<size_t>(i)];
      e = m.IsLive(i) ? Round(dtype, e - (e >= 0 ? scale : -scale)) : 0;
    }
    ASSERT_EQ(error.values(), want);
  });
}

TEST_P(SignKernelsTest, Unpack) {
  ForEachMessage([&](const Message& m) {
    const DType dtype = m.error.dtype();
    Values bytes;
    for (int64_t b = 0; b < m.numel / 8; ++b) bytes.push_back(static_cast<double>(b * 37 % 256));
    const Buffer bits(DType::kU8, bytes);
    Buffer value = m.value, error = m.error;
    const double sent_scale = Round(dtype, 0.3), scale = 0.75;
    kernels_.unpack(*context_, {value.dtype(), dtype, value.data(), m.num_values, error.data(),
                                m.live, m.num_live, m.numel,
                                static_cast<const uint8_t*>(bits.data()), sent_scale, scale});
    Values kept = m.Sum(), mean;
    for (int64_t i = 0; i < m.numel; ++i) {
      double& e = kept[static_cast<size_t>(i)];
      e = m.IsLive(i) ? Round(dtype, e - (e >= 0 ? sent_scale : -sent_scale)) : 0;
      if (i < m.num_values) mean.push_back(!m.IsLive(i) ? 0 : Bit(bytes, i) ? scale : -scale);
    }
    ASSERT_EQ(error.values(), kept);
    ASSERT_EQ(value.values(), mean);
  });
}

TEST_P(SignKernelsTest, Clear) {
  ForEachMessage([&](const Message& m) {
    if (m.live == nullptr) return;
    Buffer value = m.value;
    kernels_.clear(*context_, {value.dtype(), value.data(), m.num_values, m.live});
    Values want = m.value.values();
    for (int64_t i = 0; i < m.num_values; ++i) {
      if (!m.IsLive(i)) want[static_cast<size_t>(i)] = 0;
    }
    ASSERT_EQ(value.values(), want);
  });
}

TEST_P(SignKernelsTest, SameBits) {
  const Message m(GetParam(), 70001, true, 5);
  ExpectSameBits([&](const DeviceContext& context) {
    Buffer bits(DType::kU8, m.numel / 8);
    double squares = 0;
    SignKernelsFor(context).pack(
        context, {m.value.dtype(), m.error.dtype(), m.value.data(), m.num_values, m.error.data(),
                  m.live, m.num_live, m.numel, static_cast<uint8_t*>(bits.data()), &squares});
    std::vector<unsigned char> bytes = bits.bytes();
    const auto* sum = reinterpret_cast<const unsigned char*>(&squares);
    bytes.insert(bytes.end(), sum, sum + sizeof(squares));
    return bytes;
  });
}

INSTANTIATE_TEST_SUITE_P(DTypes, SignKernelsTest, ::testing::ValuesIn(kFloats));

// From masks of each dtype; what is infinite, NaN or not above the floor is not live.
TEST(LiveBitsTest, AreOfFiniteValuesAboveTheFloor) {
  const ContextPtr context = TestContext();
  const SignKernels& kernels = SignKernelsFor(*context);
  for (const DType dtype : {DType::kU8, DType::kF32, DType::kF64}) {
    for (const int64_t n : {0, 1, 8, 301, 9001}) {
      for (const double floor : {0.0, 2.0}) {
        Values mask, want(static_cast<size_t>((n + 7) / 8 + 1), 0);
        int64_t num_live = 0;
        for (int64_t i = 0; i < n; ++i) {
          double x = static_cast<double>(i % 5);
          if (dtype != DType::kU8 && i % 11 == 0) x = std::numeric_limits<double>::infinity();
          if (dtype != DType::kU8 && i % 13 == 0) x = std::numeric_limits<double>::quiet_NaN();
          mask.push_back(x);
          if (!(x > floor) || std::isinf(x)) continue;
          want[static_cast<size_t>(i / 8)] += 1 << (i % 8);
          ++num_live;
        }
        const Buffer values(dtype, mask);
        Buffer bits(DType::kU8, Values(want.size(), 0));
        auto* const live = static_cast<uint8_t*>(bits.data());
        kernels.pack_live(*context, {dtype, floor, values.data(), n, live});
        ASSERT_EQ(bits.values(), want) << n;
        int64_t count = -1;
        kernels.count_live(*context, {live, static_cast<int64_t>(want.size()), &count});
        ASSERT_EQ(count, num_live);
      }
    }
  }
}

}  // namespace sign_kernels_test
}  // namespace apogee::comm
