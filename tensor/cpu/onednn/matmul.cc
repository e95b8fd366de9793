// SPDX-License-Identifier: Apache-2.0

// Products by oneDNN.
#include "apogee/tensor/cpu/products/matmul_paths.h"

#ifdef APOGEE_USE_ONEDNN

#include <algorithm>
#include <array>
#include <exception>
#include <numeric>
#include <unordered_map>

#include "apogee/core/parallel.h"
#include "apogee/core/process/thread_team.h"
#include "apogee/tensor/cpu/onednn/primitives.h"

namespace apogee::cpu {
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

constexpr const char* kWhat = "a matrix product";

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

// The calling thread's primitive for so many threads.
Product& Compiled(int num_threads, const MatMulArgs& args) {
  auto& cache = ThreadCache<Key, Product>();
  const Key key = KeyOf(num_threads, args);
  return cache.Get(key, kWhat, [&](Product& made, const MakingPrimitives& making) {
    Compile(key, args, cache.engine(), making, made);
  });
}

// Sets the pointers of `product`, which no other thread may use meanwhile.
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

// Products that sum over the rows of a group, whose number is another one each time. A primitive
// for each number would cost as much as a small product.
bool TakesAnyK(const MatMulArgs& args) {
  return args.a_trans && !args.b_trans && args.batch == 1 && args.k > 0 && args.bias == nullptr &&
         args.alpha == 1 && args.beta == 0 && args.c_dtype == DType::kF32 && Supports(args);
}

Product& CompiledForAnyK(int num_threads, const MatMulArgs& args) {
  MatMulArgs any = args;
  any.k = any.a_batch = any.b_batch = 0;
  return Compiled(num_threads, any);
}

// A primitive for any k with memory objects for that of `args`.
Product ForItsK(const Product& product, const MatMulArgs& args, const dnnl::engine& engine) {
  const auto [a, b, c] = Matrices(args, args.k);
  return {.primitive = product.primitive,
          .a = dnnl::memory(a, engine, nullptr),
          .b = dnnl::memory(b, engine, nullptr),
          .c = dnnl::memory(c, engine, nullptr),
          .scratchpad = dnnl::memory({}, engine, nullptr)};
}

// The same primitive with memory objects of its own.
Product CopyOf(const Product& product, const dnnl::engine& engine) {
  const auto copy = [&](const dnnl::memory& memory) {
    return memory ? dnnl::memory(memory.get_desc(), engine, nullptr) : dnnl::memory();
  };
  return {.primitive = product.primitive,
          .a = copy(product.a),
          .b = copy(product.b),
          .c = copy(product.c),
          .bias = copy(product.bias),
          .scratchpad = copy(product.scratchpad),
          .scratchpad_bytes = product.scratchpad_bytes};
}

// The products that each thread gets: the largest first, each to the thread with the least work.
// Empty if one of them would have much more work than the others.
std::vector<std::vector<size_t>> Shares(const std::vector<MatMulArgs>& products, size_t threads) {
  if (threads < 2 || products.size() < threads) return {};
  const auto work = [&](size_t i) {
    return static_cast<double>(products[i].m) * static_cast<double>(products[i].n) *
           static_cast<double>(products[i].k);
  };
  std::vector<size_t> order(products.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::ranges::stable_sort(order, [&](size_t i, size_t j) { return work(i) > work(j); });
  std::vector<std::vector<size_t>> shares(threads);
  std::vector<double> load(threads);
  double sum = 0;
  for (const size_t i : order) {
    const auto least = static_cast<size_t>(std::ranges::min_element(load) - load.begin());
    shares[least].push_back(i);
    load[least] += work(i);
    sum += work(i);
  }
  constexpr double kMaxImbalance = 1.2;
  const double even = sum / static_cast<double>(threads);
  return std::ranges::max(load) <= kMaxImbalance * even ? shares
                                                        : std::vector<std::vector<size_t>>();
}

}  // namespace

bool TryMatMulOneDnn(const DeviceContext& context, const MatMulArgs& args) {
  if (!Supports(args)) return false;
  // oneDNN splits its work over the number of threads that OpenMP reports. With fewer threads the
  // result is wrong.
  const ThreadTeam team(context.num_threads(), /*starts=*/!context.is_dry());
  Product& product = Compiled(team.size(), args);
  if (!product.primitive) return false;
  const Workspace scratchpad(context, product.scratchpad_bytes);
  if (context.is_dry()) return true;
  RunOneDnn(kWhat, [&] {
    Execute(product, args, scratchpad.data<void>(), ThreadCache<Key, Product>().stream());
  });
  return true;
}

bool TryMatMulAnyKOneDnn(const DeviceContext& context, const MatMulArgs& args) {
  if (!TakesAnyK(args)) return false;
  const ThreadTeam team(context.num_threads(), /*starts=*/!context.is_dry());
  const Product& product = CompiledForAnyK(team.size(), args);
  if (!product.primitive) return false;
  if (context.is_dry()) return true;
  auto& cache = ThreadCache<Key, Product>();
  RunOneDnn(kWhat, [&] {
    Product own = ForItsK(product, args, cache.engine());
    Execute(own, args, nullptr, cache.stream());
  });
  return true;
}

bool TryMatMulGroupOneDnn(const DeviceContext& context, const std::vector<MatMulArgs>& products) {
  const std::vector<std::vector<size_t>> shares =
      Shares(products, static_cast<size_t>(context.num_threads()));
  if (shares.empty()) return false;
  const dnnl::engine& engine = ThreadCache<Key, Product>().engine();
  std::vector<Product> own;      // several products may have the same primitive
  int64_t scratchpad_bytes = 0;  // of a thread
  {
    const ThreadTeam alone(1, /*starts=*/false);
    for (const MatMulArgs& args : products) {
      if (!Supports(args) || args.k == 0) return false;
      const bool any_k = TakesAnyK(args);
      const Product& product =
          any_k ? CompiledForAnyK(alone.size(), args) : Compiled(alone.size(), args);
      if (!product.primitive) return false;
      scratchpad_bytes = std::max(scratchpad_bytes, product.scratchpad_bytes);
      RunOneDnn(kWhat, [&] {
        own.push_back(any_k ? ForItsK(product, args, engine) : CopyOf(product, engine));
      });
    }
  }
  const Workspace scratchpads(context, scratchpad_bytes * std::ssize(shares));
  if (context.is_dry()) return true;
  const ThreadTeam team(context.num_threads());
  std::vector<std::exception_ptr> thrown(shares.size());
  ParallelFor(context, std::ssize(shares), 1, [&](int64_t begin, int64_t end) {
    for (int64_t share = begin; share < end; ++share) {
      try {
        RunOneDnn(kWhat, [&] {
          dnnl::stream stream(engine);
          for (const size_t i : shares[static_cast<size_t>(share)]) {
            Execute(own[i], products[i], scratchpads.data<char>() + share * scratchpad_bytes,
                    stream);
          }
        });
      } catch (...) {
        thrown[static_cast<size_t>(share)] = std::current_exception();
      }
    }
  });
  for (const std::exception_ptr& error : thrown) {
    if (error != nullptr) std::rethrow_exception(error);
  }
  return true;
}

}  // namespace apogee::cpu

#endif  // APOGEE_USE_ONEDNN
