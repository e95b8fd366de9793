// SPDX-License-Identifier: Apache-2.0

// One unit of a recurrent cell's step (recurrent_args.h), one definition for all backends. Private
// to the backends.
//
//   const recurrent::GruForward<T> unit{args};
//   for (int64_t u = 0; u < args.units; ++u) unit.template operator()<Math>(row, u);
//
// Math has the backend's Sigmoid and Tanh for float and double.
#ifndef APOGEE_TENSOR_KERNELS_RECURRENT_FUNCTIONS_H_
#define APOGEE_TENSOR_KERNELS_RECURRENT_FUNCTIONS_H_

#include <cstdint>

#include "apogee/core/dtype.h"
#include "apogee/tensor/kernels/recurrent_args.h"

namespace apogee::recurrent {

// Element `u` of each section of row `row`.
template <typename T>
struct Sections {
  T* first;
  int64_t units;
  APOGEE_HOST_DEVICE T& operator[](int64_t section) const { return first[section * units]; }
};

template <typename T, typename Void>
APOGEE_HOST_DEVICE Sections<T> At(Void* data, int64_t row, int64_t u, int64_t sections,
                                  int64_t units) {
  return {static_cast<T*>(data) + row * sections * units + u, units};
}

template <typename T>
struct GruForward {
  using C = ComputeType<T>;
  GruCellForwardArgs args;

  template <typename Math>
  APOGEE_HOST_DEVICE void operator()(int64_t row, int64_t u) const {
    const int64_t at = row * args.units + u;
    const auto x = At<const T>(args.x, row, u, 3, args.units);
    const auto p = At<const C>(args.product, row, u, 3, args.units);
    const C p_n = p[2];
    const C r = Math::Sigmoid(static_cast<C>(x[0]) + p[0]);
    const C z = Math::Sigmoid(static_cast<C>(x[1]) + p[1]);
    const C n = Math::Tanh(static_cast<C>(x[2]) + r * p_n);
    const C h = static_cast<C>(static_cast<const T*>(args.h)[at]);
    static_cast<T*>(args.y)[at] = static_cast<T>((C(1) - z) * n + z * h);
    if (args.gates == nullptr) return;
    const auto gates = At<T>(args.gates, row, u, 4, args.units);
    gates[0] = static_cast<T>(r);
    gates[1] = static_cast<T>(z);
    gates[2] = static_cast<T>(n);
    gates[3] = static_cast<T>(p_n);
  }
};

template <typename T>
struct GruBackward {
  using C = ComputeType<T>;
  GruCellBackwardArgs args;

  template <typename Math>
  APOGEE_HOST_DEVICE void operator()(int64_t row, int64_t u) const {
    const int64_t at = row * args.units + u;
    const auto gates = At<const T>(args.gates, row, u, 4, args.units);
    const C r = static_cast<C>(gates[0]), z = static_cast<C>(gates[1]);
    const C n = static_cast<C>(gates[2]), p_n = static_cast<C>(gates[3]);
    const C h = static_cast<C>(static_cast<const T*>(args.h)[at]);
    C& dstate = static_cast<C*>(args.dstate)[at];
    const C dh = static_cast<C>(static_cast<const T*>(args.dy)[at]) +
                 static_cast<const C*>(args.dproduct)[at] + dstate;
    const C dn = dh * (C(1) - z) * (C(1) - n * n);
    const C dr = dn * p_n * r * (C(1) - r);
    const C dz = dh * (h - n) * z * (C(1) - z);
    dstate = dh * z;
    const auto dx = At<T>(args.dx, row, u, 3, args.units);
    const auto dp = At<T>(args.dp, row, u, 3, args.units);
    dx[0] = dp[0] = static_cast<T>(dr);
    dx[1] = dp[1] = static_cast<T>(dz);
    dx[2] = static_cast<T>(dn);
    dp[2] = static_cast<T>(dn * r);
  }
};

template <typename T>
struct LstmForward {
  using C = ComputeType<T>;
  LstmCellForwardArgs args;

  template <typename Math>
  APOGEE_HOST_DEVICE void operator()(int64_t row, int64_t u) const {
    const int64_t at = row * args.units + u;
    const auto x = At<const T>(args.x, row, u, 4, args.units);
    const auto p = At<const C>(args.product, row, u, 4, args.units);
    const C i = Math::Sigmoid(static_cast<C>(x[0]) + p[0]);
    const C f = Math::Sigmoid(static_cast<C>(x[1]) + p[1]);
    const C g = Math::Tanh(static_cast<C>(x[2]) + p[2]);
    const C o = Math::Sigmoid(static_cast<C>(x[3]) + p[3]);
    const C next = f * static_cast<const C*>(args.c)[at] + i * g;
    static_cast<C*>(args.c_next)[at] = next;
    static_cast<T*>(args.y)[at] = static_cast<T>(o * Math::Tanh(next));
    if (args.gates == nullptr) return;
    const auto gates = At<T>(args.gates, row, u, 4, args.units);
    gates[0] = static_cast<T>(i);
    gates[1] = static_cast<T>(f);
    gates[2] = static_cast<T>(g);
    gates[3] = static_cast<T>(o);
  }
};

template <typename T>
struct LstmBackward {
  using C = ComputeType<T>;
  LstmCellBackwardArgs args;

  template <typename Math>
  APOGEE_HOST_DEVICE void operator()(int64_t row, int64_t u) const {
    const int64_t at = row * args.units + u;
    const auto gates = At<const T>(args.gates, row, u, 4, args.units);
    const C i = static_cast<C>(gates[0]), f = static_cast<C>(gates[1]);
    const C g = static_cast<C>(gates[2]), o = static_cast<C>(gates[3]);
    const C tanh = Math::Tanh(static_cast<const C*>(args.c_next)[at]);
    const C dh = static_cast<C>(static_cast<const T*>(args.dy)[at]) +
                 static_cast<const C*>(args.dproduct)[at];
    C& dstate = static_cast<C*>(args.dstate)[at];
    const C dc = dstate + dh * o * (C(1) - tanh * tanh);
    const auto dx = At<T>(args.dx, row, u, 4, args.units);
    dx[0] = static_cast<T>(dc * g * i * (C(1) - i));
    dx[1] = static_cast<T>(dc * static_cast<const C*>(args.c)[at] * f * (C(1) - f));
    dx[2] = static_cast<T>(dc * i * (C(1) - g * g));
    dx[3] = static_cast<T>(dh * tanh * o * (C(1) - o));
    dstate = dc * f;
  }
};

}  // namespace apogee::recurrent

#endif  // APOGEE_TENSOR_KERNELS_RECURRENT_FUNCTIONS_H_
