// SPDX-License-Identifier: Apache-2.0

// The cost of an element of a user's own optimizer (optim/element_update.h), compared with a loop
// over raw pointers that is written by hand for f32: AdamW and Lion.
//
//   element_bench [elements, default 8388608] [threads, default 1] [repeats, default 25]
//
// Each pair of runs gives a ratio; the table has their median.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <vector>

#include "apogee/core/parallel.h"
#include "apogee/optim/element_update.h"
#include "apogee/optim/step/step.h"
#include "apogee/tensor/cpu/cpu_context.h"

namespace apogee {
namespace {

struct OwnAdamW {
  double decay, beta1, beta2, eps, rate, root_scale;

  template <typename C>
  APOGEE_HOST_DEVICE void operator()(C g, C& w, C& m, C& v) const {
    w -= C(decay) * w;
    m = C(beta1) * m + C(1 - beta1) * g;
    v = C(beta2) * v + C(1 - beta2) * g * g;
    w -= C(rate) * (m / (C(root_scale) * std::sqrt(v) + C(eps)));
  }
};
constexpr OwnAdamW kAdamW = {1e-5, 0.9, 0.999, 1e-8, 1e-3, 1.01};

void AdamWByHand(int64_t n, float scale, float* __restrict w, const float* __restrict grad,
                 float* __restrict m, float* __restrict v) {
  const auto decay = static_cast<float>(kAdamW.decay), beta1 = static_cast<float>(kAdamW.beta1),
             rest1 = static_cast<float>(1 - kAdamW.beta1), beta2 = static_cast<float>(kAdamW.beta2),
             rest2 = static_cast<float>(1 - kAdamW.beta2), eps = static_cast<float>(kAdamW.eps),
             rate = static_cast<float>(kAdamW.rate),
             root_scale = static_cast<float>(kAdamW.root_scale);
  for (int64_t i = 0; i < n; ++i) {
    const float g = scale * grad[i];
    const float kept = w[i] - decay * w[i];
    m[i] = beta1 * m[i] + rest1 * g;
    v[i] = beta2 * v[i] + rest2 * g * g;
    w[i] = kept - rate * (m[i] / (root_scale * std::sqrt(v[i]) + eps));
  }
}

struct OwnLion {
  double lr, beta1, beta2;

  template <typename C>
  APOGEE_HOST_DEVICE void operator()(C g, C& w, C& m) const {
    const C direction = C(beta1) * m + C(1 - beta1) * g;
    m = C(beta2) * m + C(1 - beta2) * g;
    w -= C(lr) * (direction > 0 ? C{1} : direction < 0 ? C{-1} : direction);
  }
};
constexpr OwnLion kLion = {1e-4, 0.9, 0.99};

void LionByHand(int64_t n, float scale, float* __restrict w, const float* __restrict grad,
                float* __restrict m) {
  const auto lr = static_cast<float>(kLion.lr), beta1 = static_cast<float>(kLion.beta1),
             rest1 = static_cast<float>(1 - kLion.beta1), beta2 = static_cast<float>(kLion.beta2),
             rest2 = static_cast<float>(1 - kLion.beta2);
  for (int64_t i = 0; i < n; ++i) {
    const float g = scale * grad[i];
    const float direction = beta1 * m[i] + rest1 * g;
    m[i] = beta2 * m[i] + rest2 * g;
    w[i] -= lr * (direction > 0 ? 1.0f : direction < 0 ? -1.0f : direction);
  }
}

double Seconds(const std::function<void()>& fn) {
  const auto start = std::chrono::steady_clock::now();
  fn();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

double Median(std::vector<double> values) {
  std::ranges::nth_element(values, values.begin() + static_cast<int64_t>(values.size() / 2));
  return values[values.size() / 2];
}

void Compare(const char* name, int64_t repeats, const std::function<void()>& element,
             const std::function<void()>& by_hand) {
  std::vector<double> ours, theirs, ratios;
  for (int64_t repeat = -1; repeat < repeats; ++repeat) {  // the first warms up the memory
    const double a = Seconds(element), b = Seconds(by_hand);
    if (repeat < 0) continue;
    ours.push_back(a);
    theirs.push_back(b);
    ratios.push_back(a / b);
  }
  std::printf("%-8s %12.2f %12.2f %8.3f\n", name, 1e3 * Median(ours), 1e3 * Median(theirs),
              Median(ratios));
}

int Main(int argc, char** argv) {
  const auto number = [&](int index, int64_t otherwise) {
    return argc > index ? std::max<int64_t>(1, std::atoll(argv[index])) : otherwise;
  };
  const int64_t n = number(1, 8388608), repeats = number(3, 25);
  const ContextPtr context = CpuContext({.num_threads = static_cast<int>(number(2, 1))});
  const auto parameter =
      std::make_shared<autograd::Parameter>("w", Tensor::Full({n}, DType::kF32, 0.5, context));
  optim::ParamView view(parameter);
  const optim::ActiveParam param{&view, 0, Tensor::Full({n}, DType::kF32, 0.01, context)};
  const std::span<const optim::ActiveParam> params(&param, 1);
  float* const m = view.AddState("m", StateKind::kElementwise).data<float>();
  float* const v = view.AddState("v", StateKind::kElementwise).data<float>();
  float* const w = view.value().data<float>();
  const float* const grad = param.grad.data<float>();
  const auto by_hand = [&](const auto& loop) {
    ParallelFor(context->num_threads(), n, 1 << 15, loop);
  };
  std::printf("%lld f32 elements, %d threads, medians of %lld\n", static_cast<long long>(n),
              context->num_threads(), static_cast<long long>(repeats));
  std::printf("%-8s %12s %12s %8s\n", "", "element, ms", "by hand, ms", "ratio");
  Compare(
      "adamw", repeats,
      [&] {
        optim::UpdateElements(params, 0.5, kAdamW, {"m", "v"});
      },
      [&] {
        by_hand(
            [&](int64_t b, int64_t e) { AdamWByHand(e - b, 0.5f, w + b, grad + b, m + b, v + b); });
      });
  Compare(
      "lion", repeats, [&] { optim::UpdateElements(params, 0.5, kLion, {"m"}); },
      [&] {
        by_hand([&](int64_t b, int64_t e) { LionByHand(e - b, 0.5f, w + b, grad + b, m + b); });
      });
  return 0;
}

}  // namespace
}  // namespace apogee

int main(int argc, char** argv) { return apogee::Main(argc, argv); }
