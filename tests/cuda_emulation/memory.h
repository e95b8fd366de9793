// SPDX-License-Identifier: Apache-2.0

// The emulated GPU's memory: the processor may touch it on the emulation's own threads only, where
// it can be protected so (memory protection keys). Private to the emulation.
#ifndef APOGEE_TESTS_CUDA_EMULATION_MEMORY_H_
#define APOGEE_TESTS_CUDA_EMULATION_MEMORY_H_

#include <cstddef>

namespace cuda_emulation {

// A block that ends at a page that nobody may touch, but for the last bytes of its last 16; null
// when `bytes` more would exceed what there is.
void* AllocateDevice(size_t bytes);
// False for what AllocateDevice did not return.
bool FreeDevice(void* block);
bool IsDevice(const void* address);
// Memory of the host that the GPU reads when a copy's turn comes, not when it is asked for.
void* AllocatePinned(size_t bytes);
bool FreePinned(void* block);
bool IsPinned(const void* address);
size_t DeviceBytes();
size_t FreeDeviceBytes();
// The calling thread may touch device memory from now on.
void LetThisThreadTouchDevice();

}  // namespace cuda_emulation

#endif  // APOGEE_TESTS_CUDA_EMULATION_MEMORY_H_
