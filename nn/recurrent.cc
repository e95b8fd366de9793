// SPDX-License-Identifier: Apache-2.0

#include "apogee/nn/recurrent.h"

#include <cmath>
#include <string>
#include <utility>

#include "apogee/autograd/functions/activation.h"
#include "apogee/autograd/functions/linear.h"
#include "apogee/autograd/functions/recurrent.h"
#include "apogee/autograd/functions/shape.h"
#include "apogee/nn/layers.h"
#include "apogee/tensor/ops/recurrent.h"

namespace apogee::nn {
namespace {

// [a, b, n] -> [b, a, n]: from samples first to steps first, and back.
Tensor Swapped(const Tensor& x) { return autograd::Contiguous(autograd::Transpose(x, 0, 1)); }

// The state of layer `l`, if there is one.
Tensor OfLayer(const Tensor& states, int l) {
  if (!states.defined()) return {};
  return autograd::View(autograd::Contiguous(autograd::Slice(states, 0, l, 1)),
                        {states.size(1), states.size(2)});
}

// The module's own computation of a layer.
Recurrent::LayerResult RunLayer(const Recurrent::Layer& layer, const Recurrent::LayerInput& in,
                                int num_gates) {
  const Tensor gates =
      autograd::Linear(in.x, layer.weight_ih->value(), autograd::ValueOf(layer.bias_ih));
  const Tensor weight = layer.weight_hh->value(), bias = autograd::ValueOf(layer.bias_hh);
  Recurrent::LayerResult result;
  if (num_gates == 3) {
    result.y = autograd::Gru(gates, weight, bias, in.h);
  } else {
    autograd::LstmResult lstm = autograd::Lstm(gates, weight, bias, in.h, in.c);
    result.y = std::move(lstm.y);
    if (in.wants_state) result.c = std::move(lstm.c);
  }
  if (in.wants_state) {
    const int64_t last = in.x.size(0) - 1;
    result.h = result.y.Detach().Slice(0, last, 1).View({in.x.size(1), result.y.size(2)});
  }
  return result;
}

}  // namespace

Recurrent::Recurrent(const char* kind, int num_gates, int64_t input_size, int64_t hidden_size,
                     const RecurrentOptions& options)
    : kind_(kind),
      num_gates_(num_gates),
      input_size_(input_size),
      hidden_size_(hidden_size),
      dropout_(options.dropout) {
  APOGEE_CHECK(input_size > 0 && hidden_size > 0, kind, ": sizes must be positive, got ",
               input_size, " features and ", hidden_size, " units");
  APOGEE_CHECK(options.num_layers > 0, kind, ": num_layers is ", options.num_layers,
               ", must be at least 1");
  APOGEE_CHECK(dropout_ >= 0 && dropout_ < 1, kind, ": dropout must be in [0, 1), got ", dropout_);
  const double bound = 1.0 / std::sqrt(static_cast<double>(hidden_size));
  const Init init = Init::Uniform(-bound, bound);
  const int64_t rows = num_gates * hidden_size;
  for (int l = 0; l < options.num_layers; ++l) {
    const std::string end = "_l" + std::to_string(l);
    Layer layer;
    layer.weight_ih =
        RegisterParameter("weight_ih" + end, {rows, l == 0 ? input_size : hidden_size}, init);
    layer.weight_hh = RegisterParameter("weight_hh" + end, {rows, hidden_size}, init);
    if (options.bias) {
      layer.bias_ih = RegisterParameter("bias_ih" + end, {rows}, init);
      layer.bias_hh = RegisterParameter("bias_hh" + end, {rows}, init);
    }
    layers_.push_back(std::move(layer));
  }
}

Tensor Recurrent::Forward(const Tensor& x) {
  return ForwardWith(
      [this](const Layer& layer, const LayerInput& in) { return RunLayer(layer, in, num_gates_); },
      x);
}

Tensor Recurrent::ForwardWith(const LayerFunction& run, const Tensor& x_in) {
  CheckInput(x_in);
  const Tensor x = InputOf(*this, x_in, *layers_[0].weight_ih);
  const RecurrentState initial = initial_ != nullptr ? *initial_ : RecurrentState{};
  CheckState("h", initial.h, x, x.dtype());
  CheckState("c", initial.c, x, ComputeDType(x.dtype()));
  std::vector<Tensor> last_h, last_c;
  Tensor y = Swapped(x);
  for (int l = 0; l < num_layers(); ++l) {
    if (l > 0 && is_training() && dropout_ > 0) {
      y = Swapped(autograd::Dropout(Swapped(y), dropout_, generator()));
    }
    LayerResult result = run(layers_[static_cast<size_t>(l)], {.x = std::move(y),
                                                               .h = OfLayer(initial.h, l),
                                                               .c = OfLayer(initial.c, l),
                                                               .wants_state = final_ != nullptr});
    y = std::move(result.y);
    if (result.h.defined()) last_h.push_back(std::move(result.h));
    if (result.c.defined()) last_c.push_back(std::move(result.c));
  }
  if (final_ != nullptr) {
    final_->h = autograd::Stack(last_h, 0);
    if (!last_c.empty()) final_->c = autograd::Stack(last_c, 0);
  }
  return Swapped(y);
}

Recurrent::Result Recurrent::Run(const Tensor& x, const RecurrentState& initial) {
  APOGEE_CHECK(num_gates_ == 4 || !initial.c.defined(), kind_, " \"", full_name(),
               "\": has no cell state, but c is given: ", initial.c.shape());
  Result result;
  // Forward reads and writes them, wherever the module's hooks and its replaced forward call it.
  struct Restore {
    Recurrent& self;
    ~Restore() { self.initial_ = nullptr, self.final_ = nullptr; }
  } restore{*this};
  initial_ = &initial;
  final_ = &result.state;
  result.y = (*this)(x);
  return result;
}

void Recurrent::CheckInput(const Tensor& x) const {
  APOGEE_CHECK(x.defined(), kind_, " \"", full_name(), "\": x is undefined");
  x.CheckOpen();
  APOGEE_CHECK(x.rank() == 3 && x.size(2) == input_size_, kind_, " \"", full_name(),
               "\": needs x [samples, steps, ", input_size_, "], got ", x.shape());
  APOGEE_CHECK(x.size(1) > 0, kind_, " \"", full_name(), "\": needs at least one step, got ",
               x.shape());
}

void Recurrent::CheckState(const char* name, const Tensor& state, const Tensor& x,
                           DType dtype) const {
  if (!state.defined()) return;
  const Shape shape{num_layers(), x.size(0), hidden_size_};
  APOGEE_CHECK(state.shape() == shape && state.dtype() == dtype, kind_, " \"", full_name(),
               "\": the initial state ", name, " is ", DTypeName(state.dtype()), " ", state.shape(),
               ", must be ", DTypeName(dtype), " ", shape, " [layers, samples, hidden] for x ",
               x.shape());
}

void Recurrent::DescribeConfig(ConfigTexts& texts) const {
  texts.training["dropout"] = ConfigText(dropout_);
}

Gru::Gru(int64_t input_size, int64_t hidden_size, const RecurrentOptions& options)
    : Recurrent("gru", 3, input_size, hidden_size, options) {}

Lstm::Lstm(int64_t input_size, int64_t hidden_size, const RecurrentOptions& options)
    : Recurrent("lstm", 4, input_size, hidden_size, options) {}

}  // namespace apogee::nn
