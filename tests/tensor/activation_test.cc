// SPDX-License-Identifier: Apache-2.0

// Activations and gated units against the standard library in double; derivatives by their
// formulas.
#include <numbers>

#include "apogee/tests/support/buffer.h"
#include "apogee/tests/support/tolerance.h"

namespace apogee {
namespace activation_test {

constexpr Activation kKinds[] = {Activation::kRelu, Activation::kGelu, Activation::kGeluTanh,
                                 Activation::kSilu, Activation::kTanh, Activation::kSigmoid};

double Sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

double Forward(Activation kind, double x) {
  switch (kind) {
    case Activation::kRelu:
      return std::isnan(x) ? x : std::max(x, 0.0);
    case Activation::kGelu:
      return 0.5 * x * (1 + std::erf(x / std::numbers::sqrt2));
    case Activation::kGeluTanh:
      return 0.5 * x *
             (1 + std::tanh(std::sqrt(2 / std::numbers::pi) * (x + 0.044715 * x * x * x)));
    case Activation::kSilu:
      return x * Sigmoid(x);
    case Activation::kTanh:
      return std::tanh(x);
    case Activation::kSigmoid:
      return Sigmoid(x);
  }
  return 0;
}

double Derivative(Activation kind, double x) {
  switch (kind) {
    case Activation::kRelu:
      return x > 0 ? 1 : 0;
    case Activation::kGelu:
      return 0.5 * (1 + std::erf(x / std::numbers::sqrt2)) +
             x * std::exp(-0.5 * x * x) / std::sqrt(2 * std::numbers::pi);
    case Activation::kGeluTanh: {
      const double k = std::sqrt(2 / std::numbers::pi);
      const double t = std::tanh(k * (x + 0.044715 * x * x * x));
      return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * k * (1 + 3 * 0.044715 * x * x);
    }
    case Activation::kSilu:
      return Sigmoid(x) * (1 + x * (1 - Sigmoid(x)));
    case Activation::kTanh:
      return 1 - std::tanh(x) * std::tanh(x);
    case Activation::kSigmoid:
      return Sigmoid(x) * (1 - Sigmoid(x));
  }
  return 0;
}

TEST(Activation, MatchesReference) {
  const ContextPtr context = TestContext({.num_threads = 2});
  for (DType dtype : kFloats) {
    for (Activation kind : kKinds) {
      for (int64_t n : {0, 1, 17, 33 * 17, 40001}) {
        SCOPED_TRACE(::testing::Message()
                     << DTypeName(dtype) << " kind " << static_cast<int>(kind));
        const Buffer x = Buffer::Normal(dtype, n, 1, /*deviation=*/4);
        Buffer dy = Buffer::Normal(dtype, n, 2);
        Buffer y(dtype, n);
        context->kernels().activation_forward(*context, {kind, dtype, x.data(), y.data(), n});
        std::vector<double> forward = x.values();
        std::vector<double> backward = dy.values();
        for (size_t i = 0; i < forward.size(); ++i) {
          backward[i] *= Derivative(kind, forward[i]);
          forward[i] = Forward(kind, forward[i]);
        }
        ExpectClose(y.values(), forward, Tolerance(dtype, ErrorKind::kElementwise));
        // In place: dx is dy.
        context->kernels().activation_backward(*context,
                                               {kind, dtype, x.data(), dy.data(), dy.data(), n});
        ExpectClose(dy.values(), backward, 2 * Tolerance(dtype, ErrorKind::kElementwise));
      }
    }
  }
}

TEST(Activation, NaNPropagatesAndInfinitySaturates) {
  const ContextPtr context = TestContext();
  for (DType dtype : kFloats) {
    for (Activation kind : kKinds) {
      const Buffer x(dtype, {NAN, INFINITY, 1e4});
      Buffer y(dtype, 3);
      context->kernels().activation_forward(*context, {kind, dtype, x.data(), y.data(), 3});
      const bool bounded = kind == Activation::kTanh || kind == Activation::kSigmoid;
      EXPECT_TRUE(std::isnan(y.values()[0])) << static_cast<int>(kind);
      EXPECT_EQ(y.values()[1], bounded ? 1 : INFINITY) << static_cast<int>(kind);
      EXPECT_EQ(y.values()[2], bounded ? 1 : x.values()[2]) << static_cast<int>(kind);
      const Buffer dy(dtype, {NAN, NAN, NAN});
      const Buffer at(dtype, {1, 2, 3});
      context->kernels().activation_backward(*context,
                                             {kind, dtype, at.data(), dy.data(), y.data(), 3});
      EXPECT_TRUE(std::isnan(y.values()[0]));
    }
  }
}

// gate and up are columns [0, cols) and [cols, 2 cols) of rows of 2 cols + `more` elements; with
// more = -1 they are apart.
void CheckGated(Activation kind, DType dtype, int64_t rows, int64_t cols, int64_t more) {
  SCOPED_TRACE(::testing::Message() << DTypeName(dtype) << " kind " << static_cast<int>(kind) << " "
                                    << rows << "x" << cols << " more " << more);
  const ContextPtr context = TestContext({.num_threads = 2});
  const bool apart = more < 0;
  const int64_t n = rows * cols, stride = apart ? cols : 2 * cols + more;
  const Buffer both = Buffer::Normal(dtype, apart ? 0 : rows * stride, 1, 2);
  const Buffer own_gate = Buffer::Normal(dtype, n, 1, 2), own_up = Buffer::Normal(dtype, n, 2);
  const void* gate = apart ? own_gate.data() : both.data();
  const void* up =
      apart ? own_up.data() : static_cast<const char*>(both.data()) + cols * DTypeSize(dtype);
  const Buffer dy = Buffer::Normal(dtype, n, 3);
  Buffer y(dtype, n), dgate(dtype, n), dup(dtype, n);
  context->kernels().gated_forward(*context,
                                   {kind, dtype, gate, up, y.data(), rows, cols, stride, stride});
  context->kernels().gated_backward(*context, {kind, dtype, gate, up, dy.data(), dgate.data(),
                                               dup.data(), rows, cols, stride, stride});
  const std::vector<double> g = (apart ? own_gate : both).values();
  const std::vector<double> u = (apart ? own_up : both).values(), d = dy.values();
  std::vector<double> ey(d.size()), edgate(d.size()), edup(d.size());
  for (size_t i = 0; i < d.size(); ++i) {
    const auto place = static_cast<int64_t>(i);
    const auto at = static_cast<size_t>(place / cols * stride + place % cols);
    const double own = u[at + static_cast<size_t>(apart ? 0 : cols)];
    ey[i] = Forward(kind, g[at]) * own;
    edgate[i] = d[i] * own * Derivative(kind, g[at]);
    edup[i] = d[i] * Forward(kind, g[at]);
  }
  const double tolerance = 2 * Tolerance(dtype, ErrorKind::kElementwise);
  ExpectClose(y.values(), ey, tolerance);
  ExpectClose(dgate.values(), edgate, tolerance);
  ExpectClose(dup.values(), edup, tolerance);
}

TEST(Gated, MatchesReference) {
  for (DType dtype : kFloats) {
    for (Activation kind : kKinds) {
      for (int64_t n : {0, 1, 17, 33 * 17, 40001}) CheckGated(kind, dtype, 1, n, -1);
    }
  }
}

TEST(Gated, RowsMayLieApart) {
  for (DType dtype : kFloats) {
    for (Activation kind : {Activation::kSilu, Activation::kGelu}) {
      for (int64_t more : {0, 3, 8}) {
        CheckGated(kind, dtype, 5, 7, more);
        CheckGated(kind, dtype, 3, 64, more);
        CheckGated(kind, dtype, 41, 1000, more);
      }
    }
  }
}

TEST(Activation, SameBitsForAnyNumberOfThreads) {
  for (DType dtype : kFloats) {
    const int64_t n = 100003;
    const Buffer x = Buffer::Normal(dtype, n, 1);
    ExpectSameBits([&](const DeviceContext& context) {
      Buffer y(dtype, n);
      context.kernels().activation_forward(context,
                                           {Activation::kGeluTanh, dtype, x.data(), y.data(), n});
      return y.bytes();
    });
  }
}

}  // namespace activation_test
}  // namespace apogee
