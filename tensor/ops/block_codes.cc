// SPDX-License-Identifier: Apache-2.0

#include "apogee/tensor/ops/block_codes.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "apogee/tensor/cpu/block_codes.h"
#include "apogee/tensor/kernel_table.h"

namespace apogee::ops {
namespace {

Tensor OnHost(const Tensor& value) { return value.Detach().Contiguous().ToHost().To(DType::kF32); }

}  // namespace

int64_t FirstNonFinite(const Tensor& value) {
  const Tensor host = OnHost(value);
  if (host.context()->is_dry()) return -1;
  const std::span<const float> x(host.data<float>(), static_cast<size_t>(host.numel()));
  const auto found = std::ranges::find_if(x, [](float v) { return !std::isfinite(v); });
  return found == x.end() ? -1 : found - x.begin();
}

Tensor EncodeBlocks(const Tensor& value, const BlockCodes& codes) {
  APOGEE_CHECK(value.numel() == codes.numel, "encode blocks: ", value.numel(),
               " values for codes of ", codes.numel);
  const Tensor host = OnHost(value);
  const int64_t bad = FirstNonFinite(host);
  APOGEE_CHECK(bad < 0, "encode blocks: element ", bad, " is not finite, and has no code");
  const Tensor bytes =
      Tensor::Empty({codes.bytes()}, DType::kU8, host.context(), MemoryCategory::kParameter);
  if (!host.context()->is_dry()) {
    cpu::EncodeBlocks(*host.context(), codes, host.data<float>(), bytes.data<uint8_t>());
  }
  return bytes.To(value.context(), MemoryCategory::kParameter);
}

BlockPart MakeBlockPart(std::span<const BlockRun> runs, const ContextPtr& context) {
  const auto count = static_cast<int64_t>(runs.size());
  const Tensor table = Tensor::Empty({count, kBlockRunSize}, DType::kI64, HostOf(context),
                                     MemoryCategory::kParameter);
  if (count > 0) std::memcpy(table.raw(), runs.data(), runs.size_bytes());
  return {table.To(context, MemoryCategory::kParameter),
          count > 0 ? runs.back().out + runs.back().length : 0};
}

Tensor DecodeBlocks(const Tensor& bytes, const BlockCodes& codes, const BlockPart& part,
                    const Shape& shape, DType dtype) {
  const ContextPtr& context = bytes.context();
  const BlockPart held = part.runs.defined()
                             ? part
                             : MakeBlockPart(std::array{BlockRun{.length = codes.numel,
                                                                 .code = codes.code_begin(),
                                                                 .scale = codes.scale_begin(),
                                                                 .nested = codes.nested_begin()}},
                                             context);
  const Tensor contiguous = bytes.Contiguous();
  const Tensor out = Tensor::Empty(shape, dtype, context, MemoryCategory::kWorkspace);
  if (held.num_held < shape.numel()) out.Fill(0);
  context->kernels().block_decode(*context, {.dtype = dtype,
                                             .codes = codes,
                                             .bytes = contiguous.raw(),
                                             .runs = held.runs.raw(),
                                             .num_runs = held.runs.size(0),
                                             .out = out.raw(),
                                             .n = held.num_held});
  return out;
}

}  // namespace apogee::ops
