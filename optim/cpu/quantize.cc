// SPDX-License-Identifier: Apache-2.0

#include <vector>

#include "apogee/core/parallel.h"
#include "apogee/optim/cpu/kernels.h"
#include "apogee/optim/cpu/loops/block_codes.h"

namespace apogee::optim::cpu {
namespace {

template <typename C, typename S>
void QuantizeAs(const DeviceContext& context, const QuantizeArgs& args) {
  const C* values = static_cast<const C*>(args.values);
  S* scales = static_cast<S*>(args.scales);
  const Pieces pieces(0, args.n, args.block);
  std::vector<C> largest(static_cast<size_t>(pieces.count()));
  const auto for_pieces = [&](const auto& fn) {
    ParallelFor(context, pieces.count(), 64, [&](int64_t from, int64_t to) {
      int64_t piece = from;
      pieces.ForEach(
          from, to, [&](int64_t begin, int64_t n, int64_t block) { fn(piece++, begin, n, block); });
    });
  };
  for_pieces([&](int64_t p, int64_t begin, int64_t n, int64_t) {
    largest[static_cast<size_t>(p)] = AbsMax(values + begin, n);
  });
  if (args.block == 0) {
    scales[0] = static_cast<S>(AbsMax(largest.data(), pieces.count()));
  } else {
    for (size_t p = 0; p < largest.size(); ++p) scales[p] = static_cast<S>(largest[p]);
  }
  for_pieces([&](int64_t, int64_t begin, int64_t n, int64_t block) {
    const C scale = static_cast<C>(scales[block]);
    const auto encode = [&]<bool kSigned>() {
      const BlockEncoder<kSigned, C> encoder(*args.map, scale, /*keep_sign=*/false);
      ForEachGroup(
          n, [&](int64_t i, auto count) __attribute__((always_inline)) {
            encoder.Encode(values + begin + i, count, args.codes + begin + i);
          });
    };
    args.map->is_signed() ? encode.template operator()<true>()
                          : encode.template operator()<false>();
  });
}

template <typename C, typename S>
void DequantizeAs(const DeviceContext& context, const QuantizeArgs& args) {
  const Pieces pieces(0, args.n, args.block);
  const S* scales = static_cast<const S*>(args.scales);
  ParallelFor(context, pieces.count(), 64, [&](int64_t from, int64_t to) {
    pieces.ForEach(from, to, [&](int64_t begin, int64_t n, int64_t block) {
      const C scale = static_cast<C>(scales[block]);
      C* values = static_cast<C*>(args.values) + begin;
      const auto decode = [&]<bool kSigned>() {
        ForEachGroup(
            n, [&](int64_t i, auto count) __attribute__((always_inline)) {
              DecodeGroup<kSigned>(*args.map, args.codes + begin + i, scale, count, values + i);
            });
      };
      args.map->is_signed() ? decode.template operator()<true>()
                            : decode.template operator()<false>();
    });
  });
}

}  // namespace

void quantize(const DeviceContext& context, const QuantizeArgs& args) {
  const bool wide = args.scale_dtype == DType::kF64;
  if (args.dtype == DType::kF64) {
    wide ? QuantizeAs<double, double>(context, args) : QuantizeAs<double, float>(context, args);
  } else {
    wide ? QuantizeAs<float, double>(context, args) : QuantizeAs<float, float>(context, args);
  }
}

void dequantize(const DeviceContext& context, const QuantizeArgs& args) {
  const bool wide = args.scale_dtype == DType::kF64;
  if (args.dtype == DType::kF64) {
    wide ? DequantizeAs<double, double>(context, args) : DequantizeAs<double, float>(context, args);
  } else {
    wide ? DequantizeAs<float, double>(context, args) : DequantizeAs<float, float>(context, args);
  }
}

}  // namespace apogee::optim::cpu
