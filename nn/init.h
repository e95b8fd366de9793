// SPDX-License-Identifier: Apache-2.0

// The first value of a parameter.
//
//   Tensor value = FirstValue({4, 2}, Init::Normal(0, 0.02), MakeKey(seed, "fc.weight"),
//                             DType::kF32, context);
#ifndef APOGEE_NN_INIT_H_
#define APOGEE_NN_INIT_H_

#include "apogee/nn/module.h"

namespace apogee::nn {

// A pure function of the arguments. The draws of an element depend on its index alone.
Tensor FirstValue(const Shape& shape, const Init& init, const PhiloxKey& key, DType dtype,
                  const ContextPtr& context);

}  // namespace apogee::nn

#endif  // APOGEE_NN_INIT_H_
