// SPDX-License-Identifier: Apache-2.0

// Products by oneDNN, side by side.
#include "apogee/tensor/cpu/products/matmul_paths.h"

#ifdef APOGEE_USE_ONEDNN

#include <algorithm>
#include <exception>
#include <numeric>

#include "apogee/core/parallel.h"
#include "apogee/core/process/thread_team.h"
#include "apogee/tensor/cpu/onednn/matmul_product.h"

namespace apogee::cpu {
namespace {

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

bool TryMatMulGroupOneDnn(const DeviceContext& context, const std::vector<MatMulArgs>& products) {
  // Without AVX-512 the order of oneDNN's sums depends on the number of threads, and a product
  // would not have the bits that it has alone.
  if (dnnl::get_effective_cpu_isa() < dnnl::cpu_isa::avx512_core) return false;
  const std::vector<std::vector<size_t>> shares =
      Shares(products, static_cast<size_t>(context.num_threads()));
  if (shares.empty()) return false;
  std::vector<product::Product> own;  // several products may have the same primitive
  int64_t scratchpad_bytes = 0;       // of a thread
  {
    const ThreadTeam alone(1, /*starts=*/false);
    for (const MatMulArgs& args : products) {
      if (!product::Supports(args) || args.k == 0) return false;
      const product::Product& made = product::TakesAnyK(args)
                                         ? product::CompiledForAnyK(alone.size(), args)
                                         : product::Compiled(alone.size(), args);
      if (!made.primitive) return false;
      scratchpad_bytes = std::max(scratchpad_bytes, made.scratchpad_bytes);
      RunOneDnn(product::kProduct, [&] { own.push_back(product::CopyFor(args, made)); });
    }
  }
  const Workspace scratchpads(context, scratchpad_bytes * std::ssize(shares));
  if (context.is_dry()) return true;
  const ThreadTeam team(context.num_threads());
  const dnnl::engine& engine = product::ThreadEngine();
  std::vector<std::exception_ptr> thrown(shares.size());
  ParallelFor(context, std::ssize(shares), 1, [&](int64_t begin, int64_t end) {
    for (int64_t share = begin; share < end; ++share) {
      try {
        RunOneDnn(product::kProduct, [&] {
          dnnl::stream stream(engine);
          for (const size_t i : shares[static_cast<size_t>(share)]) {
            product::Execute(own[i], products[i],
                             scratchpads.data<char>() + share * scratchpad_bytes, stream);
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
