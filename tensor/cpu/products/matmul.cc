// SPDX-License-Identifier: Apache-2.0

#include <vector>

#include "apogee/tensor/cpu/kernels.h"
#include "apogee/tensor/cpu/products/matmul_paths.h"

namespace apogee::cpu {

void matmul(const DeviceContext& context, const MatMulArgs& args) {
  if (args.batch == 0 || args.m == 0 || args.n == 0) return;
  if (TryMatMulRows(context, args)) return;
#ifdef APOGEE_USE_ONEDNN
  if (args.k > 0 && TryMatMulOneDnn(context, args)) return;
#endif
  MatMulEigen(context, args);
}

void matmul_group(const DeviceContext& context, const MatMulGroupArgs& args) {
  std::vector<MatMulArgs> products;
  for (int64_t i = 0; i < args.count; ++i) {
    const MatMulArgs& product = args.products[i];
    if (product.m == 0 || product.n == 0 || TryMatMulRows(context, product)) continue;
    products.push_back(product);
  }
#ifdef APOGEE_USE_ONEDNN
  if (TryMatMulGroupOneDnn(context, products)) return;
#endif
  for (const MatMulArgs& product : products) {
#ifdef APOGEE_USE_ONEDNN
    if (TryMatMulAnyKOneDnn(context, product)) continue;
#endif
    matmul(context, product);
  }
}

void matmul_activation(const DeviceContext& context, const MatMulActivationArgs& args) {
  const MatMulArgs& product = args.product;
  matmul(context, product);
  activation_forward(context, {.kind = args.activation,
                               .dtype = product.c_dtype,
                               .x = product.c,
                               .y = args.y,
                               .n = product.batch * product.m * product.n});
}

}  // namespace apogee::cpu
