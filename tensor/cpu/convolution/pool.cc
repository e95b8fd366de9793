// SPDX-License-Identifier: Apache-2.0

// Pools over the windows of each plane.
#include "apogee/tensor/cpu/kernels.h"
#include "apogee/tensor/cpu/loops.h"
#include "apogee/tensor/kernels/pool_functions.h"

namespace apogee::cpu {
namespace {

// Calls Fn<T>{args}(plane, row, column) for every place of the planes, of this size.
template <template <typename> typename Fn, typename Args>
void ForPlaces(const DeviceContext& context, const char* name, const Args& args,
               const int64_t (&size)[2]) {
  const int64_t rows = size[0], cols = size[1];
  DispatchFloat(args.dtype, name, [&]<typename T>() {
    ForRows(context, args.planes * rows, cols * args.window.kernel_size(),
            [&](int64_t begin, int64_t end) {
              const Fn<T> fn{args};
              for (int64_t at = begin; at < end; ++at) {
                for (int64_t col = 0; col < cols; ++col) fn(at / rows, at % rows, col);
              }
            });
  });
}

}  // namespace

void max_pool_forward(const DeviceContext& context, const MaxPoolForwardArgs& args) {
  ForPlaces<pool::Max>(context, "max_pool", args, args.window.out);
}

void average_pool_forward(const DeviceContext& context, const AveragePoolForwardArgs& args) {
  ForPlaces<pool::Average>(context, "average_pool", args, args.window.out);
}

void average_pool_backward(const DeviceContext& context, const AveragePoolBackwardArgs& args) {
  ForPlaces<pool::AverageGradient>(context, "average_pool_backward", args, args.window.in);
}

}  // namespace apogee::cpu
