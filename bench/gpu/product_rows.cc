// SPDX-License-Identifier: Apache-2.0

// Every product of GPT-2: forward (with and without its epilogue), the gradient of the input (dx)
// and that of the weight (dw). Weights of layers are [in, out], the head's is the token table
// [vocab, channels].
#include "apogee/bench/gpu/cublas_alone.h"
#include "apogee/bench/gpu/kernel_rows.h"
#include "apogee/tensor/ops/matmul.h"

namespace apogee::bench {
namespace {

enum class Epilogue { kNone, kBias, kBiasGelu };

struct Product {
  std::string name;
  int64_t m, n, k;
  bool a_trans, b_trans;
  Epilogue epilogue;
  int64_t calls;
};

std::function<void()> Alone([[maybe_unused]] const ContextPtr& on,
                            [[maybe_unused]] const Product& p, [[maybe_unused]] const Tensor& a,
                            [[maybe_unused]] const Tensor& b) {
#ifdef APOGEE_BENCH_CUBLAS
  if (on->device().type == DeviceType::kCuda && a.dtype() == DType::kBF16) {
    return CublasAlone(a, b, Tensor::Empty({p.m, p.n}, a.dtype(), on),
                       {.a_trans = p.a_trans, .b_trans = p.b_trans});
  }
#endif
  return nullptr;
}

KernelCalls Prepare(const Product& p, DType dtype, const ContextPtr& on) {
  const Tensor a = RandomTensor(p.a_trans ? Shape{p.k, p.m} : Shape{p.m, p.k}, dtype, on);
  const Tensor b = RandomTensor(p.b_trans ? Shape{p.n, p.k} : Shape{p.k, p.n}, dtype, on);
  ops::MatMulOptions options = {.b_trans = p.b_trans};
  if (p.epilogue != Epilogue::kNone) options.bias = RandomTensor({p.n}, dtype, on);
  KernelCalls calls = {.ours = {}, .alone = Alone(on, p, a, b)};
  if (p.a_trans) {
    calls.ours = [=] { ops::MatMulTransA(a, b, dtype); };
  } else if (p.epilogue == Epilogue::kBiasGelu) {
    calls.ours = [=] { ops::MatMulActivation(a, b, Activation::kGeluTanh, options); };
  } else {
    calls.ours = [=] { ops::MatMul(a, b, options); };
  }
  return calls;
}

}  // namespace

std::vector<KernelRow> ProductRows(const KernelSizes& s) {
  struct Linear {
    const char* name;
    int64_t in, out;
    Epilogue epilogue;
  };
  const Linear linears[] = {{"qkv", s.channels, 3 * s.channels, Epilogue::kBias},
                            {"proj", s.channels, s.channels, Epilogue::kBias},
                            {"fc", s.channels, s.hidden(), Epilogue::kBiasGelu},
                            {"out", s.hidden(), s.channels, Epilogue::kBias},
                            {"head", s.channels, s.vocab, Epilogue::kNone}};
  const int64_t n = s.tokens();
  std::vector<Product> products;
  for (const Linear& l : linears) {
    const std::string name = l.name;
    const bool head = name == "head";
    const int64_t calls = head ? 1 : s.layers;
    products.push_back({name + "_forward", n, l.out, l.in, false, /*b_trans=*/head, Epilogue::kNone,
                        head ? 1 : 0});
    if (!head) {
      products.push_back({name + "_forward_bias", n, l.out, l.in, false, false, Epilogue::kBias,
                          l.epilogue == Epilogue::kBias ? calls : 0});
    }
    if (l.epilogue == Epilogue::kBiasGelu) {
      products.push_back(
          {name + "_forward_bias_gelu", n, l.out, l.in, false, false, Epilogue::kBiasGelu, calls});
    }
    products.push_back(
        {name + "_dx", n, l.in, l.out, false, /*b_trans=*/!head, Epilogue::kNone, calls});
    // The weight's gradient has its layout.
    products.push_back({name + "_dw", head ? l.out : l.in, head ? l.in : l.out, n,
                        /*a_trans=*/true, false, Epilogue::kNone, calls});
  }
  products.push_back({"square", 4096, 4096, 4096, false, false, Epilogue::kNone, 0});
  if (s.channels < 256) products.back().m = products.back().n = products.back().k = 64;
  std::vector<KernelRow> rows;
  for (const Product& p : products) {
    const std::string shape =
        std::to_string(p.m) + "x" + std::to_string(p.n) + "x" + std::to_string(p.k);
    const double flops =
        2.0 * static_cast<double>(p.m) * static_cast<double>(p.n) * static_cast<double>(p.k);
    rows.push_back({p.name, p.epilogue == Epilogue::kBiasGelu ? "matmul_activation" : "matmul",
                    shape, "2 m n k", p.calls, 0, flops,
                    [p, dtype = s.dtype](const ContextPtr& on) { return Prepare(p, dtype, on); }});
  }
  return rows;
}

}  // namespace apogee::bench
