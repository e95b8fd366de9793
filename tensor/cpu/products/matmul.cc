// SPDX-License-Identifier: Apache-2.0

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
