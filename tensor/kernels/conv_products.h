// SPDX-License-Identifier: Apache-2.0

// Convolutions as matrix products of unfolded images, from a backend's own kernels unfold, fold,
// matmul and copy. Private to the backends: a backend without anything faster calls these.
//
//   void conv_forward(const DeviceContext& context, const ConvForwardArgs& args) {
//     ConvForwardByProducts(context, args);
//   }
//
// Unfolded images take up to 32 MiB of workspace, or as much as one sample needs. The order of all
// sums depends on the sizes alone, as far as that of the backend's products does.
#ifndef APOGEE_TENSOR_KERNELS_CONV_PRODUCTS_H_
#define APOGEE_TENSOR_KERNELS_CONV_PRODUCTS_H_

#include "apogee/core/device_context.h"
#include "apogee/tensor/kernels/conv_args.h"

namespace apogee {

void ConvForwardByProducts(const DeviceContext& context, const ConvForwardArgs& args);
void ConvBackwardInputByProducts(const DeviceContext& context, const ConvBackwardInputArgs& args);
void ConvBackwardWeightByProducts(const DeviceContext& context, const ConvBackwardWeightArgs& args);

}  // namespace apogee

#endif  // APOGEE_TENSOR_KERNELS_CONV_PRODUCTS_H_
