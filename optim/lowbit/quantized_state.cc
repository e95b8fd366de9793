// SPDX-License-Identifier: Apache-2.0

#include "apogee/optim/lowbit/quantized_state.h"

#include "apogee/optim/core/kernels.h"

namespace apogee::optim {

QuantizedState::QuantizedState(Tensor codes, Tensor scales, const CodeMap& map, int64_t block)
    : codes_(std::move(codes)), scales_(std::move(scales)), map_(map), block_(block) {
  APOGEE_CHECK(codes_.dtype() == DType::kU8 && codes_.is_contiguous(),
               "QuantizedState: needs contiguous u8 codes, got ", DTypeName(codes_.dtype()));
  APOGEE_CHECK(block >= 0 && scales_.numel() == NumBlocks(codes_.numel(), block) &&
                   (scales_.dtype() == DType::kF32 || scales_.dtype() == DType::kF64),
               "QuantizedState: ", codes_.numel(), " codes in blocks of ", block, " need ",
               block >= 0 ? NumBlocks(codes_.numel(), block) : 0, " f32 or f64 scales, got ",
               DTypeName(scales_.dtype()), " ", scales_.shape());
}

Tensor QuantizedState::Dequantize(DType dtype) const {
  Tensor values =
      Tensor::Empty(codes_.shape(), dtype, codes_.context(), MemoryCategory::kWorkspace);
  const DeviceContext& context = *codes_.context();
  OptimKernelsFor(context).dequantize(
      context, {dtype, &map_, block_, codes_.numel(), codes_.address<uint8_t>(), scales_.raw(),
                scales_.dtype(), values.raw()});
  return values;
}

void QuantizedState::Quantize(const Tensor& values) const {
  APOGEE_CHECK(values.numel() == codes_.numel() && values.is_contiguous(), "QuantizedState: needs ",
               codes_.numel(), " contiguous values, got ", values.shape());
  const DeviceContext& context = *codes_.context();
  OptimKernelsFor(context).quantize(
      context, {values.dtype(), &map_, block_, codes_.numel(), codes_.address<uint8_t>(),
                scales_.raw(), scales_.dtype(), values.raw()});
}

}  // namespace apogee::optim
