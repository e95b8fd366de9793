// SPDX-License-Identifier: Apache-2.0

// Pools: the computation of one place of a result, one definition for all backends. Private to the
// backends.
//
//   const pool::Max<T> max{args};
//   ForPlaces(context, args.planes, args.window.out, max);     // max(plane, row, column)
#ifndef APOGEE_TENSOR_KERNELS_POOL_FUNCTIONS_H_
#define APOGEE_TENSOR_KERNELS_POOL_FUNCTIONS_H_

#include <cstdint>

#include "apogee/core/dtype.h"
#include "apogee/tensor/kernels/window_functions.h"

namespace apogee::pool {

using window::Inside;
using window::Place;
using window::Range;

// The place of the largest element of a window, the first of equal ones; or of the first NaN.
template <typename T>
struct Max {
  using C = ComputeType<T>;
  MaxPoolForwardArgs args;

  APOGEE_HOST_DEVICE void operator()(int64_t plane, int64_t oh, int64_t ow) const {
    const Window& w = args.window;
    const T* const image = static_cast<const T*>(args.x) + plane * w.in_size();
    const Range rows = Inside(w, 0, oh), cols = Inside(w, 1, ow);
    int64_t best = Place(w, 0, oh, rows.begin) * w.in[1] + Place(w, 1, ow, cols.begin);
    C largest = static_cast<C>(image[best]);
    for (int64_t i = rows.begin; i < rows.end; ++i) {
      const int64_t row = Place(w, 0, oh, i) * w.in[1];
      for (int64_t j = cols.begin; j < cols.end; ++j) {
        const int64_t at = row + Place(w, 1, ow, j);
        const C value = static_cast<C>(image[at]);
        // The first NaN stays: it is neither larger nor a number again.
        if (value > largest || (value != value && largest == largest)) {
          best = at;
          largest = value;
        }
      }
    }
    const int64_t to = (plane * w.out[0] + oh) * w.out[1] + ow;
    args.index[to] = best;
    static_cast<T*>(args.y)[to] = image[best];
  }
};

// The number of elements that the average at the stop (oh, ow) counts.
template <typename C>
APOGEE_HOST_DEVICE C AverageDivisor(const Window& w, bool count_padding, int64_t oh, int64_t ow) {
  if (count_padding) return static_cast<C>(w.kernel[0] * w.kernel[1]);
  const Range rows = Inside(w, 0, oh), cols = Inside(w, 1, ow);
  return static_cast<C>((rows.end - rows.begin) * (cols.end - cols.begin));
}

template <typename T>
struct Average {
  using C = ComputeType<T>;
  AveragePoolForwardArgs args;

  APOGEE_HOST_DEVICE void operator()(int64_t plane, int64_t oh, int64_t ow) const {
    const Window& w = args.window;
    const T* const image = static_cast<const T*>(args.x) + plane * w.in_size();
    const Range rows = Inside(w, 0, oh), cols = Inside(w, 1, ow);
    C sum = C(0);
    for (int64_t i = rows.begin; i < rows.end; ++i) {
      const T* row = image + Place(w, 0, oh, i) * w.in[1];
      for (int64_t j = cols.begin; j < cols.end; ++j) {
        sum += static_cast<C>(row[Place(w, 1, ow, j)]);
      }
    }
    static_cast<T*>(args.y)[(plane * w.out[0] + oh) * w.out[1] + ow] =
        static_cast<T>(sum / AverageDivisor<C>(w, args.count_padding, oh, ow));
  }
};

// The gradient of a place of the image, from those of the averages that it is part of.
template <typename T>
struct AverageGradient {
  using C = ComputeType<T>;
  AveragePoolBackwardArgs args;

  APOGEE_HOST_DEVICE void operator()(int64_t plane, int64_t row, int64_t col) const {
    const Window& w = args.window;
    const T* const dy = static_cast<const T*>(args.dy) + plane * w.out_size();
    const Range rows = window::Covering(w, 0, row), cols = window::Covering(w, 1, col);
    C sum = C(0);
    for (int64_t oh = rows.begin; oh < rows.end; ++oh) {
      for (int64_t ow = cols.begin; ow < cols.end; ++ow) {
        sum += static_cast<C>(dy[oh * w.out[1] + ow]) /
               AverageDivisor<C>(w, args.count_padding, oh, ow);
      }
    }
    static_cast<T*>(args.dx)[(plane * w.in[0] + row) * w.in[1] + col] = static_cast<T>(sum);
  }
};

}  // namespace apogee::pool

#endif  // APOGEE_TENSOR_KERNELS_POOL_FUNCTIONS_H_
