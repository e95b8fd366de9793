// SPDX-License-Identifier: Apache-2.0

// The kernels of 1-bit messages, one table per backend as in tensor/kernel_table.h. Bit k of byte b
// is the sign of element 8 b + k: 1 for x >= 0, zeros of either sign included.
//
//   const SignKernels& kernels = SignKernelsFor(*context);
//   kernels.count_live(*context, {.live = bits, .num_bytes = 128, .count = &count});
//
// Errors have dtype `error_dtype`, f32 or f64, and all arithmetic is done in it. Sums of squares
// are f64 and are added in an order that depends only on the sizes. Elements from `num_live` on
// take no part, nor do elements whose bit in `live` is 0 (if `live` is not null): they count as 0,
// their error is 0, and their sign bit means nothing. `numel` is a multiple of 8. Elements from
// `num_values` on have an error but no value. Pointers point to the device's memory, except for
// spans and for results (`squares`, `count`), which are on the host.
#ifndef APOGEE_COMM_SIGN_KERNELS_H_
#define APOGEE_COMM_SIGN_KERNELS_H_

#include <cstdint>
#include <span>

#include "apogee/core/dtype.h"
#include "apogee/tensor/kernel_table.h"

namespace apogee::comm {

// bits = signs of value + error; squares = sum of (value + error)^2. Changes nothing else.
struct PackArgs {
  DType value_dtype, error_dtype;
  const void* value;
  int64_t num_values;
  const void* error;
  const uint8_t* live;
  int64_t num_live;
  int64_t numel;
  uint8_t* bits;
  double* squares;
};

// error += mean over the senders of scale * sign; bits = signs of error; squares = sum of error^2.
struct CollectSignsArgs {
  DType error_dtype;
  std::span<const uint8_t* const> sent;  // one per sender
  std::span<const double> scales;
  void* error;
  const uint8_t* live;
  int64_t num_live;
  int64_t numel;
  uint8_t* bits;
  double* squares;
};

// error -= scale * sign(error) where live; error = 0 where not live.
struct KeepErrorArgs {
  DType error_dtype;
  double scale;
  void* error;
  const uint8_t* live;
  int64_t num_live;
  int64_t numel;
};

// error = value + error - sent_scale * sign(value + error), then value = scale * the sign in
// `bits`. Both are 0 where not live.
struct UnpackArgs {
  DType value_dtype, error_dtype;
  void* value;
  int64_t num_values;
  void* error;
  const uint8_t* live;
  int64_t num_live;
  int64_t numel;
  const uint8_t* bits;
  double sent_scale, scale;
};

// bits = 1 where `values` are finite and above `floor`.
struct PackLiveArgs {
  DType value_dtype;
  double floor;
  const void* values;
  int64_t num_values;
  uint8_t* bits;
};

// count = the number of bits that are 1. Waits for the device.
struct CountLiveArgs {
  const uint8_t* live;
  int64_t num_bytes;
  int64_t* count;
};

// values = 0 where not live.
struct ClearArgs {
  DType value_dtype;
  void* values;
  int64_t num_values;
  const uint8_t* live;  // not null
};

// X(slot name, argument type), one per kernel.
#define APOGEE_FOR_EACH_SIGN_KERNEL(X) \
  X(pack, PackArgs)                    \
  X(collect, CollectSignsArgs)         \
  X(keep_error, KeepErrorArgs)         \
  X(unpack, UnpackArgs)                \
  X(pack_live, PackLiveArgs)           \
  X(count_live, CountLiveArgs)         \
  X(clear, ClearArgs)

struct SignKernels {
#define APOGEE_DECLARE_SLOT(name, Args) KernelSlot<Args> name{#name};
  APOGEE_FOR_EACH_SIGN_KERNEL(APOGEE_DECLARE_SLOT)
#undef APOGEE_DECLARE_SLOT
};

// The table of the context's backend (comm/device_backend.h); calling an empty slot throws Error.
const SignKernels& SignKernelsFor(const DeviceContext& context);

}  // namespace apogee::comm

#endif  // APOGEE_COMM_SIGN_KERNELS_H_
