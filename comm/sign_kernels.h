// SPDX-License-Identifier: Apache-2.0

// The kernels of 1-bit messages, one table per backend (as tensor/kernel_table.h). Bit k of byte b
// is the sign of element 8 b + k: 1 for x >= 0, zeros of either sign included.
//
//   const SignKernels& kernels = SignKernelsFor(*context);
//   double squares = kernels.pack(*context, {...});
//
// Errors are f32, or f64 where `error_dtype` says so, and all arithmetic is done in their type;
// sums of squares are taken in f64, in an order that depends on the sizes alone. Elements from
// `num_live` on, and where `live` is not null those whose bit there is 0, take no part: they count
// as 0, their error is 0, their sign bit means nothing. `numel` is a multiple of 8; elements from
// `num_values` on have no value, only an error. Pointers are the device's, but for those of results
// (`squares`, `count`), which are numbers on the host, and the spans.
#ifndef APOGEE_COMM_SIGN_KERNELS_H_
#define APOGEE_COMM_SIGN_KERNELS_H_

#include <cstdint>
#include <span>

#include "apogee/core/dtype.h"
#include "apogee/tensor/kernel_table.h"

namespace apogee::comm {

// bits = signs of value + error; `squares` is the sum of (value + error)^2. Changes nothing else.
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

// error += the mean over the senders of scale * sign; bits = its signs; `squares` of it.
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

// error -= scale * sign(error), where live; 0 elsewhere.
struct KeepErrorArgs {
  DType error_dtype;
  double scale;
  void* error;
  const uint8_t* live;
  int64_t num_live;
  int64_t numel;
};

// error = value + error - sent_scale * sign(value + error), then value = scale * the sign in bits;
// both 0 where not live.
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

// bits = which of `values`, of dtype `value_dtype`, are finite and above `floor`.
struct PackLiveArgs {
  DType value_dtype;
  double floor;
  const void* values;
  int64_t num_values;
  uint8_t* bits;
};

// count = the number of bits that are 1.
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

// X(slot name, argument type), one line per kernel.
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

// The table of the context's device type; its empty slots throw Error.
const SignKernels& SignKernelsFor(const DeviceContext& context);

}  // namespace apogee::comm

#endif  // APOGEE_COMM_SIGN_KERNELS_H_
