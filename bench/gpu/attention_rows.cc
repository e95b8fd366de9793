// SPDX-License-Identifier: Apache-2.0

// Causal attention of packed queries, keys and values.
#include "apogee/bench/gpu/kernel_rows.h"
#include "apogee/tensor/ops/nn.h"

namespace apogee::bench {

std::vector<KernelRow> AttentionRows(const KernelSizes& s) {
  const int64_t head_dim = s.channels / s.heads;
  // Scores that a query sees under the causal mask, of all heads.
  const double pairs =
      static_cast<double>(s.batch * s.heads) * static_cast<double>(s.block * (s.block + 1) / 2);
  const double product = 2 * pairs * static_cast<double>(head_dim);
  const std::string shape = std::to_string(s.batch) + "x" + std::to_string(s.block) + "x" +
                            std::to_string(s.heads) + "x" + std::to_string(head_dim);
  struct Operands {
    ops::Qkv qkv, grads;
    Tensor dout;
  };
  const auto split = [=](const Tensor& packed) {
    const auto part = [&](int64_t i) { return packed.Slice(2, i * s.heads, s.heads); };
    return ops::Qkv{part(0), part(1), part(2)};
  };
  const auto make = [=](const ContextPtr& on) {
    const Shape packed = {s.batch, s.block, 3 * s.heads, head_dim};
    return Operands{split(RandomTensor(packed, s.dtype, on)),
                    split(Tensor::Empty(packed, s.dtype, on)),
                    RandomTensor({s.batch, s.block, s.heads, head_dim}, s.dtype, on)};
  };
  std::vector<KernelRow> rows;
  rows.push_back({"attention_forward", "attention_forward", shape, "2 products of N (T + 1) C",
                  s.layers, 0, 2 * product, [=](const ContextPtr& on) {
                    const Operands o = make(on);
                    return KernelCalls{[=] { ops::AttentionForward(o.qkv, {}); }, {}};
                  }});
  rows.push_back({"attention_backward", "attention_backward", shape, "5 products of N (T + 1) C",
                  s.layers, 0, 5 * product, [=](const ContextPtr& on) {
                    const Operands o = make(on);
                    const ops::AttentionResult forward = ops::AttentionForward(o.qkv, {});
                    return KernelCalls{
                        [=] { ops::AttentionBackward(o.qkv, forward, o.dout, {}, o.grads); }, {}};
                  }});
  return rows;
}

}  // namespace apogee::bench
