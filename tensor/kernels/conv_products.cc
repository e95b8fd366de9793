// SPDX-License-Identifier: Apache-2.0

#include "apogee/tensor/kernels/conv_products.h"

#include <algorithm>

#include "apogee/tensor/kernel_table.h"

namespace apogee {
namespace {

const void* At(const void* data, DType dtype, int64_t element) {
  return static_cast<const char*>(data) + element * DTypeSize(dtype);
}
void* At(void* data, DType dtype, int64_t element) {
  return static_cast<char*>(data) + element * DTypeSize(dtype);
}

// One matrix for each sample and group.
struct Matrices {
  void* data;
  DType dtype;
  int64_t sample, group, ld;  // strides of samples, groups and rows
  bool trans = false;

  Matrices Transposed() const {
    Matrices transposed = *this;
    transposed.trans = true;
    return transposed;
  }
};

// Images and columns of all groups of a sample, and how many samples are unfolded at once.
struct Sizes : ConvSizes {
  explicit Sizes(const ConvSizes& sizes, DType columns_dtype)
      : ConvSizes(sizes),
        in(in_channels / groups),
        out(out_channels / groups),
        depth(in * window.kernel_size()),
        stops(window.out_size()) {
    constexpr int64_t kBytes = 32 << 20;
    const int64_t bytes = columns() * DTypeSize(columns_dtype);
    chunk =
        std::clamp<int64_t>(kBytes / std::max<int64_t>(1, bytes), 1, std::max<int64_t>(1, batch));
  }
  int64_t x_sample() const { return in_channels * window.in_size(); }
  int64_t y_sample() const { return out_channels * stops; }
  int64_t columns() const { return groups * depth * stops; }
  // A window of one place that visits every place in order: the columns are the images.
  bool is_pointwise() const {
    return window.kernel_size() == 1 && window.out_size() == window.in_size() &&
           window.padding[0] == 0 && window.padding[1] == 0;
  }

  // The operands of products: [out, depth], [depth, stops] and [out, stops]. Samples share weights.
  Matrices Weights(const void* data, DType dtype) const {
    return {const_cast<void*>(data), dtype, 0, out * depth, depth};
  }
  Matrices Columns(const void* data, DType dtype) const {
    return {const_cast<void*>(data), dtype, columns(), depth * stops, stops};
  }
  Matrices Outputs(const void* data, DType dtype) const {
    return {const_cast<void*>(data), dtype, y_sample(), out * stops, stops};
  }

