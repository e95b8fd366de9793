// SPDX-License-Identifier: Apache-2.0

// Kernels that reduce or gather rows: norms, softmax, cross entropy, bias gradients, embeddings.
#include "apogee/bench/gpu/kernel_rows.h"
#include "apogee/tensor/kernel_table.h"
#include "apogee/tensor/ops/elementwise.h"
#include "apogee/tensor/ops/nn.h"

namespace apogee::bench {
namespace {

constexpr double kEps = 1e-5;

// Statistics and losses of rows, targets and ids.
constexpr double kF32 = 4, kI64 = 8;

std::string ShapeOf(int64_t rows, int64_t cols) {
  return std::to_string(rows) + "x" + std::to_string(cols);
}

void AddNorms(const KernelSizes& s, bool rms, std::vector<KernelRow>& rows) {
  const auto n = static_cast<double>(s.tokens()), c = static_cast<double>(s.channels);
  const double e = s.element_bytes();
  const double vectors = rms ? 1 : 2;  // weight and bias of the channels; mean and rstd of the rows
  const std::string v = rms ? "" : "2 ", name = rms ? "rms_norm" : "layer_norm";
  const std::string nc = ShapeOf(s.tokens(), s.channels);
  const int64_t calls = rms ? 0 : 2 * s.layers + 1;
  struct Operands {
    Tensor x, weight, bias;
  };
  const auto make = [=](const ContextPtr& on) {
    return Operands{RandomTensor({s.tokens(), s.channels}, s.dtype, on),
                    RandomTensor({s.channels}, s.dtype, on),
                    rms ? Tensor() : RandomTensor({s.channels}, s.dtype, on)};
  };
  rows.push_back(
      {name + "_forward", "norm_forward", nc, "2 N C e + " + v + "(C e + 4 N)", calls,
       2 * n * c * e + vectors * (c * e + kF32 * n), 0, [=](const ContextPtr& on) {
         const Operands o = make(on);
         return KernelCalls{[=] { ops::NormForward(o.x, o.weight, o.bias, kEps, rms); }, {}};
       }});
  rows.push_back({name + "_backward", "norm_backward", nc, "3 N C e + C e + " + v + "(C e + 4 N)",
                  calls, 3 * n * c * e + c * e + vectors * (c * e + kF32 * n), 0,
                  [=](const ContextPtr& on) {
                    const Operands o = make(on);
                    const Tensor dy = RandomTensor({s.tokens(), s.channels}, s.dtype, on);
                    const ops::NormResult y = ops::NormForward(o.x, o.weight, o.bias, kEps, rms);
                    return KernelCalls{[=] {
                                         ops::NormBackward(o.x, o.weight, y.mean, y.rstd, dy, rms,
                                                           /*bias=*/!rms, s.dtype);
                                       },
                                       {}};
                  }});
}

void AddCrossEntropy(const KernelSizes& s, std::vector<KernelRow>& rows) {
  const auto n = static_cast<double>(s.tokens()), v = static_cast<double>(s.vocab);
  const double e = s.element_bytes();
  const std::string nv = ShapeOf(s.tokens(), s.vocab);
  // The kernels themselves: the ops would fetch the targets to check them.
  const auto forward = [=](const ContextPtr& on) {
    const Tensor logits = RandomTensor({s.tokens(), s.vocab}, s.dtype, on);
    const Tensor targets = RandomIndices(s.tokens(), s.vocab, on);
    const Tensor lse = Tensor::Empty({s.tokens()}, DType::kF32, on);
    const Tensor loss = Tensor::Empty({s.tokens()}, DType::kF32, on);
    return [=] {
      on->kernels().cross_entropy_forward(*on,
                                          {.dtype = s.dtype,
                                           .logits = logits.raw(),
                                           .targets = static_cast<const int64_t*>(targets.raw()),
                                           .ignore_index = -100,
                                           .lse = lse.raw(),
                                           .loss = loss.raw(),
                                           .rows = s.tokens(),
                                           .cols = s.vocab});
    };
  };
  rows.push_back({"cross_entropy_forward", "cross_entropy_forward", nv, "N V e + 16 N", 1,
                  n * v * e + n * (kI64 + 2 * kF32), 0, [=](const ContextPtr& on) {
                    return KernelCalls{forward(on), {}};
                  }});
  rows.push_back({"cross_entropy_backward", "cross_entropy_backward", nv, "2 N V e + 12 N", 1,
                  2 * n * v * e + n * (kI64 + kF32), 0, [=](const ContextPtr& on) {
                    // In place, as in training. Later calls have other values and the same time.
                    const Tensor logits = RandomTensor({s.tokens(), s.vocab}, s.dtype, on);
                    const Tensor targets = RandomIndices(s.tokens(), s.vocab, on);
                    const Tensor lse = Tensor::Full({s.tokens()}, DType::kF32, 10, on);
                    return KernelCalls{[=] {
                                         on->kernels().cross_entropy_backward(
                                             *on,
                                             {.dtype = s.dtype,
                                              .logits = logits.raw(),
                                              .targets = static_cast<const int64_t*>(targets.raw()),
                                              .ignore_index = -100,
                                              .lse = lse.raw(),
                                              .dlogits = logits.raw(),
                                              .rows = s.tokens(),
                                              .cols = s.vocab,
                                              .num_targets = static_cast<double>(s.tokens())});
                                       },
                                       {}};
                  }});
}

void AddEmbedding(const KernelSizes& s, std::vector<KernelRow>& rows) {
  const auto n = static_cast<double>(s.tokens()), c = static_cast<double>(s.channels);
  const auto v = static_cast<double>(s.vocab);
  const double e = s.element_bytes();
  const std::string nc = ShapeOf(s.tokens(), s.channels);
  rows.push_back({"embedding_forward", "embedding_forward", nc, "2 N C e + 8 N", 1,
                  2 * n * c * e + kI64 * n, 0, [=](const ContextPtr& on) {
                    const Tensor ids = RandomIndices(s.tokens(), s.vocab, on);
                    const Tensor weight = RandomTensor({s.vocab, s.channels}, s.dtype, on);
                    const Tensor y = Tensor::Empty({s.tokens(), s.channels}, s.dtype, on);
                    return KernelCalls{[=] {
                                         on->kernels().embedding_forward(
                                             *on, {.dtype = s.dtype,
                                                   .ids = static_cast<const int64_t*>(ids.raw()),
                                                   .weight = weight.raw(),
                                                   .y = y.raw(),
                                                   .n = s.tokens(),
                                                   .dim = s.channels,
                                                   .vocab = s.vocab});
                                       },
                                       {}};
                  }});
  rows.push_back({"embedding_backward", "embedding_backward", ShapeOf(s.vocab, s.channels),
                  "(N + V) C e + 8 N", 1, (n + v) * c * e + kI64 * n, 0, [=](const ContextPtr& on) {
                    const Tensor ids = RandomIndices(s.tokens(), s.vocab, on);
                    const Tensor dy = RandomTensor({s.tokens(), s.channels}, s.dtype, on);
                    const Tensor dweight = Tensor::Empty({s.vocab, s.channels}, s.dtype, on);
                    return KernelCalls{[=] {
                                         on->kernels().embedding_backward(
                                             *on, {.dtype = s.dtype,
                                                   .grad_dtype = s.dtype,
                                                   .ids = static_cast<const int64_t*>(ids.raw()),
                                                   .dy = dy.raw(),
                                                   .dweight = dweight.raw(),
                                                   .n = s.tokens(),
                                                   .dim = s.channels,
                                                   .vocab = s.vocab});
                                       },
                                       {}};
                  }});
}

}  // namespace

std::vector<KernelRow> RowRows(const KernelSizes& s) {
  const auto n = static_cast<double>(s.tokens()), t = static_cast<double>(s.block);
  const double e = s.element_bytes();
  std::vector<KernelRow> rows;
  AddNorms(s, /*rms=*/false, rows);
  AddNorms(s, /*rms=*/true, rows);
  const std::string nt = ShapeOf(s.tokens(), s.block);
  rows.push_back({"softmax_forward", "softmax_forward", nt, "2 N T e", 0, 2 * n * t * e, 0,
                  [=](const ContextPtr& on) {
                    const Tensor x = RandomTensor({s.tokens(), s.block}, s.dtype, on);
                    return KernelCalls{[=] { ops::SoftmaxForward(x); }, {}};
                  }});
  rows.push_back({"softmax_backward", "softmax_backward", nt, "3 N T e", 0, 3 * n * t * e, 0,
                  [=](const ContextPtr& on) {
                    const Tensor x = RandomTensor({s.tokens(), s.block}, s.dtype, on);
                    const Tensor y = ops::SoftmaxForward(x);
                    return KernelCalls{[=] { ops::SoftmaxBackward(y, x); }, {}};
                  }});
  AddCrossEntropy(s, rows);
  // Of the layers' products: qkv, fc, and both that give C channels.
  struct Bias {
    const char* name;
    int64_t times, calls;
  };
  for (const Bias bias :
       {Bias{"bias_gradient_3c", 3, 1}, {"bias_gradient_4c", 4, 1}, {"bias_gradient_c", 1, 2}}) {
    const int64_t cols = bias.times * s.channels;
    const auto w = static_cast<double>(cols);
    const std::string m = bias.times == 1 ? "" : std::to_string(bias.times) + " ";
    rows.push_back({bias.name, "sum", ShapeOf(s.tokens(), cols), m + "(N + 1) C e",
                    bias.calls * s.layers, (n + 1) * w * e, 0, [=](const ContextPtr& on) {
                      const Tensor dy = RandomTensor({s.tokens(), cols}, s.dtype, on);
                      return KernelCalls{[=] { ops::SumLeading(dy, 1, s.dtype); }, {}};
                    }});
  }
  AddEmbedding(s, rows);
  return rows;
}

}  // namespace apogee::bench
