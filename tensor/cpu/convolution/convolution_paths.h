// SPDX-License-Identifier: Apache-2.0

// Convolutions by oneDNN. Private to tensor/cpu/convolution.
#ifndef APOGEE_TENSOR_CPU_CONVOLUTION_CONVOLUTION_PATHS_H_
#define APOGEE_TENSOR_CPU_CONVOLUTION_CONVOLUTION_PATHS_H_

#include "apogee/core/device_context.h"
#include "apogee/tensor/cpu/onednn/onednn.h"
#include "apogee/tensor/kernels/conv_args.h"

namespace apogee::cpu {

#ifdef APOGEE_USE_ONEDNN
// These return false and leave the result untouched if oneDNN has no fast implementation. They need
// a batch of at least 1. The input's gradient must have no bias.
bool TryConvForwardOneDnn(const DeviceContext& context, const ConvForwardArgs& args);
bool TryConvBackwardInputOneDnn(const DeviceContext& context, const ConvBackwardInputArgs& args);
bool TryConvBackwardWeightOneDnn(const DeviceContext& context, const ConvBackwardWeightArgs& args);
#endif

}  // namespace apogee::cpu

#endif  // APOGEE_TENSOR_CPU_CONVOLUTION_CONVOLUTION_PATHS_H_
