// SPDX-License-Identifier: Apache-2.0

// The cells of GRU and LSTM: one loop over a row's units computes every gate of a unit.
#include "apogee/tensor/cpu/kernels.h"
#include "apogee/tensor/cpu/loops.h"
#include "apogee/tensor/cpu/vec_math.h"
#include "apogee/tensor/kernels/recurrent_functions.h"

namespace apogee::cpu {
namespace {

// How many copied elements a unit of a cell costs: its gates have an exponential each.
constexpr int64_t kUnitCost = 12;

struct CellMath {
  template <typename C>
  static C Sigmoid(C x) {
    return cpu::Sigmoid(x);
  }
  template <typename C>
  static C Tanh(C x) {
    return FastTanh(x);
  }
};

template <template <typename> typename Unit, typename Args>
void RunCell(const DeviceContext& context, const char* name, const Args& args) {
  DispatchFloat(args.dtype, name, [&]<typename T>() {
    ForRows(context, args.rows, args.units * kUnitCost, [&](int64_t begin, int64_t end) {
      const Unit<T> unit{args};
      for (int64_t row = begin; row < end; ++row) {
#pragma omp simd
        for (int64_t u = 0; u < args.units; ++u) unit.template operator()<CellMath>(row, u);
      }
    });
  });
}

}  // namespace

void gru_cell_forward(const DeviceContext& context, const GruCellForwardArgs& args) {
  RunCell<recurrent::GruForward>(context, "gru_cell_forward", args);
}

void gru_cell_backward(const DeviceContext& context, const GruCellBackwardArgs& args) {
  RunCell<recurrent::GruBackward>(context, "gru_cell_backward", args);
}

void lstm_cell_forward(const DeviceContext& context, const LstmCellForwardArgs& args) {
  RunCell<recurrent::LstmForward>(context, "lstm_cell_forward", args);
}

void lstm_cell_backward(const DeviceContext& context, const LstmCellBackwardArgs& args) {
  RunCell<recurrent::LstmBackward>(context, "lstm_cell_backward", args);
}

}  // namespace apogee::cpu
