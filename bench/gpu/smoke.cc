// SPDX-License-Identifier: Apache-2.0

#include <vector>

#include "apogee/bench/gpu/commands.h"
#include "apogee/core/error.h"
#include "apogee/tensor/ops/elementwise.h"
#include "apogee/tensor/ops/matmul.h"
#include "apogee/tensor/tensor.h"

namespace apogee::bench {

void Smoke(const ContextPtr& context) {
  const auto line = [&](const char* what) {
    JsonLine("smoke").Text("name", what).Text("device", context->device().ToString());
  };
  line("context");
  // Small integers: exact in bf16 and in every order of summation.
  constexpr int64_t kSize = 64;
  const Tensor ones = Tensor::Full({kSize, kSize}, DType::kBF16, 1, context);
  const Tensor twos = ops::Add(ones, ones);
  for (const float value : twos.To(DType::kF32).ToVector<float>()) {
    APOGEE_CHECK(value == 2, "smoke: 1 + 1 on ", context->device().ToString(), " is ", value);
  }
  line("kernel");
  const Tensor product = ops::MatMul(twos, ones);
  for (const float value : product.To(DType::kF32).ToVector<float>()) {
    APOGEE_CHECK(value == 2 * kSize, "smoke: a product on ", context->device().ToString(),
                 " gives ", value, ", ", 2 * kSize, " is right");
  }
  line("product");
}

}  // namespace apogee::bench
