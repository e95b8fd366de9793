// SPDX-License-Identifier: Apache-2.0

// Element types. f32 and bf16 are for training; f16 is for storage and fp16 mixed precision; f64 on
// the CPU is the reference of exactness tests; integers hold tokens, masks and quantized states.
// The 8-bit floats (core/float8.h) are for storage only: their tensors can be made, moved and
// saved, and ops throw for them. tensor/ops/float8.h converts them.
//
//   DispatchFloat(x.dtype(), "gelu", [&]<typename T>() { GeluKernel(x.data<T>(), ...); });
//
// BFloat16 and Float16 round to nearest even and keep NaN and infinity. Kernels compute in
// ComputeType<T>: double for double, else float.
#ifndef APOGEE_CORE_DTYPE_H_
#define APOGEE_CORE_DTYPE_H_

#include <bit>
#include <cstdint>
#include <string>
#include <type_traits>

#include "apogee/core/error.h"
#include "apogee/core/float8.h"

// Marks a function of one element that a loop of a kernel inlines. nvcc compiles it for the host
// and for the GPU.
#ifdef __CUDACC__
#define APOGEE_HOST_DEVICE __host__ __device__ __forceinline__
#else
#define APOGEE_HOST_DEVICE __attribute__((always_inline)) inline
#endif

namespace apogee {

enum class DType : uint8_t { kF32, kBF16, kF16, kF64, kI64, kI32, kU8, kI8, kF8E4M3, kF8E5M2 };

// "f32", "bf16", "f16", "f64", "i64", "i32", "u8", "i8", "f8_e4m3", "f8_e5m2".
const char* DTypeName(DType dtype);
// The inverse of DTypeName; "fp32", "fp16", "fp64" are accepted too. Throws Error for another name.
DType DTypeFromName(const std::string& name);
// Bytes of one element.
int64_t DTypeSize(DType dtype);
// Whether ops compute with it as a float: f32, bf16, f16, f64.
bool IsFloat(DType dtype);
// Whether it is one of the 8-bit floats, with which no op computes.
bool IsFloat8(DType dtype);
// Throws Error("<op>: ...") for a dtype that is none of those that IsFloat names.
[[noreturn]] void ThrowNotFloat(const char* op, DType dtype);

struct BFloat16 {
  uint16_t bits;

  BFloat16() = default;
  constexpr explicit BFloat16(float value) : bits(Round(std::bit_cast<uint32_t>(value))) {}
  constexpr explicit operator float() const {
    return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
  }

 private:
  // Branch-free, so that loops over it vectorise. NaN is a case of its own, because rounding could
  // carry a NaN into infinity.
  static constexpr uint16_t Round(uint32_t u) {
    const uint32_t rounded = (u + 0x7fffu + ((u >> 16) & 1u)) >> 16;
    const uint32_t quiet_nan = (u >> 16) | 0x40u;
    return static_cast<uint16_t>((u & 0x7fffffffu) > 0x7f800000u ? quiet_nan : rounded);
  }
};

// IEEE binary16. Magnitudes from 65520 up become infinity, those up to 2^-25 become zero;
// subnormals are kept. Branch-free too: every case is computed and one is selected.
struct Float16 {
  uint16_t bits;

  Float16() = default;
  constexpr explicit Float16(float value) : bits(Round(std::bit_cast<uint32_t>(value))) {}
  constexpr explicit operator float() const {
    const uint32_t sign = static_cast<uint32_t>(bits & 0x8000u) << 16;
    const uint32_t magnitude = static_cast<uint32_t>(bits & 0x7fffu) << 13;
    // A float with these fields has an exponent that is 112 too small. Multiplying by 2^112
    // corrects it, exactly also for subnormals.
    const uint32_t finite = std::bit_cast<uint32_t>(std::bit_cast<float>(magnitude) * 0x1p112f);
    const uint32_t infinity_or_nan = magnitude | 0x7f800000u;
    return std::bit_cast<float>(sign | (magnitude >= 0x0f800000u ? infinity_or_nan : finite));
  }

