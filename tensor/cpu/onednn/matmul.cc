// SPDX-License-Identifier: Apache-2.0

// Products by oneDNN.
#include "apogee/tensor/cpu/products/matmul_paths.h"

#ifdef APOGEE_USE_ONEDNN

#include <array>
#include <unordered_map>

#include "apogee/core/process/thread_team.h"
#include "apogee/tensor/cpu/onednn/primitives.h"

namespace apogee::cpu {
namespace {

// Everything that a compiled primitive depends on.
struct Key {
  DType dtype, c_dtype, bias_dtype;
  bool has_bias, a_trans, b_trans;
  int num_threads;
  std::array<int64_t, 10> sizes;
  double alpha, beta;

  auto operator<=>(const Key&) const = default;
};

Key KeyOf(int num_threads, const MatMulArgs& args) {
  return {args.dtype,
          args.c_dtype,
          args.bias != nullptr ? args.bias_dtype : args.dtype,
          args.bias != nullptr,
          args.a_trans,
          args.b_trans,
          num_threads,
          {args.batch, args.m, args.n, args.k, args.lda, args.ldb, args.ldc, args.a_batch,
           args.b_batch, args.c_batch},
          args.alpha,
          args.beta};
}

// A primitive with its memory objects. Each call sets their pointers.
struct Product {
  dnnl::matmul primitive;  // empty: oneDNN has nothing fast for this key
  dnnl::memory a, b, c, bias, scratchpad;
  int64_t scratchpad_bytes = 0;
};

bool Supports(const MatMulArgs& args) {
  const auto f32_or_bf16 = [](DType dtype) {
    return dtype == DType::kF32 || dtype == DType::kBF16;
  };
  if (!f32_or_bf16(args.dtype) || !f32_or_bf16(args.c_dtype)) return false;
  if (args.dtype == DType::kF32 && args.c_dtype != DType::kF32) return false;
  if (args.beta != 0 && args.c_dtype != DType::kF32) return false;
  if (args.bias == nullptr) return true;
  // oneDNN adds the bias before it scales.
  return args.alpha == 1 && f32_or_bf16(args.bias_dtype) &&
         (args.bias_dtype == DType::kF32 || args.dtype == DType::kBF16);
}

// The layout [batch, rows, cols] of a product's operand that is stored with row stride ld. If there
// is one matrix, or one for all products, the batch stride does not matter.
dnnl::memory::desc Desc(DType dtype, int64_t batch, int64_t batch_stride, int64_t rows,
                        int64_t cols, int64_t ld, bool trans) {
  const bool batched = batch > 1 && batch_stride != 0;
  const int64_t stored_rows = trans ? cols : rows, stored_cols = trans ? rows : cols;
  if (stored_rows == 1) ld = stored_cols;
  return {{batched ? batch : 1, rows, cols},
          TypeOf(dtype),
          {batched ? batch_stride : stored_rows * ld, trans ? 1 : ld, trans ? ld : 1}};
}

constexpr const char* kWhat = "a matrix product";

void Compile(const Key& key, const MatMulArgs& args, const dnnl::engine& engine,
             const MakingPrimitives& making, Product& product) {
  const auto a = Desc(args.dtype, args.batch, args.a_batch, args.m, args.k, args.lda, args.a_trans);
  const auto b = Desc(args.dtype, args.batch, args.b_batch, args.k, args.n, args.ldb, args.b_trans);
  const auto c = Desc(args.c_dtype, args.batch, args.c_batch, args.m, args.n, args.ldc, false);
  const dnnl::memory::desc bias({1, 1, args.n}, TypeOf(key.bias_dtype),
                                dnnl::memory::format_tag::abc);
  dnnl::primitive_attr attr = UserScratchpad();
  if (args.alpha != 1) attr.set_output_scales(0, {static_cast<float>(args.alpha)});
  if (args.beta != 0) {
    dnnl::post_ops post_ops;
    post_ops.append_sum(static_cast<float>(args.beta));
    attr.set_post_ops(post_ops);
  }
  const dnnl::matmul::desc op =
      key.has_bias ? dnnl::matmul::desc(a, b, bias, c) : dnnl::matmul::desc(a, b, c);
  const dnnl::matmul::primitive_desc desc(op, attr, engine, /*allow_empty=*/true);
  if (!IsFast(desc, making)) return;
  product.primitive = dnnl::matmul(desc);
  product.a = dnnl::memory(a, engine, nullptr);
  product.b = dnnl::memory(b, engine, nullptr);
  product.c = dnnl::memory(c, engine, nullptr);
  if (key.has_bias) product.bias = dnnl::memory(bias, engine, nullptr);
  product.scratchpad = dnnl::memory(desc.scratchpad_desc(), engine, nullptr);
  product.scratchpad_bytes = static_cast<int64_t>(desc.scratchpad_desc().get_size());
}

}  // namespace

bool TryMatMulOneDnn(const DeviceContext& context, const MatMulArgs& args) {
  if (!Supports(args)) return false;
  // oneDNN splits its work over the number of threads that OpenMP reports. With fewer threads the
  // result is wrong.
  const ThreadTeam team(context.num_threads(), /*starts=*/!context.is_dry());
  auto& cache = ThreadCache<Key, Product>();
  const Key key = KeyOf(team.size(), args);
  Product& product = cache.Get(key, kWhat, [&](Product& made, const MakingPrimitives& making) {
    Compile(key, args, cache.engine(), making, made);
  });
  if (!product.primitive) return false;

  const Workspace scratchpad(context, product.scratchpad_bytes);
  if (context.is_dry()) return true;
  product.a.set_data_handle(const_cast<void*>(args.a));
  product.b.set_data_handle(const_cast<void*>(args.b));
  product.c.set_data_handle(args.c);
  product.scratchpad.set_data_handle(scratchpad.data<void>());
  std::unordered_map<int, dnnl::memory> arguments{{DNNL_ARG_SRC, product.a},
                                                  {DNNL_ARG_WEIGHTS, product.b},
                                                  {DNNL_ARG_DST, product.c},
                                                  {DNNL_ARG_SCRATCHPAD, product.scratchpad}};
  if (key.has_bias) {
    product.bias.set_data_handle(const_cast<void*>(args.bias));
    arguments.emplace(DNNL_ARG_BIAS, product.bias);
  }
  RunOneDnn(kWhat, [&] { product.primitive.execute(cache.stream(), arguments); });
  return true;
}

}  // namespace apogee::cpu

#endif  // APOGEE_USE_ONEDNN
