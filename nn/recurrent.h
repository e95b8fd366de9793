// SPDX-License-Identifier: Apache-2.0

// Recurrent layers: GRU (Cho et al., "Learning Phrase Representations using RNN Encoder-Decoder for
// Statistical Machine Translation", 2014) and LSTM (Hochreiter and Schmidhuber, "Long Short-Term
// Memory", 1997), with the formulas and the names of torch.nn.GRU and torch.nn.LSTM.
//
//   auto gru = std::make_shared<nn::Gru>(64, 128, nn::RecurrentOptions{.num_layers = 2});
//   Tensor y = (*gru)(x);                                // x [B, T, 64] -> y [B, T, 128]
//   auto [first, state] = gru->Run(x.Slice(1, 0, 10));   // the first 10 steps, and where they end
//   Tensor second = gru->Run(x.Slice(1, 10, 5), state).y;
//
// The batch is the first dim: x is [samples, steps, features], of the weights' dtype (f64, f32,
// bf16 or f16). The result has the state of the last layer after every step.
//
// Parameters of layer l, for G = 3 gates (r, z, n) of a GRU or 4 (i, f, g, o) of an LSTM:
// "weight_ih_l<l>" [G hidden, input of the layer], "weight_hh_l<l>" [G hidden, hidden] and, with
// bias, "bias_ih_l<l>" and "bias_hh_l<l>" [G hidden], all uniform in (-1/sqrt(hidden),
// 1/sqrt(hidden)].
//
// With bf16 and f16, gates are computed in f32. Rounded are the products of the input, the state
// after each step, and what backward keeps; an LSTM's cell state stays in f32.
//
// Forward throws Error for an x that is not [samples, steps, features], has no step, or has another
// number of features. Tensor parallelism cuts the units (ParallelStyle::kColumn, kColumnGather).
// Sequence parallelism cannot cut the steps: boost refuses it.
#ifndef APOGEE_NN_RECURRENT_H_
#define APOGEE_NN_RECURRENT_H_

#include <cstdint>
#include <functional>
#include <vector>

#include "apogee/nn/configured.h"
#include "apogee/nn/module.h"

namespace apogee::nn {

struct RecurrentOptions {
  int num_layers = 1;
  bool bias = true;
  // The probability of zeroing an element of a layer's result before the next layer, in training
  // mode; in [0, 1). Masks are those of nn::Dropout, and so do not depend on how a batch is split.
  double dropout = 0;
};

// The states of all layers after a step; an undefined tensor stands for zeros.
struct RecurrentState {
  Tensor h;  // [layers, samples, hidden], of x's dtype
  Tensor c;  // the same of an LSTM's cells, f32 (f64 for f64); undefined for a GRU
};

// What Gru and Lstm share.
class Recurrent : public Module, public Configured {
 public:
  Tensor Forward(const Tensor& x) override;
  bool mixes_tokens() const override { return true; }
  void DescribeConfig(ConfigTexts& texts) const override;

  // Calls the module, hooks included, with the states `initial` before the first step, which may be
  // in a graph. The final state is not in the graph (truncated backpropagation through time):
  // gradients flow back from y only. autograd::Recompute must be around this call, not inside it (a
  // wrapped forward): a second forward alone would begin with zeros. Throws Error for a state of
  // another shape or dtype.
  struct Result {
    Tensor y;  // [samples, steps, hidden]
    RecurrentState state;
  };
  Result Run(const Tensor& x, const RecurrentState& initial = {});

  int64_t input_size() const { return input_size_; }
  int64_t hidden_size() const { return hidden_size_; }
  int num_layers() const { return static_cast<int>(layers_.size()); }
  // 3 for a GRU, 4 for an LSTM: the sections of the weights' first dim.
  int num_gates() const { return num_gates_; }

  // The parameters of one layer; the biases are null without bias.
  struct Layer {
    ParameterPtr weight_ih, weight_hh, bias_ih, bias_hh;
  };
  const std::vector<Layer>& layers() const { return layers_; }

  // One layer over a sequence. The states before the first step may be undefined: zeros.
  struct LayerInput {
    Tensor x;          // [steps, samples, features]
    Tensor h, c;       // [samples, hidden]
    bool wants_state;  // of the last step
  };
  struct LayerResult {
    Tensor y;     // [steps, samples, hidden]
    Tensor h, c;  // [samples, hidden], outside of any graph; undefined if not wanted
  };
  using LayerFunction = std::function<LayerResult(const Layer& layer, const LayerInput& input)>;
  // Forward with `run` in place of a layer's own computation; for replaced forwards
  // (Module::ReplaceForward).
  Tensor ForwardWith(const LayerFunction& run, const Tensor& x);

 protected:
  // `kind`: for messages.
  Recurrent(const char* kind, int num_gates, int64_t input_size, int64_t hidden_size,
            const RecurrentOptions& options);

 private:
  void CheckInput(const Tensor& x) const;
  void CheckState(const char* name, const Tensor& state, const Tensor& x, DType dtype) const;

  const char* kind_;
  int num_gates_;
  int64_t input_size_, hidden_size_;
  double dropout_;
  std::vector<Layer> layers_;
  // Of the call of Run that is under way.
  const RecurrentState* initial_ = nullptr;
  RecurrentState* final_ = nullptr;
};

class Gru : public Recurrent {
 public:
  // Throws Error for sizes or a number of layers below 1, and for a dropout outside of [0, 1).
  Gru(int64_t input_size, int64_t hidden_size, const RecurrentOptions& options = {});
};

class Lstm : public Recurrent {
 public:
  // Throws Error as Gru does.
  Lstm(int64_t input_size, int64_t hidden_size, const RecurrentOptions& options = {});
};

}  // namespace apogee::nn

#endif  // APOGEE_NN_RECURRENT_H_