  int64_t in, out, depth, stops;  // of one group: channels, rows of the columns, their number
  int64_t chunk;                  // samples
};

// c = a b + beta c for each sample and group, [m, k] and [k, n], with as few batched products as
// possible. If the samples share c, all of them are added to it, one after the other.
void Multiply(const DeviceContext& context, int64_t samples, int64_t groups, int64_t m, int64_t n,
              int64_t k, const Matrices& a, const Matrices& b, const Matrices& c, double beta) {
  const bool over_samples = c.sample != 0 && samples > groups;
  const int64_t calls = over_samples ? groups : samples;
  const auto of_call = [&](const Matrices& x, int64_t call) {
    return At(x.data, x.dtype, call * (over_samples ? x.group : x.sample));
  };
  const auto stride = [&](const Matrices& x) { return over_samples ? x.sample : x.group; };
  for (int64_t call = 0; call < calls; ++call) {
    context.kernels().matmul(context, {.dtype = a.dtype,
                                       .c_dtype = c.dtype,
                                       .bias_dtype = a.dtype,
                                       .a = of_call(a, call),
                                       .b = of_call(b, call),
                                       .c = of_call(c, call),
                                       .bias = nullptr,
                                       .batch = over_samples ? samples : groups,
                                       .m = m,
                                       .n = n,
                                       .k = k,
                                       .a_trans = a.trans,
                                       .b_trans = b.trans,
                                       .lda = a.ld,
                                       .ldb = b.ld,
                                       .ldc = c.ld,
                                       .a_batch = stride(a),
                                       .b_batch = stride(b),
                                       .c_batch = stride(c),
                                       .alpha = 1,
                                       .beta = c.sample == 0 && call > 0 ? 1 : beta});
  }
}

// y[n, c, ..] = bias[c].
void FillChannels(const DeviceContext& context, DType dtype, const void* bias, DType y_dtype,
                  void* y, int64_t batch, int64_t channels, int64_t size) {
  context.kernels().copy(context, {.x_dtype = dtype,
                                   .y_dtype = y_dtype,
                                   .x = bias,
                                   .y = y,
                                   .shape = {batch, channels, size},
                                   .x_strides = {0, 1, 0},
                                   .y_strides = {channels * size, size, 1}});
}

// The columns of a chunk's images x.
void* Unfolded(const DeviceContext& context, DType dtype, const void* x, void* columns,
               int64_t samples, const Sizes& sizes) {
  if (sizes.is_pointwise()) return const_cast<void*>(x);
  context.kernels().unfold(context, {.dtype = dtype,
                                     .x = x,
                                     .columns = columns,
                                     .planes = samples * sizes.in_channels,
                                     .window = sizes.window});
  return columns;
}

int64_t ColumnBytes(const Sizes& sizes, DType dtype) {
  return sizes.is_pointwise() ? 0 : sizes.chunk * sizes.columns() * DTypeSize(dtype);
}

}  // namespace

void ConvForwardByProducts(const DeviceContext& context, const ConvForwardArgs& args) {
  const Sizes sizes(args.sizes, args.dtype);
  if (args.bias != nullptr) {
    FillChannels(context, args.dtype, args.bias, args.y_dtype, args.y, sizes.batch,
                 sizes.out_channels, sizes.stops);
  }
  const Workspace columns(context, ColumnBytes(sizes, args.dtype));
  for (int64_t n = 0; n < sizes.batch; n += sizes.chunk) {
    const int64_t samples = std::min(sizes.chunk, sizes.batch - n);
    const void* const x = At(args.x, args.dtype, n * sizes.x_sample());
    Multiply(context, samples, sizes.groups, sizes.out, sizes.stops, sizes.depth,
             sizes.Weights(args.weight, args.dtype),
             sizes.Columns(Unfolded(context, args.dtype, x, columns.data<void>(), samples, sizes),
                           args.dtype),
             sizes.Outputs(At(args.y, args.y_dtype, n * sizes.y_sample()), args.y_dtype),
             args.bias != nullptr ? 1 : 0);
  }
}

void ConvBackwardInputByProducts(const DeviceContext& context, const ConvBackwardInputArgs& args) {
  const DType sum_dtype = ComputeDType(args.dtype);
  const Sizes sizes(args.sizes, sum_dtype);
  if (args.bias != nullptr) {
    FillChannels(context, args.dtype, args.bias, args.dx_dtype, args.dx, sizes.batch,
                 sizes.in_channels, sizes.window.in_size());
  }
  const Workspace columns(context, sizes.chunk * sizes.columns() * DTypeSize(sum_dtype));
  for (int64_t n = 0; n < sizes.batch; n += sizes.chunk) {
    const int64_t samples = std::min(sizes.chunk, sizes.batch - n);
    const void* const dy = At(args.dy, args.dtype, n * sizes.y_sample());
    Multiply(context, samples, sizes.groups, sizes.depth, sizes.stops, sizes.out,
             sizes.Weights(args.weight, args.dtype).Transposed(), sizes.Outputs(dy, args.dtype),
             sizes.Columns(columns.data<void>(), sum_dtype), 0);
    context.kernels().fold(context, {.y_dtype = args.dx_dtype,
                                     .columns = columns.data<void>(),
                                     .y = At(args.dx, args.dx_dtype, n * sizes.x_sample()),
                                     .planes = samples * sizes.in_channels,
                                     .window = sizes.window,
                                     .accumulate = args.bias != nullptr});
  }
}

void ConvBackwardWeightByProducts(const DeviceContext& context,
                                  const ConvBackwardWeightArgs& args) {
  const DType sum_dtype = ComputeDType(args.dtype);
  const Sizes sizes(args.sizes, args.dtype);
  const int64_t n_weights = sizes.out_channels * sizes.depth;
  const bool in_place = args.dweight_dtype == sum_dtype;
  const Workspace sums(context, in_place ? 0 : n_weights * DTypeSize(sum_dtype));
  void* const sum = in_place ? args.dweight : sums.data<void>();
  if (sizes.batch == 0) {
    context.kernels().fill(context, {.dtype = sum_dtype, .y = sum, .n = n_weights, .value = 0});
  }
  const Workspace columns(context, ColumnBytes(sizes, args.dtype));
  for (int64_t n = 0; n < sizes.batch; n += sizes.chunk) {
    const int64_t samples = std::min(sizes.chunk, sizes.batch - n);
    const void* const x = At(args.x, args.dtype, n * sizes.x_sample());
    const void* const dy = At(args.dy, args.dtype, n * sizes.y_sample());
    Multiply(context, samples, sizes.groups, sizes.out, sizes.depth, sizes.stops,
             sizes.Outputs(dy, args.dtype),
             sizes
                 .Columns(Unfolded(context, args.dtype, x, columns.data<void>(), samples, sizes),
                          args.dtype)
                 .Transposed(),
             sizes.Weights(sum, sum_dtype), n > 0 ? 1 : 0);
  }
  if (in_place) return;
  context.kernels().copy(context, {.x_dtype = sum_dtype,
                                   .y_dtype = args.dweight_dtype,
                                   .x = sum,
                                   .y = args.dweight,
                                   .shape = {n_weights},
                                   .x_strides = {1},
                                   .y_strides = {1}});
}

}  // namespace apogee
