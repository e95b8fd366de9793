// SPDX-License-Identifier: Apache-2.0

// RunGrid: runs one launch, on the calling thread. Private to the emulation.
#ifndef APOGEE_TESTS_CUDA_EMULATION_BLOCK_H_
#define APOGEE_TESTS_CUDA_EMULATION_BLOCK_H_

#include <cuda_runtime_api.h>

#include <functional>

namespace cuda_emulation {

// Calls `body`, which calls `kernel`, once for each thread of the grid.
void RunGrid(const void* kernel, const dim3& blocks, const dim3& threads, size_t shared_bytes,
             const std::function<void()>& body);

}  // namespace cuda_emulation

#endif  // APOGEE_TESTS_CUDA_EMULATION_BLOCK_H_
