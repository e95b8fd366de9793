// SPDX-License-Identifier: Apache-2.0

// The cells of GRU and LSTM: one loop over a row's units computes every gate of a unit.
#include "apogee/tensor/cpu/kernels.h"
#include "apogee/tensor/cpu/loops.h"
#include "apogee/tensor/cpu/vec_math.h"

namespace apogee::cpu {
namespace {

// How many copied elements a unit of a cell costs: its gates have an exponential each.
constexpr int64_t kUnitCost = 12;

template <typename T>
void GruForward(const DeviceContext& context, const GruCellForwardArgs& args) {
  using C = ComputeType<T>;
  const int64_t units = args.units;
  ForRows(context, args.rows, units * kUnitCost, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const T* x = static_cast<const T*>(args.x) + row * 3 * units;
      const C* p = static_cast<const C*>(args.product) + row * 3 * units;
      const T* h = static_cast<const T*>(args.h) + row * units;
      T* y = static_cast<T*>(args.y) + row * units;
      T* gates = args.gates == nullptr ? nullptr : static_cast<T*>(args.gates) + row * 4 * units;
      const auto unit = [=](int64_t u, auto keep) {
        const C r = Sigmoid(Load(x[u]) + p[u]);
        const C z = Sigmoid(Load(x[units + u]) + p[units + u]);
        const C n = FastTanh(Load(x[2 * units + u]) + r * p[2 * units + u]);
        y[u] = Cast<T>((C(1) - z) * n + z * Load(h[u]));
        if constexpr (decltype(keep)::value) {
          gates[u] = Cast<T>(r);
          gates[units + u] = Cast<T>(z);
          gates[2 * units + u] = Cast<T>(n);
          gates[3 * units + u] = Cast<T>(p[2 * units + u]);
        }
      };
      if (gates == nullptr) {
#pragma omp simd
        for (int64_t u = 0; u < units; ++u) unit(u, std::false_type());
      } else {
#pragma omp simd
        for (int64_t u = 0; u < units; ++u) unit(u, std::true_type());
      }
    }
  });
}

template <typename T>
void GruBackward(const DeviceContext& context, const GruCellBackwardArgs& args) {
  using C = ComputeType<T>;
  const int64_t units = args.units;
  ForRows(context, args.rows, units * kUnitCost, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const T* gates = static_cast<const T*>(args.gates) + row * 4 * units;
      const T* h = static_cast<const T*>(args.h) + row * units;
      const T* dy = static_cast<const T*>(args.dy) + row * units;
      const C* dproduct = static_cast<const C*>(args.dproduct) + row * units;
      C* dstate = static_cast<C*>(args.dstate) + row * units;
      T* dx = static_cast<T*>(args.dx) + row * 3 * units;
      T* dp = static_cast<T*>(args.dp) + row * 3 * units;
#pragma omp simd
      for (int64_t u = 0; u < units; ++u) {
        const C r = Load(gates[u]), z = Load(gates[units + u]), n = Load(gates[2 * units + u]);
        const C dh = Load(dy[u]) + dproduct[u] + dstate[u];
        const C dn = dh * (C(1) - z) * (C(1) - n * n);
        const C dr = dn * Load(gates[3 * units + u]) * r * (C(1) - r);
        const C dz = dh * (Load(h[u]) - n) * z * (C(1) - z);
        dstate[u] = dh * z;
        dx[u] = dp[u] = Cast<T>(dr);
        dx[units + u] = dp[units + u] = Cast<T>(dz);
        dx[2 * units + u] = Cast<T>(dn);
        dp[2 * units + u] = Cast<T>(dn * r);
      }
    }
  });
}

template <typename T>
void LstmForward(const DeviceContext& context, const LstmCellForwardArgs& args) {
  using C = ComputeType<T>;
  const int64_t units = args.units;
  ForRows(context, args.rows, units * kUnitCost, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const T* x = static_cast<const T*>(args.x) + row * 4 * units;
      const C* p = static_cast<const C*>(args.product) + row * 4 * units;
      const C* c = static_cast<const C*>(args.c) + row * units;
      C* c_next = static_cast<C*>(args.c_next) + row * units;
      T* y = static_cast<T*>(args.y) + row * units;
      T* gates = args.gates == nullptr ? nullptr : static_cast<T*>(args.gates) + row * 4 * units;
      const auto unit = [=](int64_t u, auto keep) {
        const C i = Sigmoid(Load(x[u]) + p[u]);
        const C f = Sigmoid(Load(x[units + u]) + p[units + u]);
        const C g = FastTanh(Load(x[2 * units + u]) + p[2 * units + u]);
        const C o = Sigmoid(Load(x[3 * units + u]) + p[3 * units + u]);
        const C next = f * c[u] + i * g;
        c_next[u] = next;
        y[u] = Cast<T>(o * FastTanh(next));
        if constexpr (decltype(keep)::value) {
          gates[u] = Cast<T>(i);
          gates[units + u] = Cast<T>(f);
          gates[2 * units + u] = Cast<T>(g);
          gates[3 * units + u] = Cast<T>(o);
        }
      };
      if (gates == nullptr) {
#pragma omp simd
        for (int64_t u = 0; u < units; ++u) unit(u, std::false_type());
      } else {
#pragma omp simd
        for (int64_t u = 0; u < units; ++u) unit(u, std::true_type());
      }
    }
  });
}

template <typename T>
void LstmBackward(const DeviceContext& context, const LstmCellBackwardArgs& args) {
  using C = ComputeType<T>;
  const int64_t units = args.units;
  ForRows(context, args.rows, units * kUnitCost, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const T* gates = static_cast<const T*>(args.gates) + row * 4 * units;
      const C* c = static_cast<const C*>(args.c) + row * units;
      const C* c_next = static_cast<const C*>(args.c_next) + row * units;
      const T* dy = static_cast<const T*>(args.dy) + row * units;
      const C* dproduct = static_cast<const C*>(args.dproduct) + row * units;
      C* dstate = static_cast<C*>(args.dstate) + row * units;
      T* dx = static_cast<T*>(args.dx) + row * 4 * units;
#pragma omp simd
      for (int64_t u = 0; u < units; ++u) {
        const C i = Load(gates[u]), f = Load(gates[units + u]);
        const C g = Load(gates[2 * units + u]), o = Load(gates[3 * units + u]);
        const C tanh = FastTanh(c_next[u]);
        const C dh = Load(dy[u]) + dproduct[u];
        const C dc = dstate[u] + dh * o * (C(1) - tanh * tanh);
        dx[u] = Cast<T>(dc * g * i * (C(1) - i));
        dx[units + u] = Cast<T>(dc * c[u] * f * (C(1) - f));
        dx[2 * units + u] = Cast<T>(dc * i * (C(1) - g * g));
        dx[3 * units + u] = Cast<T>(dh * tanh * o * (C(1) - o));
        dstate[u] = dc * f;
      }
    }
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

}  // namespace apogee::cpu
