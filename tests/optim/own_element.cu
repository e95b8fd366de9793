// SPDX-License-Identifier: Apache-2.0

#include "apogee/optim/element_update.cuh"
#include "apogee/tests/optim/own_element.h"

APOGEE_CUDA_ELEMENT(apogee::optim::OwnElement, 3);
