// SPDX-License-Identifier: Apache-2.0

// Elementary functions of f32 without branches, tables or calls, so that loops over them vectorise.
// The f64 overloads call the standard library. NaN gives NaN; infinities give the limits.
//
//   #pragma omp simd
//   for (int64_t i = 0; i < n; ++i) y[i] = FastExp(x[i]);
//
// Errors are at most 2 ulp (tests/tensor/vec_math_test.cc).
#ifndef APOGEE_TENSOR_CPU_VEC_MATH_H_
#define APOGEE_TENSOR_CPU_VEC_MATH_H_

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

namespace apogee::cpu {

// exp(x) = 2^n exp(r) with |r| <= ln(2) / 2. The scaling by 2^n is split in two factors, so that
// results near the largest float, and subnormal ones, are right.
inline float FastExp(float x) {
  x = x > 89.0f ? 89.0f : x;  // written so that NaN stays NaN
  x = x < -104.0f ? -104.0f : x;
  constexpr float kRound = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer
  const float shifted = x * 1.44269504f + kRound;
  const float n = shifted - kRound;
  const float r = (x - n * 0.693145752f) - n * 1.42860677e-6f;
  float p = 1.37805939e-3f;
  p = p * r + 8.37312452e-3f;
  p = p * r + 4.16695364e-2f;
  p = p * r + 1.66664720e-1f;
  p = p * r + 4.99999851e-1f;
  p = p * r + 1.0f;
  p = p * r + 1.0f;
  const int32_t exponent = std::bit_cast<int32_t>(shifted) - std::bit_cast<int32_t>(kRound);
  const int32_t half = exponent >> 1;
  const float scale1 = std::bit_cast<float>((half + 127) << 23);
  const float scale2 = std::bit_cast<float>((exponent - half + 127) << 23);
  return p * scale1 * scale2;
}
inline double FastExp(double x) { return std::exp(x); }

// 1 / (1 + exp(-x)).
template <typename C>
inline C Sigmoid(C x) {
  return C(1) / (C(1) + FastExp(-x));
}

// 1 - 2 / (exp(2 |x|) + 1) with the sign of x; near 0, where that would cancel, an odd polynomial.
inline float FastTanh(float x) {
  const float magnitude = std::fabs(x);
  const float far = 1.0f - 2.0f / (FastExp(2.0f * magnitude) + 1.0f);
  const float s = x * x;
  float p = 1.57394409e-2f;
  p = p * s - 5.23025580e-2f;
  p = p * s + 1.33152470e-1f;
  p = p * s - 3.33327681e-1f;
  const float near = p * s * x + x;
  return magnitude >= 0.55f ? std::copysign(far, x) : near;
}
inline double FastTanh(double x) { return std::tanh(x); }

// 1 - exp(q(|x|)) with the sign of x, for a polynomial q; near 0 an odd polynomial.
inline float FastErf(float x) {
  const float t = std::fabs(x);
  const float s = x * x;
  float q = -1.72853470e-5f * t + 3.83197126e-4f;
  const float u = -3.88396438e-3f * t + 2.42546219e-2f;
  q = q * s + u;
  q = q * t - 1.06777877e-1f;
  q = q * t - 6.34846687e-1f;
  q = q * t - 1.28717512e-1f;
  q = q * t - t;
  const float far = 1.0f - FastExp(q);
  float p = -5.96761703e-4f;
  p = p * s + 4.99119423e-3f;
  p = p * s - 2.67681349e-2f;
  p = p * s + 1.12819925e-1f;
  p = p * s - 3.76125336e-1f;
  p = p * s + 1.28379166e-1f;
  const float near = p * x + x;
  return t > 0.927734375f ? std::copysign(far, x) : near;
}
inline double FastErf(double x) { return std::erf(x); }

// log(x) = e ln(2) + log(m) with m in [2/3, 4/3). x must be normal, positive and finite.
inline float FastLog(float x) {
  constexpr int32_t kTwoThirds = 0x3f2aaaab;
  const int32_t bits = std::bit_cast<int32_t>(x);
  const int32_t exponent = (bits - kTwoThirds) >> 23;
  const float f = std::bit_cast<float>(bits - (exponent << 23)) - 1.0f;
  const float s = f * f;
  float p = -0.130310059f;
  float q = 0.140869141f;
  p = p * s - 0.121483512f;
  q = q * s + 0.139814854f;
  p = p * s - 0.166846126f;
  q = q * s + 0.200120345f;
  p = p * s - 0.249996200f;
  p = q * f + p;
  p = p * f + 0.333331972f;
  p = p * f - 0.5f;
  p = p * s + f;
  return static_cast<float>(exponent) * 0.693147182f + p;
}
inline double FastLog(double x) { return std::log(x); }

// As FastLog, for every x: subnormals are scaled by 2^23; -inf for 0, NaN below.
inline float FastLogOfAny(float x) {
  const bool tiny = x < 1.17549435e-38f;
  float y = FastLog(tiny ? x * 8388608.0f : x) - (tiny ? 15.9423852f : 0.0f);
  y = x > 3.40282347e+38f ? x : y;
  y = x == 0 ? -std::numeric_limits<float>::infinity() : y;
  return x >= 0 ? y : std::numeric_limits<float>::quiet_NaN();
}
inline double FastLogOfAny(double x) { return std::log(x); }

// log(1 + x) = log(u) + (x - (u - 1)) / u for u = 1 + x rounded: the second term corrects the
// rounding.
inline float FastLog1p(float x) {
  const float u = 1.0f + x;
  const float rest = (x - (u - 1.0f)) / u;
  const float log = FastLogOfAny(u);
  // Not for u = 0 and infinite x, where `rest` is NaN.
  const float finite = u == 0 ? 0.0f : rest;
  return log + (x > 3.40282347e+38f ? 0.0f : finite);
}
inline double FastLog1p(double x) { return std::log1p(x); }

// x^exponent = exp(exponent log|x|) in double, where both functions are off by less than 1e-9: the
// result is rounded almost as the exact one. A negative x gives NaN unless the exponent is an
// integer.
inline float FastPow(float x, float exponent) {
  constexpr double kRound = 6755399441055744.0;  // 1.5 * 2^52
  const float magnitude = std::fabs(x);
  // log2|x| = e + 2 atanh((m - 1) / (m + 1)) / ln(2), with m in [2/3, 4/3).
  const double value = static_cast<double>(magnitude);
  const int64_t bits = std::bit_cast<int64_t>(value);
  const int64_t shift = (bits - std::bit_cast<int64_t>(2.0 / 3)) >> 52;
  const double m = std::bit_cast<double>(bits - (shift << 52));
  const double s = (m - 1) / (m + 1), ss = s * s;
  double p = 1.0 / 15;
  p = p * ss + 1.0 / 13;
  p = p * ss + 1.0 / 11;
  p = p * ss + 1.0 / 9;
  p = p * ss + 1.0 / 7;
  p = p * ss + 1.0 / 5;
  p = p * ss + 1.0 / 3;
  p = p * ss + 1;
  const double log2 = static_cast<double>(shift) + p * s * 2.885390081777926814;
  // 2^t, with t limited to where floats end.
  double t = static_cast<double>(exponent) * log2;
  t = t > 200 ? 200 : t;
  t = t < -200 ? -200 : t;
  const double shifted = t + kRound;
  const double r = (t - (shifted - kRound)) * 0.693147180559945309417;
  double e = 1.0 / 40320;
  e = e * r + 1.0 / 5040;
  e = e * r + 1.0 / 720;
  e = e * r + 1.0 / 120;
  e = e * r + 1.0 / 24;
  e = e * r + 1.0 / 6;
  e = e * r + 0.5;
  e = e * r + 1;
  e = e * r + 1;
  const int64_t power = (std::bit_cast<int64_t>(shifted) - std::bit_cast<int64_t>(kRound)) << 52;
  const float y = static_cast<float>(std::bit_cast<double>(std::bit_cast<int64_t>(e) + power));
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const float half = 0.5f * exponent;
  const float integer = std::trunc(half) == half ? 1.0f : -1.0f;
  const float sign_of_negative =
      std::trunc(exponent) == exponent ? integer : std::numeric_limits<float>::quiet_NaN();
  const float at_zero = exponent < 0 ? kInfinity : 0.0f;
  const float at_infinity = exponent < 0 ? 0.0f : kInfinity;
  float result = magnitude == 0 ? at_zero : y;
  result = magnitude > 3.40282347e+38f ? at_infinity : result;
  result = x < 0 ? result * sign_of_negative : result;
  result = x != x ? x : result;
  return exponent == 0 ? 1.0f : result;
}
inline double FastPow(double x, double exponent) { return std::pow(x, exponent); }

// The sine and cosine of `turns` full turns. The reduction to an eighth of a turn is exact, so
// large angles keep the precision of the double.
struct SinCos {
  float sin, cos;
};
inline SinCos FastSinCosTurns(double turns) {
  constexpr double kRound = 6755399441055744.0;  // 1.5 * 2^52
  const double shifted = turns * 4.0 + kRound;
  const double quarters = shifted - kRound;
  const int32_t quadrant = static_cast<int32_t>(std::bit_cast<int64_t>(shifted) & 3);
  const float r = static_cast<float>((turns * 4.0 - quarters) * 1.5707963267948966);
  const float s = r * r;
  const float sine =
      ((-1.9515295891e-4f * s + 8.3321608736e-3f) * s - 1.6666654611e-1f) * s * r + r;
  const float cosine =
      ((2.443315711809948e-5f * s - 1.388731625493765e-3f) * s + 4.166664568298827e-2f) * s * s -
      0.5f * s + 1.0f;
  const bool odd = (quadrant & 1) != 0;
  const float a = odd ? cosine : sine;
  const float b = odd ? sine : cosine;
  return {(quadrant & 2) != 0 ? -a : a, ((quadrant + 1) & 2) != 0 ? -b : b};
}

}  // namespace apogee::cpu

#endif  // APOGEE_TENSOR_CPU_VEC_MATH_H_
