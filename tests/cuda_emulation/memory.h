// SPDX-License-Identifier: Apache-2.0

// The emulated GPU's memory. If the processor has memory protection keys, only the emulation's own
// threads may touch it. Private to the emulation.
#ifndef APOGEE_TESTS_CUDA_EMULATION_MEMORY_H_
#define APOGEE_TESTS_CUDA_EMULATION_MEMORY_H_

#include <cstddef>

namespace cuda_emulation {

// Returns a block that ends, rounded up to 16 bytes, at a page without access. Null if the GPU does
// not have `bytes` left.
void* AllocateDevice(size_t bytes);
// Returns false for an address that AllocateDevice did not return.
bool FreeDevice(void* block);
bool IsDevice(const void* address);
// Pinned host memory: the GPU reads it when the queued copy runs, not when the copy is queued.
void* AllocatePinned(size_t bytes);
bool FreePinned(void* block);
bool IsPinned(const void* address);
size_t DeviceBytes();
size_t FreeDeviceBytes();
// The calling thread may touch device memory from now on.
void LetThisThreadTouchDevice();

}  // namespace cuda_emulation

#endif  // APOGEE_TESTS_CUDA_EMULATION_MEMORY_H_
