// SPDX-License-Identifier: Apache-2.0

#include "apogee/tensor/ops/matmul.h"

#include <vector>

#include "apogee/tensor/kernel_table.h"
#include "apogee/tensor/ops/check.h"

namespace apogee::ops {
namespace {

// Folds all dims but the last into rows.
Tensor AsMatrix(const Tensor& x) {
  return x.rank() == 2 ? x : x.View({x.numel() / std::max<int64_t>(x.size(-1), 1), x.size(-1)});
}

// Returns x in a's memory if both are on one GPU: an x in pinned host memory (PinnedContext) is
// copied, so that it goes over the bus once.
Tensor InMemoryOf(const Tensor& a, const Tensor& x) {
  const bool is_gpu = !a.context()->is_host() && x.device() == a.device();
  return is_gpu ? x.To(a.context()) : x;
}

// The operands of a product, which must live until it runs, and the result.
struct Operands {
  Tensor a, b, bias, c;
};

// Kernels choose products by the size of a dtype, too, so they cannot be the ones that notice.
void CheckFloat(DType dtype) {
  if (!IsFloat(dtype)) ThrowNotFloat("matmul", dtype);
}

// Checks the operands, makes the result and calls run(operands, arguments).
template <typename Run>
Tensor RunMatMul(const Tensor& a_in, const Tensor& b_in, const MatMulOptions& options,
                 const Run& run) {
  const Tensor a = Operand("matmul", "a", a_in);
  const Tensor b = InMemoryOf(a, Operand("matmul", "b", b_in));
  CheckSameDType("matmul", a, b);
  CheckFloat(a.dtype());
  APOGEE_CHECK(a.rank() >= 2 && b.rank() >= 2, "matmul: needs matrices, got shapes ", a.shape(),
               " and ", b.shape());
  const bool batched = b.rank() > 2;
  APOGEE_CHECK(batched || a.rank() == 2 || !options.a_trans,
               "matmul: a transposed operand of rank ", a.rank(),
               " needs a batched b; see MatMulTransA");
  int64_t batch = 1;
  if (batched) {
    APOGEE_CHECK(a.rank() == b.rank(), "matmul: batch dims differ: ", a.shape(), " and ",
                 b.shape());
    for (int i = 0; i < a.rank() - 2; ++i) {
      APOGEE_CHECK(a.size(i) == b.size(i), "matmul: batch dims differ: ", a.shape(), " and ",
                   b.shape());
      batch *= a.size(i);
    }
  }
  const Tensor a2 = batched ? a : AsMatrix(a);
  const int64_t m = options.a_trans ? a2.size(-1) : a2.size(-2);
  const int64_t k = options.a_trans ? a2.size(-2) : a2.size(-1);
  const int64_t n = options.b_trans ? b.size(-2) : b.size(-1);
  const int64_t b_k = options.b_trans ? b.size(-1) : b.size(-2);
  APOGEE_CHECK(k == b_k, "matmul: contracted dims differ: ", k, " (a ", a.shape(), ") and ", b_k,
               " (b ", b.shape(), ")");
  Tensor bias;
  if (options.bias.defined()) {
    bias = InMemoryOf(a, Operand("matmul", "bias", options.bias));
    CheckSameDevice("matmul", bias, a);
    CheckFloat(bias.dtype());
    APOGEE_CHECK(bias.rank() == 1 && bias.size(0) == n, "matmul: bias ", bias.shape(), " for ", n,
                 " columns");
  }
  Shape shape = a.shape();
  shape.Set(-1, n);
  if (options.a_trans) shape.Set(-2, m);
  const DType out_dtype = options.out_dtype.value_or(a.dtype());
  CheckFloat(out_dtype);
  APOGEE_CHECK(options.out.defined() || !options.accumulate,
               "matmul: accumulate adds to `out`, which is undefined");
  if (options.out.defined()) {
    APOGEE_CHECK(options.out.shape() == shape && options.out.dtype() == out_dtype &&
                     options.out.device() == a.device() && options.out.is_contiguous(),
                 "matmul: out is ", DTypeName(options.out.dtype()), " ", options.out.shape(),
                 " on ", options.out.device().ToString(), ", must be ", DTypeName(out_dtype), " ",
                 shape, " on ", a.device().ToString(), ", contiguous");
  }
  const Tensor c =
      options.out.defined() ? options.out : Tensor::Empty(shape, out_dtype, a.context());
  run(Operands{.a = a, .b = b, .bias = bias, .c = c},
      MatMulArgs{.dtype = a.dtype(),
                 .c_dtype = out_dtype,
                 .bias_dtype = bias.defined() ? bias.dtype() : a.dtype(),
                 .a = a.raw(),
                 .b = b.raw(),
                 .c = c.raw(),
                 .bias = bias.defined() ? bias.raw() : nullptr,
                 .batch = batch,
                 .m = m,
                 .n = n,
                 .k = k,
                 .a_trans = options.a_trans,
                 .b_trans = options.b_trans,
                 .lda = a2.size(-1),
                 .ldb = b.size(-1),
                 .ldc = n,
                 .a_batch = m * k,
                 .b_batch = k * n,
                 .c_batch = m * n,
                 .alpha = 1,
                 .beta = options.accumulate ? 1.0 : 0.0});
  return c;
}

}  // namespace

Tensor MatMul(const Tensor& a, const Tensor& b, const MatMulOptions& options) {
  return RunMatMul(a, b, options, [](const Operands& operands, const MatMulArgs& args) {
    const ContextPtr& context = operands.c.context();
    context->kernels().matmul(*context, args);
  });
}

std::vector<Tensor> MatMulGroup(const std::vector<GroupedProduct>& products) {
  std::vector<Operands> operands;
  std::vector<MatMulArgs> args;
  std::vector<Tensor> results;
  for (const GroupedProduct& product : products) {
    const Tensor result = RunMatMul(product.a, product.b, product.options,
                                    [&](const Operands& own, const MatMulArgs& own_args) {
                                      operands.push_back(own);
                                      args.push_back(own_args);
                                    });
    APOGEE_CHECK(args.back().batch == 1, "matmul_group: needs matrices, got shapes ",
                 product.a.shape(), " and ", product.b.shape());
    CheckSameDevice("matmul_group", result, operands[0].c);
    results.push_back(result);
  }
  if (results.empty()) return results;
  const ContextPtr& context = results[0].context();
  context->kernels().matmul_group(*context, {.products = args.data(), .count = std::ssize(args)});
  return results;
}

Activated MatMulActivation(const Tensor& a, const Tensor& b, Activation activation,
                           const MatMulOptions& options) {
  Tensor y;
  const auto run = [&](const Operands& operands, const MatMulArgs& args) {
    const Tensor& pre = operands.c;
    y = Tensor::EmptyLike(pre);
    pre.context()->kernels().matmul_activation(
        *pre.context(), {.product = args, .activation = activation, .y = y.raw()});
  };
  const Tensor pre = RunMatMul(a, b, options, run);
  return {.y = y, .pre = pre};
}

Tensor MatMulTransA(const Tensor& a, const Tensor& b, DType out_dtype) {
  return MatMul(AsMatrix(Operand("matmul", "a", a)), AsMatrix(Operand("matmul", "b", b)),
                {.a_trans = true, .out_dtype = out_dtype});
}

}  // namespace apogee::ops
