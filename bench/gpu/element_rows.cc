// SPDX-License-Identifier: Apache-2.0

// Element-wise kernels: copies, casts, sums of two tensors, activations, dropout, rotary positions.
#include "apogee/bench/gpu/kernel_rows.h"
#include "apogee/tensor/kernel_table.h"
#include "apogee/tensor/ops/elementwise.h"
#include "apogee/tensor/ops/nn.h"

namespace apogee::bench {
namespace {

std::string ShapeOf(int64_t rows, int64_t cols) {
  return std::to_string(rows) + "x" + std::to_string(cols);
}

}  // namespace

std::vector<KernelRow> ElementRows(const KernelSizes& s) {
  const auto n = static_cast<double>(s.tokens()), c = static_cast<double>(s.channels);
  const auto f = static_cast<double>(s.hidden()), g = static_cast<double>(s.gated);
  const double e = s.element_bytes();
  const std::string nc = ShapeOf(s.tokens(), s.channels), nf = ShapeOf(s.tokens(), s.hidden());
  const auto random = [s](int64_t cols, const ContextPtr& context) {
    return RandomTensor({s.tokens(), cols}, s.dtype, context);
  };
  std::vector<KernelRow> rows;
  rows.push_back({"copy", "copy", nc, "2 N C e", 0, 2 * n * c * e, 0, [=](const ContextPtr& on) {
                    const Tensor x = random(s.channels, on);
                    return KernelCalls{[x] { x.Clone(); }, {}};
                  }});
  rows.push_back({"cast_from_f32", "copy", nc, "N C (4 + e)", 0, n * c * (4 + e), 0,
                  [=](const ContextPtr& on) {
                    const Tensor x = RandomTensor({s.tokens(), s.channels}, DType::kF32, on);
                    return KernelCalls{[=] { x.To(s.dtype); }, {}};
                  }});
  rows.push_back(
      {"transpose", "copy", nc, "2 N C e", 0, 2 * n * c * e, 0, [=](const ContextPtr& on) {
         const Tensor x = random(s.channels, on);
         return KernelCalls{[x] { x.Transpose(0, 1).Contiguous(); }, {}};
       }});
  rows.push_back(
      {"fill", "fill", nc, "N C e", 0, n * c * e, 0, [=](const ContextPtr& on) {
         return KernelCalls{[=] { Tensor::Zeros({s.tokens(), s.channels}, s.dtype, on); }, {}};
       }});
  rows.push_back({"residual_add", "binary", nc, "3 N C e", 2 * s.layers, 3 * n * c * e, 0,
                  [=](const ContextPtr& on) {
                    const Tensor x = random(s.channels, on), y = random(s.channels, on);
                    return KernelCalls{[=] { ops::Add(x, y); }, {}};
                  }});
  rows.push_back({"position_add", "binary", nc, "(2 N + T) C e", 1,
                  (2 * n + static_cast<double>(s.block)) * c * e, 0, [=](const ContextPtr& on) {
                    const Tensor x = RandomTensor({s.batch, s.block, s.channels}, s.dtype, on);
                    const Tensor y = RandomTensor({s.block, s.channels}, s.dtype, on);
                    return KernelCalls{[=] { ops::Add(x, y); }, {}};
                  }});
  rows.push_back({"gradient_add", "scale_add", nc, "3 N C e", 2 * s.layers, 3 * n * c * e, 0,
                  [=](const ContextPtr& on) {
                    const Tensor x = random(s.channels, on), y = random(s.channels, on);
                    return KernelCalls{[=] { ops::Accumulate(y, x); }, {}};
                  }});
  rows.push_back(
      {"gelu_forward", "activation_forward", nf, "2 N F e", 0, 2 * n * f * e, 0,
       [=](const ContextPtr& on) {
         const Tensor x = random(s.hidden(), on);
         return KernelCalls{[=] { ops::ActivationForward(Activation::kGeluTanh, x); }, {}};
       }});
  rows.push_back(
      {"gelu_backward", "activation_backward", nf, "3 N F e", s.layers, 3 * n * f * e, 0,
       [=](const ContextPtr& on) {
         const Tensor x = random(s.hidden(), on), dy = random(s.hidden(), on);
         return KernelCalls{[=] { ops::ActivationBackward(Activation::kGeluTanh, x, dy); }, {}};
       }});
  const std::string ng = ShapeOf(s.tokens(), s.gated);
  rows.push_back({"swiglu_forward", "gated_forward", ng, "3 N G e", 0, 3 * n * g * e, 0,
                  [=](const ContextPtr& on) {
                    const Tensor both = random(2 * s.gated, on);
                    const Tensor gate = both.Slice(1, 0, s.gated);
                    const Tensor up = both.Slice(1, s.gated, s.gated);
                    return KernelCalls{[=] { ops::GatedForward(Activation::kSilu, gate, up); }, {}};
                  }});
  rows.push_back(
      {"swiglu_backward", "gated_backward", ng, "5 N G e", 0, 5 * n * g * e, 0,
       [=](const ContextPtr& on) {
         const Tensor both = random(2 * s.gated, on), dy = random(s.gated, on);
         const Tensor gate = both.Slice(1, 0, s.gated);
         const Tensor up = both.Slice(1, s.gated, s.gated);
         return KernelCalls{[=] { ops::GatedBackward(Activation::kSilu, gate, up, dy); }, {}};
       }});
  rows.push_back(
      {"dropout", "dropout", nc, "2 N C e", 0, 2 * n * c * e, 0, [=](const ContextPtr& on) {
         const Tensor x = random(s.channels, on);
         return KernelCalls{[=] { ops::Dropout(x, 0.1, MakeKey(1, "drop"), 0); }, {}};
       }});
  rows.push_back(
      {"rotary", "rotary", nc, "2 N C e", 0, 2 * n * c * e, 0, [=](const ContextPtr& on) {
         const Tensor x =
             RandomTensor({s.batch, s.block, s.heads, s.channels / s.heads}, s.dtype, on);
         return KernelCalls{[=] { ops::Rotary(x, {}); }, {}};
       }});
  return rows;
}

}  // namespace apogee::bench