 private:
  static constexpr uint16_t Round(uint32_t u) {
    const uint32_t magnitude = u & 0x7fffffffu;
    // Adding 0.5 puts a subnormal's rounding position at the float's last bit.
    const float shifted = std::bit_cast<float>(magnitude) + 0.5f;
    const uint32_t subnormal = std::bit_cast<uint32_t>(shifted) - 0x3f000000u;
    const uint32_t normal = (magnitude - 0x38000000u + 0xfffu + ((magnitude >> 13) & 1u)) >> 13;
    const uint32_t finite = magnitude < 0x38800000u ? subnormal : normal;
    const uint32_t special = magnitude > 0x7f800000u ? 0x7e00u : 0x7c00u;
    return static_cast<uint16_t>((u >> 16 & 0x8000u) |
                                 (magnitude >= 0x47800000u ? special : finite));
  }
};

template <typename T>
using ComputeType = std::conditional_t<std::is_same_v<T, double>, double, float>;
// The dtype of ComputeType<T>, where `dtype` is that of T.
constexpr DType ComputeDType(DType dtype) {
  return dtype == DType::kF64 ? DType::kF64 : DType::kF32;
}

template <typename T>
constexpr DType DTypeOf() {
  if constexpr (std::is_same_v<T, float>) return DType::kF32;
  if constexpr (std::is_same_v<T, BFloat16>) return DType::kBF16;
  if constexpr (std::is_same_v<T, Float16>) return DType::kF16;
  if constexpr (std::is_same_v<T, double>) return DType::kF64;
  if constexpr (std::is_same_v<T, int64_t>) return DType::kI64;
  if constexpr (std::is_same_v<T, int32_t>) return DType::kI32;
  if constexpr (std::is_same_v<T, uint8_t>) return DType::kU8;
  if constexpr (std::is_same_v<T, int8_t>) return DType::kI8;
  if constexpr (std::is_same_v<T, Float8E4M3>) return DType::kF8E4M3;
  if constexpr (std::is_same_v<T, Float8E5M2>) return DType::kF8E5M2;
}

// Calls fn.template operator()<T>() with the C++ type of a floating `dtype`. Throws
// Error("<op>: ...") for an integer dtype.
template <typename Fn>
decltype(auto) DispatchFloat(DType dtype, const char* op, Fn&& fn) {
  switch (dtype) {
    case DType::kF32:
      return fn.template operator()<float>();
    case DType::kBF16:
      return fn.template operator()<BFloat16>();
    case DType::kF16:
      return fn.template operator()<Float16>();
    case DType::kF64:
      return fn.template operator()<double>();
    default:
      ThrowNotFloat(op, dtype);
  }
}

// As DispatchFloat, for an 8-bit float.
template <typename Fn>
decltype(auto) DispatchFloat8(DType dtype, const char* op, Fn&& fn) {
  switch (dtype) {
    case DType::kF8E4M3:
      return fn.template operator()<Float8E4M3>();
    case DType::kF8E5M2:
      return fn.template operator()<Float8E5M2>();
    default:
      Throw(op, ": needs an 8-bit float (f8_e4m3, f8_e5m2), got ", DTypeName(dtype));
  }
}

// As DispatchFloat, for integers, too.
template <typename Fn>
decltype(auto) DispatchAny(DType dtype, const char* op, Fn&& fn) {
  switch (dtype) {
    case DType::kI64:
      return fn.template operator()<int64_t>();
    case DType::kI32:
      return fn.template operator()<int32_t>();
    case DType::kU8:
      return fn.template operator()<uint8_t>();
    case DType::kI8:
      return fn.template operator()<int8_t>();
    default:
      return DispatchFloat(dtype, op, std::forward<Fn>(fn));
  }
}

// Calls fn.template operator()<T>() with an unsigned integer T of the dtype's size, for kernels
// that only move elements: dtypes of one size share their code, and NaN payloads stay.
template <typename Fn>
decltype(auto) DispatchBits(DType dtype, Fn&& fn) {
  switch (DTypeSize(dtype)) {
    case 1:
      return fn.template operator()<uint8_t>();
    case 2:
      return fn.template operator()<uint16_t>();
    case 4:
      return fn.template operator()<uint32_t>();
    default:
      return fn.template operator()<uint64_t>();
  }
}

}  // namespace apogee

#endif  // APOGEE_CORE_DTYPE_H_
