// SPDX-License-Identifier: Apache-2.0

// The cells of GRU and LSTM: a thread computes every gate of one unit of one sample.
#include "apogee/tensor/cuda/activation.cuh"
#include "apogee/tensor/cuda/device/launch.cuh"
#include "apogee/tensor/cuda/kernels.h"
#include "apogee/tensor/kernels/recurrent_functions.h"

namespace apogee::cuda {
namespace {

struct CellMath {
  template <typename C>
  static __device__ C Sigmoid(C x) {
    return cuda::Sigmoid(x);
  }
  template <typename C>
  static __device__ C Tanh(C x) {
    return std::tanh(x);
  }
};

template <typename Unit>
void ForUnits(const DeviceContext& context, const Unit& unit) {
  const int64_t units = unit.args.units;
  ForEach(context, unit.args.rows * units, [=] __device__(int64_t at) {
    const int64_t row = at / units;
    unit.template operator()<CellMath>(row, at - row * units);
  });
}

template <template <typename> typename Unit, typename Args>
void RunCell(const DeviceContext& context, const char* name, const Args& args) {
  DispatchFloat(args.dtype, name, [&]<typename T>() { ForUnits(context, Unit<T>{args}); });
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

}  // namespace apogee::cuda
