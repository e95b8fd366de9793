// SPDX-License-Identifier: Apache-2.0

// Products by oneDNN, one after the other.
#include "apogee/tensor/cpu/products/matmul_paths.h"

#ifdef APOGEE_USE_ONEDNN

#include "apogee/core/process/thread_team.h"
#include "apogee/tensor/cpu/onednn/matmul_product.h"

namespace apogee::cpu {

bool TryMatMulOneDnn(const DeviceContext& context, const MatMulArgs& args) {
  if (!product::Supports(args)) return false;
  // oneDNN splits its work over the number of threads that OpenMP reports. With fewer threads the
  // result is wrong.
  const ThreadTeam team(context.num_threads(), /*starts=*/!context.is_dry());
  product::Product& made = product::Compiled(team.size(), args);
  if (!made.primitive) return false;
  const Workspace scratchpad(context, made.scratchpad_bytes);
  if (context.is_dry()) return true;
  RunOneDnn(product::kProduct, [&] {
    product::Execute(made, args, scratchpad.data<void>(), product::ThreadStream());
  });
  return true;
}

bool TryMatMulAnyKOneDnn(const DeviceContext& context, const MatMulArgs& args) {
  if (!product::TakesAnyK(args)) return false;
  const ThreadTeam team(context.num_threads(), /*starts=*/!context.is_dry());
  const product::Product& made = product::CompiledForAnyK(team.size(), args);
  if (!made.primitive) return false;
  if (context.is_dry()) return true;
  RunOneDnn(product::kProduct, [&] {
    product::Product own = product::CopyFor(args, made);
    product::Execute(own, args, nullptr, product::ThreadStream());
  });
  return true;
}

}  // namespace apogee::cpu

#endif  // APOGEE_USE_ONEDNN
