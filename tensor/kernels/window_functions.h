// SPDX-License-Identifier: Apache-2.0

// The elements of windows over one plane, one definition for all backends. Private to the backends.
//
//   const window::Range rows = window::Inside(args.window, 0, stop);
//   for (int64_t k = rows.begin; k < rows.end; ++k) ... window::Place(args.window, 0, stop, k) ...
#ifndef APOGEE_TENSOR_KERNELS_WINDOW_FUNCTIONS_H_
#define APOGEE_TENSOR_KERNELS_WINDOW_FUNCTIONS_H_

#include <cstdint>

#include "apogee/tensor/kernels/conv_args.h"

namespace apogee::window {

struct Range {
  int64_t begin, end;
};

// The place that element k of the window has at a stop, along one dim. May be outside of the image.
APOGEE_HOST_DEVICE int64_t Place(const Window& w, int dim, int64_t stop, int64_t k) {
  return stop * w.stride[dim] - w.padding[dim] + k * w.dilation[dim];
}

// ceil(a / b) for b > 0, at least 0.
APOGEE_HOST_DEVICE int64_t CeilAtLeastZero(int64_t a, int64_t b) {
  return a <= 0 ? 0 : (a + b - 1) / b;
}

// The elements k of the window that are inside of the image at a stop.
APOGEE_HOST_DEVICE Range Inside(const Window& w, int dim, int64_t stop) {
  const int64_t first = Place(w, dim, stop, 0);
  const int64_t begin = CeilAtLeastZero(-first, w.dilation[dim]);
  const int64_t end = CeilAtLeastZero(w.in[dim] - first, w.dilation[dim]);
  return {begin, end < w.kernel[dim] ? end : w.kernel[dim]};
}

// The stops at which element k of the window is inside of the image.
APOGEE_HOST_DEVICE Range Stops(const Window& w, int dim, int64_t k) {
  const int64_t first = Place(w, dim, 0, k);
  const int64_t begin = CeilAtLeastZero(-first, w.stride[dim]);
  const int64_t end = CeilAtLeastZero(w.in[dim] - first, w.stride[dim]);
  const int64_t stops = w.out[dim];
  return {begin < stops ? begin : stops, end < stops ? end : stops};
}

// The stops of a window without dilation that cover a place.
APOGEE_HOST_DEVICE Range Covering(const Window& w, int dim, int64_t place) {
  const int64_t shifted = place + w.padding[dim];
  const int64_t end = shifted / w.stride[dim] + 1;
  return {CeilAtLeastZero(shifted - w.kernel[dim] + 1, w.stride[dim]),
          end < w.out[dim] ? end : w.out[dim]};
}

// The stop at which element k of the window is at a place; -1 if there is none.
APOGEE_HOST_DEVICE int64_t StopAt(const Window& w, int dim, int64_t place, int64_t k) {
  const int64_t from = place + w.padding[dim] - k * w.dilation[dim];
  if (from < 0 || from % w.stride[dim] != 0) return -1;
  const int64_t stop = from / w.stride[dim];
  return stop < w.out[dim] ? stop : -1;
}

}  // namespace apogee::window

#endif  // APOGEE_TENSOR_KERNELS_WINDOW_FUNCTIONS_H_
