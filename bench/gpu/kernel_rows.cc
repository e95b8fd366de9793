// SPDX-License-Identifier: Apache-2.0

#include "apogee/bench/gpu/kernel_rows.h"

#include <utility>

#include "apogee/tensor/ops/nn.h"

namespace apogee::bench {

Tensor RandomTensor(const Shape& shape, DType dtype, const ContextPtr& context) {
  const Tensor x = Tensor::Empty(shape, dtype, context);
  ops::FillNormal(x, 0, 1, MakeKey(1, "kernels"));
  return x;
}

Tensor RandomIndices(int64_t count, int64_t end, const ContextPtr& context) {
  std::vector<int64_t> values(static_cast<size_t>(count));
  const PhiloxKey key = MakeKey(1, "indices");
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = Philox(key, i)[0] % static_cast<uint32_t>(end);
  }
  return Tensor::FromVector<int64_t>(values, {count}, context);
}

std::vector<KernelRow> KernelRows(const KernelSizes& sizes) {
  std::vector<KernelRow> rows;
  for (auto* part : {ElementRows, RowRows, AttentionRows, ProductRows}) {
    for (KernelRow& row : part(sizes)) rows.push_back(std::move(row));
  }
  return rows;
}

}  // namespace apogee::bench
