// SPDX-License-Identifier: Apache-2.0

#include "apogee/tensor/cpu/onednn/onednn.h"

#ifdef APOGEE_USE_ONEDNN

#include <array>
#include <unordered_map>

#include "apogee/tensor/cpu/onednn/matmul_product.h"

namespace apogee::cpu::product {
namespace {

// Everything that a compiled primitive depends on.
struct Key {
  DType dtype, c_dtype, bias_dtype;
  bool has_bias, a_trans, b_trans;
  int num_threads;
  std::array<int64_t, 10> sizes;  // k = 0: any
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

// The layouts of a, b and c without a batch; k may be DNNL_RUNTIME_DIM_VAL.
std::array<dnnl::memory::desc, 3> Matrices(const MatMulArgs& args, int64_t k) {
  const auto desc = [](DType dtype, int64_t rows, int64_t cols, int64_t ld, bool trans) {
    return dnnl::memory::desc({rows, cols}, TypeOf(dtype),
                              {trans ? int64_t{1} : ld, trans ? ld : int64_t{1}});
  };
  return {desc(args.dtype, args.m, k, args.lda, args.a_trans),
          desc(args.dtype, k, args.n, args.ldb, args.b_trans),
          desc(args.c_dtype, args.m, args.n, args.ldc, false)};
}

// A primitive for any k, without a bias.
void CompileForAnyK(const MatMulArgs& args, const dnnl::engine& engine,
                    const MakingPrimitives& making, Product& product) {
  const auto [a, b, c] = Matrices(args, DNNL_RUNTIME_DIM_VAL);
  const dnnl::matmul::primitive_desc desc(dnnl::matmul::desc(a, b, c), UserScratchpad(), engine,
                                          /*allow_empty=*/true);
  // One that needs memory would take it from the system in each call.
  if (!IsFast(desc, making) || desc.scratchpad_desc().get_size() > 0) return;
  product.primitive = dnnl::matmul(desc);
}

void Compile(const Key& key, const MatMulArgs& args, const dnnl::engine& engine,
             const MakingPrimitives& making, Product& product) {
  if (args.k == 0) return CompileForAnyK(args, engine, making, product);
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

PrimitiveCache<Key, Product>& Cache() { return ThreadCache<Key, Product>(); }

}  // namespace

const dnnl::engine& ThreadEngine() { return Cache().engine(); }
dnnl::stream& ThreadStream() { return Cache().stream(); }

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

Product& Compiled(int num_threads, const MatMulArgs& args) {
  auto& cache = Cache();
  const Key key = KeyOf(num_threads, args);
  return cache.Get(key, kProduct, [&](Product& made, const MakingPrimitives& making) {
    Compile(key, args, cache.engine(), making, made);
  });
}

bool TakesAnyK(const MatMulArgs& args) {
  return args.a_trans && !args.b_trans && args.batch == 1 && args.k > 0 && args.bias == nullptr &&
         args.alpha == 1 && args.beta == 0 && args.c_dtype == DType::kF32 && Supports(args);
}

Product& CompiledForAnyK(int num_threads, const MatMulArgs& args) {
  MatMulArgs any = args;
  any.k = any.a_batch = any.b_batch = 0;
  return Compiled(num_threads, any);
}

Product CopyFor(const MatMulArgs& args, const Product& product) {
  const auto memory = [](const dnnl::memory::desc& desc) {
    return dnnl::memory(desc, ThreadEngine(), nullptr);
  };
  if (!product.a) {  // it takes any k
    const auto [a, b, c] = Matrices(args, args.k);
    return {.primitive = product.primitive,
            .a = memory(a),
            .b = memory(b),
            .c = memory(c),
            .bias = {},
            .scratchpad = memory({})};
  }
  return {.primitive = product.primitive,
          .a = memory(product.a.get_desc()),
          .b = memory(product.b.get_desc()),
          .c = memory(product.c.get_desc()),
          .bias = product.bias ? memory(product.bias.get_desc()) : dnnl::memory(),
          .scratchpad = memory(product.scratchpad.get_desc()),
          .scratchpad_bytes = product.scratchpad_bytes};
}

void Execute(Product& product, const MatMulArgs& args, void* scratchpad, dnnl::stream& stream) {
  product.a.set_data_handle(const_cast<void*>(args.a));
  product.b.set_data_handle(const_cast<void*>(args.b));
  product.c.set_data_handle(args.c);
  product.scratchpad.set_data_handle(scratchpad);
  std::unordered_map<int, dnnl::memory> arguments{{DNNL_ARG_SRC, product.a},
                                                  {DNNL_ARG_WEIGHTS, product.b},
                                                  {DNNL_ARG_DST, product.c},
                                                  {DNNL_ARG_SCRATCHPAD, product.scratchpad}};
  if (args.bias != nullptr) {
    product.bias.set_data_handle(const_cast<void*>(args.bias));
    arguments.emplace(DNNL_ARG_BIAS, product.bias);
  }
  product.primitive.execute(stream, arguments);
}

}  // namespace apogee::cpu::product

#endif  // APOGEE_USE_ONEDNN
