// SPDX-License-Identifier: Apache-2.0

// The cells of GRU and LSTM: a thread computes every gate of one unit of one sample.
#include "apogee/tensor/cuda/activation.cuh"
#include "apogee/tensor/cuda/device/device.cuh"
#include "apogee/tensor/cuda/device/launch.cuh"
#include "apogee/tensor/cuda/kernels.h"

namespace apogee::cuda {
namespace {

template <typename T>
void GruForward(const DeviceContext& context, const GruCellForwardArgs& args) {
  using C = ComputeType<T>;
  const int64_t units = args.units;
  ForEach(context, args.rows * units, [=] __device__(int64_t at) {
    const int64_t row = at / units, u = at - row * units;
    const T* x = static_cast<const T*>(args.x) + row * 3 * units;
    const C* p = static_cast<const C*>(args.product) + row * 3 * units;
    const C p_n = p[2 * units + u];
    const C r = Sigmoid(Load(x + u) + p[u]);
    const C z = Sigmoid(Load(x + units + u) + p[units + u]);
    const C n = std::tanh(Load(x + 2 * units + u) + r * p_n);
    const C h = Load(static_cast<const T*>(args.h) + at);
    static_cast<T*>(args.y)[at] = Cast<T>((C(1) - z) * n + z * h);
    if (args.gates == nullptr) return;
    T* gates = static_cast<T*>(args.gates) + row * 4 * units + u;
    gates[0] = Cast<T>(r);
    gates[units] = Cast<T>(z);
    gates[2 * units] = Cast<T>(n);
    gates[3 * units] = Cast<T>(p_n);
  });
}

template <typename T>
void GruBackward(const DeviceContext& context, const GruCellBackwardArgs& args) {
  using C = ComputeType<T>;
  const int64_t units = args.units;
  ForEach(context, args.rows * units, [=] __device__(int64_t at) {
    const int64_t row = at / units, u = at - row * units;
    const T* gates = static_cast<const T*>(args.gates) + row * 4 * units + u;
    const C r = Load(gates), z = Load(gates + units), n = Load(gates + 2 * units);
    C* dstate = static_cast<C*>(args.dstate) + at;
    const C dh = Load(static_cast<const T*>(args.dy) + at) +
                 static_cast<const C*>(args.dproduct)[at] + *dstate;
    const C dn = dh * (C(1) - z) * (C(1) - n * n);
    const C dr = dn * Load(gates + 3 * units) * r * (C(1) - r);
    const C dz = dh * (Load(static_cast<const T*>(args.h) + at) - n) * z * (C(1) - z);
    *dstate = dh * z;
    T* dx = static_cast<T*>(args.dx) + row * 3 * units + u;
    T* dp = static_cast<T*>(args.dp) + row * 3 * units + u;
    dx[0] = dp[0] = Cast<T>(dr);
    dx[units] = dp[units] = Cast<T>(dz);
    dx[2 * units] = Cast<T>(dn);
    dp[2 * units] = Cast<T>(dn * r);
  });
}

template <typename T>
void LstmForward(const DeviceContext& context, const LstmCellForwardArgs& args) {
  using C = ComputeType<T>;
  const int64_t units = args.units;
  ForEach(context, args.rows * units, [=] __device__(int64_t at) {
    const int64_t row = at / units, u = at - row * units;
    const T* x = static_cast<const T*>(args.x) + row * 4 * units + u;
    const C* p = static_cast<const C*>(args.product) + row * 4 * units + u;
    const C i = Sigmoid(Load(x) + p[0]);
    const C f = Sigmoid(Load(x + units) + p[units]);
    const C g = std::tanh(Load(x + 2 * units) + p[2 * units]);
    const C o = Sigmoid(Load(x + 3 * units) + p[3 * units]);
    const C next = f * static_cast<const C*>(args.c)[at] + i * g;
    static_cast<C*>(args.c_next)[at] = next;
    static_cast<T*>(args.y)[at] = Cast<T>(o * std::tanh(next));
    if (args.gates == nullptr) return;
    T* gates = static_cast<T*>(args.gates) + row * 4 * units + u;
    gates[0] = Cast<T>(i);
    gates[units] = Cast<T>(f);
    gates[2 * units] = Cast<T>(g);
    gates[3 * units] = Cast<T>(o);
  });
}

template <typename T>
void LstmBackward(const DeviceContext& context, const LstmCellBackwardArgs& args) {
  using C = ComputeType<T>;
  const int64_t units = args.units;
  ForEach(context, args.rows * units, [=] __device__(int64_t at) {
    const int64_t row = at / units, u = at - row * units;
    const T* gates = static_cast<const T*>(args.gates) + row * 4 * units + u;
    const C i = Load(gates), f = Load(gates + units);
    const C g = Load(gates + 2 * units), o = Load(gates + 3 * units);
    const C tanh = std::tanh(static_cast<const C*>(args.c_next)[at]);
    const C dh =
        Load(static_cast<const T*>(args.dy) + at) + static_cast<const C*>(args.dproduct)[at];
    C* dstate = static_cast<C*>(args.dstate) + at;
    const C dc = *dstate + dh * o * (C(1) - tanh * tanh);
    T* dx = static_cast<T*>(args.dx) + row * 4 * units + u;
    dx[0] = Cast<T>(dc * g * i * (C(1) - i));
    dx[units] = Cast<T>(dc * static_cast<const C*>(args.c)[at] * f * (C(1) - f));
    dx[2 * units] = Cast<T>(dc * i * (C(1) - g * g));
    dx[3 * units] = Cast<T>(dh * tanh * o * (C(1) - o));
    *dstate = dc * f;
  });
}

}  // namespace

void gru_cell_forward(const DeviceContext& context, const GruCellForwardArgs& args) {
  DispatchFloat(args.dtype, "gru_cell_forward",
                [&]<typename T>() { GruForward<T>(context, args); });
}

void gru_cell_backward(const DeviceContext& context, const GruCellBackwardArgs& args) {
  DispatchFloat(args.dtype, "gru_cell_backward",
                [&]<typename T>() { GruBackward<T>(context, args); });
}

void lstm_cell_forward(const DeviceContext& context, const LstmCellForwardArgs& args) {
  DispatchFloat(args.dtype, "lstm_cell_forward",
                [&]<typename T>() { LstmForward<T>(context, args); });
}

void lstm_cell_backward(const DeviceContext& context, const LstmCellBackwardArgs& args) {
  DispatchFloat(args.dtype, "lstm_cell_backward",
                [&]<typename T>() { LstmBackward<T>(context, args); });
}

}  // namespace apogee::cuda
