// SPDX-License-Identifier: Apache-2.0

// The functions that a compiler calls before each access to memory with -fsanitize=thread. Only
// kernels are compiled so; ThreadSanitizer's own library, which defines the same functions, is not
// linked.
#include <cstddef>
#include <cstdint>

#include "races.h"

namespace cuda_emulation {
namespace {

constinit thread_local Races* noted = nullptr;

}  // namespace

void NoteAccessesTo(Races* races) { noted = races; }

void NoteAccess(Access access, const void* address, size_t bytes, const void* code) {
  if (noted != nullptr) noted->Note(access, address, bytes, code);
}

}  // namespace cuda_emulation

using cuda_emulation::Access;
using cuda_emulation::noted;

#define APOGEE_NOTE(access, bytes) \
  if (noted != nullptr) noted->Note(access, address, bytes, __builtin_return_address(0))
#define APOGEE_ACCESSES(bytes)                                                            \
  void __tsan_read##bytes(void* address) { APOGEE_NOTE(Access::kRead, bytes); }           \
  void __tsan_write##bytes(void* address) { APOGEE_NOTE(Access::kWrite, bytes); }         \
  void __tsan_unaligned_read##bytes(void* address) { APOGEE_NOTE(Access::kRead, bytes); } \
  void __tsan_unaligned_write##bytes(void* address) { APOGEE_NOTE(Access::kWrite, bytes); }

// Operations on std::atomic and std::atomic_ref. They are always in the strongest order.
#define APOGEE_ATOMIC(bits, name, builtin)                                                   \
  uint##bits##_t __tsan_atomic##bits##_##name(uint##bits##_t* address, uint##bits##_t value, \
                                              int) {                                         \
    APOGEE_NOTE(Access::kAtomic, bits / 8);                                                  \
    return builtin(address, value, __ATOMIC_SEQ_CST);                                        \
  }
#define APOGEE_COMPARE_EXCHANGE(bits, strength)                                            \
  int __tsan_atomic##bits##_compare_exchange_##strength(                                   \
      uint##bits##_t* address, uint##bits##_t* expected, uint##bits##_t value, int, int) { \
    APOGEE_NOTE(Access::kAtomic, bits / 8);                                                \
    return __atomic_compare_exchange_n(address, expected, value, false, __ATOMIC_SEQ_CST,  \
                                       __ATOMIC_SEQ_CST);                                  \
  }
#define APOGEE_ATOMICS(bits)                                                             \
  uint##bits##_t __tsan_atomic##bits##_load(const uint##bits##_t* address, int) {        \
    APOGEE_NOTE(Access::kAtomic, bits / 8);                                              \
    return __atomic_load_n(address, __ATOMIC_SEQ_CST);                                   \
  }                                                                                      \
  void __tsan_atomic##bits##_store(uint##bits##_t* address, uint##bits##_t value, int) { \
    APOGEE_NOTE(Access::kAtomic, bits / 8);                                              \
    __atomic_store_n(address, value, __ATOMIC_SEQ_CST);                                  \
  }                                                                                      \
  APOGEE_ATOMIC(bits, exchange, __atomic_exchange_n)                                     \
  APOGEE_ATOMIC(bits, fetch_add, __atomic_fetch_add)                                     \
  APOGEE_ATOMIC(bits, fetch_sub, __atomic_fetch_sub)                                     \
  APOGEE_ATOMIC(bits, fetch_or, __atomic_fetch_or)                                       \
  APOGEE_ATOMIC(bits, fetch_and, __atomic_fetch_and)                                     \
  APOGEE_ATOMIC(bits, fetch_xor, __atomic_fetch_xor)                                     \
  APOGEE_COMPARE_EXCHANGE(bits, strong)                                                  \
  APOGEE_COMPARE_EXCHANGE(bits, weak)

extern "C" {

void __tsan_init() {}
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}
APOGEE_ACCESSES(1)
APOGEE_ACCESSES(2)
APOGEE_ACCESSES(4)
APOGEE_ACCESSES(8)
APOGEE_ACCESSES(16)
void __tsan_read_range(void* address, size_t bytes) { APOGEE_NOTE(Access::kRead, bytes); }
void __tsan_write_range(void* address, size_t bytes) { APOGEE_NOTE(Access::kWrite, bytes); }
APOGEE_ATOMICS(8)
APOGEE_ATOMICS(16)
APOGEE_ATOMICS(32)
APOGEE_ATOMICS(64)
void __tsan_atomic_thread_fence(int) { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
// Virtual tables: only host code in a .cu file has them.
void __tsan_vptr_read(void**) {}
void __tsan_vptr_update(void**, void*) {}

}  // extern "C"
