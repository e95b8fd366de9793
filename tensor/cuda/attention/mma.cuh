// SPDX-License-Identifier: Apache-2.0

// Tensor cores: products of 16-bit tiles with sums in f32, by one warp. The only file with inline
// assembly. Private to the CUDA folders' .cu files.
//
//   uint32_t a[4], b[4];
//   LoadMatrices<false>(RowOfA(own, kStride), a);           // a: [16, 16] of shared memory
//   LoadMatrices<false>(RowOfB(tile, kStride), b);          // b^T: [16, 16], two products of 8
//   Mma<BFloat16>(a, b[0], b[1], sums[0]);                  // sums[0]: columns 0 to 7 of a b
//   Mma<BFloat16>(a, b[2], b[3], sums[1]);
//
// Lane l, with g = l / 4 and t = l % 4, holds these elements (row, column):
//   a     [16, 16]: (g, 2t), (g + 8, 2t), (g, 2t + 8), (g + 8, 2t + 8), each with the next column
//   b     [16, 8]:  (2t, g), (2t + 8, g), each with the next row
//   sums  [16, 8]:  (g, 2t), (g, 2t + 1), (g + 8, 2t), (g + 8, 2t + 1)
// So the sums of two products next to each other become an `a` when they are rounded (PackSums).
#ifndef APOGEE_TENSOR_CUDA_ATTENTION_MMA_CUH_
#define APOGEE_TENSOR_CUDA_ATTENTION_MMA_CUH_

#include "apogee/tensor/cuda/device/device.cuh"

namespace apogee::cuda {

// sums += a b. All 32 lanes call.
template <typename T>
__device__ __forceinline__ void Mma(const uint32_t (&a)[4], uint32_t b0, uint32_t b1,
                                    float (&sums)[4]) {
  static_assert(std::is_same_v<T, BFloat16> || std::is_same_v<T, Float16>);
#ifdef APOGEE_CUDA_EMULATION
  cuda_emulation::Mma(a, b0, b1, sums, [](uint16_t bits) {
    T value;
    value.bits = bits;
    return static_cast<float>(value);
  });
#else
#define APOGEE_MMA(type)                                                              \
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32." type "." type                 \
               ".f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};" \
               : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])           \
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1))
  if constexpr (std::is_same_v<T, BFloat16>) {
    APOGEE_MMA("bf16");
  } else {
    APOGEE_MMA("f16");
  }
#undef APOGEE_MMA
#endif
}

// Loads four 8×8 matrices from shared memory. Lane 8 i + r passes the address of row r of matrix i:
// 16 bytes, aligned to 16. From each matrix a lane gets (g, 2t) and the next column, or, if
// transposed, (2t, g) and the next row. All 32 lanes call.
template <bool kTransposed>
__device__ __forceinline__ void LoadMatrices(const void* row, uint32_t (&matrices)[4]) {
#ifdef APOGEE_CUDA_EMULATION
  cuda_emulation::LoadMatrices<kTransposed>(row, matrices);
#else
  const auto at = static_cast<uint32_t>(__cvta_generic_to_shared(row));
  if constexpr (kTransposed) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(matrices[0]), "=r"(matrices[1]), "=r"(matrices[2]), "=r"(matrices[3])
                 : "r"(at)
                 : "memory");
  } else {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(matrices[0]), "=r"(matrices[1]), "=r"(matrices[2]), "=r"(matrices[3])
                 : "r"(at)
                 : "memory");
  }
#endif
}

// The row that this lane passes to LoadMatrices<false> to load `a` from x [16, 16], or to
// LoadMatrices<true> to load `b` of two products from x [k = 16, n = 16]. x is row-major.
template <typename T>
__device__ __forceinline__ const T* RowOfA(const T* x, int stride) {
  const int lane = threadIdx.x % kWarp;
  return x + lane % 16 * stride + lane / 16 * 8;
}
// The row that this lane passes to LoadMatrices<false> to load `b` of two products from its
// transpose x [n = 16, k = 16], row-major.
template <typename T>
__device__ __forceinline__ const T* RowOfB(const T* x, int stride) {
  const int lane = threadIdx.x % kWarp;
  return x + (lane / 16 * 8 + lane % 8) * stride + lane / 8 % 2 * 8;
}

// Rounds two floats to T and packs them, `low` in the lower half.
template <typename T>
__device__ __forceinline__ uint32_t Pack(float low, float high) {
#ifdef APOGEE_CUDA_EMULATION
  return T(low).bits | static_cast<uint32_t>(T(high).bits) << 16;
#else
  uint32_t bits;
  if constexpr (std::is_same_v<T, BFloat16>) {
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(bits) : "f"(high), "f"(low));
  } else {
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(bits) : "f"(high), "f"(low));
  }
  return bits;
#endif
}
// Rounds the sums of two products next to each other to an `a`.
template <typename T>
__device__ __forceinline__ void PackSums(const float (&left)[4], const float (&right)[4],
                                         uint32_t (&a)[4]) {
  a[0] = Pack<T>(left[0], left[1]);
  a[1] = Pack<T>(left[2], left[3]);
  a[2] = Pack<T>(right[0], right[1]);
  a[3] = Pack<T>(right[2], right[3]);
}

// Starts a copy of 16 bytes to shared memory; unless `there`, zeros are written. This thread may
// read them after WaitCopies for their group, other threads after a barrier as well.
__device__ __forceinline__ void CopyAsync16(void* to, const void* from, bool there) {
#ifdef APOGEE_CUDA_EMULATION
  cuda_emulation::AsyncCopies::Get().Copy16(to, from, there);
#else
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(
                   static_cast<uint32_t>(__cvta_generic_to_shared(to))),
               "l"(from), "r"(there ? 16 : 0)
               : "memory");
#endif
}
// Ends a group of copies; the group may be empty.
__device__ __forceinline__ void CommitCopies() {
#ifdef APOGEE_CUDA_EMULATION
  cuda_emulation::AsyncCopies::Get().Commit();
#else
  asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}
// Waits for all groups except the last kBut.
template <int kBut>
__device__ __forceinline__ void WaitCopies() {
#ifdef APOGEE_CUDA_EMULATION
  cuda_emulation::AsyncCopies::Get().Wait(kBut);
#else
  asm volatile("cp.async.wait_group %0;" ::"n"(kBut) : "memory");
#endif
}

}  // namespace apogee::cuda

#endif  // APOGEE_TENSOR_CUDA_ATTENTION_MMA_CUH_
