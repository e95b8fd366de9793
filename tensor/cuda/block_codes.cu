// SPDX-License-Identifier: Apache-2.0

// block_decode: a thread decodes one element.
#include "apogee/tensor/cuda/device/device.cuh"
#include "apogee/tensor/cuda/device/launch.cuh"
#include "apogee/tensor/cuda/kernels.h"

namespace apogee::cuda {
namespace {

template <typename T>
void Decode(const DeviceContext& context, const DecodeBlocksArgs& args) {
  T* const out = static_cast<T*>(args.out);
  const auto* const bytes = static_cast<const uint8_t*>(args.bytes);
  const auto* const runs = static_cast<const BlockRun*>(args.runs);
  const BlockCodes codes = args.codes;
  const int64_t num_runs = args.num_runs;
  ForEach(context, args.n, [=] __device__(int64_t i) {
    int64_t low = 0, high = num_runs - 1;  // the last run that begins at or before i
    while (low < high) {
      const int64_t middle = (low + high + 1) / 2;
      if (runs[middle].out <= i) {
        low = middle;
      } else {
        high = middle - 1;
      }
    }
    const BlockRun run = runs[low];
    const int64_t element = run.first + i - run.out;
    const float scale = BlockScale(codes, run, bytes, element);
    if (codes.kind == BlockCodeKind::kInt8) {
      const auto code = static_cast<int8_t>(bytes[run.code + element - run.first]);
      out[i] = Cast<T>(static_cast<float>(code) * (scale / 127));
      return;
    }
    const uint8_t pair = bytes[run.code + element / 2 - run.first / 2];
    const int code = element % 2 == 0 ? pair >> 4 : pair & 15;
    out[i] = Cast<T>(LoadBytes(bytes + codes.map_begin() + 4 * code) * scale);
  });
}

}  // namespace

void block_decode(const DeviceContext& context, const DecodeBlocksArgs& args) {
  DispatchFloat(args.dtype, "block_decode", [&]<typename T>() { Decode<T>(context, args); });
}

}  // namespace apogee::cuda
