// SPDX-License-Identifier: Apache-2.0

// AdaMax on GPUs.
#include "adamax_element.h"
#include "apogee/optim/element_update.cuh"

APOGEE_CUDA_ELEMENT(AdaMaxElement, 2);
