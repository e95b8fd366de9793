// SPDX-License-Identifier: Apache-2.0

#include "apogee/autograd/functions/recurrent.h"

#include <utility>
#include <vector>

#include "apogee/autograd/node.h"
#include "apogee/autograd/saved_tensor.h"
#include "apogee/tensor/ops/check.h"
#include "apogee/tensor/ops/elementwise.h"
#include "apogee/tensor/ops/matmul.h"
#include "apogee/tensor/ops/recurrent.h"

namespace apogee::autograd {
namespace {

// Step t of a sequence [T, B, n].
Tensor At(const Tensor& sequence, int64_t t) {
  return sequence.Slice(0, t, 1).View({sequence.size(1), sequence.size(2)});
}

// The operands of a call, checked, and its sizes.
struct Sequence {
  Sequence(const char* op, const Tensor& x_in, const Tensor& weight_in, const Tensor& bias_in,
           int64_t sections, const StateParts& parts)
      : x(ops::Operand(op, "x", x_in)),
        weight(ops::Operand(op, "weight", weight_in)),
        bias(bias_in.defined() ? ops::Operand(op, "bias", bias_in) : Tensor()),
        parts(parts) {
    ops::CheckSameDType(op, x, weight);
    APOGEE_CHECK(x.rank() == 3 && x.size(0) > 0 && x.size(2) % sections == 0, op,
                 ": needs x [steps, samples, ", sections, " units] of at least one step, got ",
                 x.shape());
    steps = x.size(0), rows = x.size(1), units = x.size(2) / sections;
    APOGEE_CHECK(weight.rank() == 2 && weight.size(0) == x.size(2), op, ": weight ", weight.shape(),
                 " for x ", x.shape(), ", must be [", x.size(2), ", units]");
    APOGEE_CHECK(parts.join != nullptr || weight.size(1) == units, op, ": weight ", weight.shape(),
                 " must have ", units, " columns, one for each unit");
    wide = ComputeDType(x.dtype());
  }

  Tensor Empty(const Shape& shape, DType dtype) const {
    return Tensor::Empty(shape, dtype, x.context());
  }
  // [steps + 1, rows, units], of which step 0 is `first`, or zeros.
  Tensor StatesFrom(const char* op, const char* name, const Tensor& first, DType dtype) const {
    Tensor states = Empty({steps + 1, rows, units}, dtype);
    if (!first.defined()) {
      At(states, 0).Fill(0);
      return states;
    }
    APOGEE_CHECK(first.shape() == Shape({rows, units}) && first.dtype() == dtype, op, ": ", name,
                 " is ", DTypeName(first.dtype()), " ", first.shape(), ", must be ",
                 DTypeName(dtype), " ", Shape({rows, units}));
    ops::CheckSameDevice(op, first, x);
    At(states, 0).CopyFrom(first.Detach());
    return states;
  }
  // Calls step(t, product) for each step, with the product of the state `states` [steps + 1, ..]
  // before it. Returns the states that the products read: [steps, rows, all units].
  template <typename Fn>
  Tensor ForEachStep(const Tensor& states, const Fn& step) const {
    Tensor whole = parts.join == nullptr ? states.Slice(0, 0, steps)
                                         : Empty({steps, rows, weight.size(1)}, x.dtype());
    const Tensor product = Empty({rows, weight.size(0)}, wide);
    for (int64_t t = 0; t < steps; ++t) {
      if (parts.join != nullptr) At(whole, t).CopyFrom(parts.join(At(states, t)));
      ops::MatMul(At(whole, t), weight,
                  {.b_trans = true, .bias = bias, .out_dtype = wide, .out = product});
      step(t, product);
    }
    return whole;
  }

  Tensor x, weight, bias;
  const StateParts& parts;
  int64_t steps, rows, units;
  DType wide;
};

// The edges are x, weight, bias, h0 and, for an LSTM, c0.
class RecurrentNode : public Node {
 public:
  // `states`: what a step passes on besides the products, [steps + 1, rows, units].
  RecurrentNode(const Sequence& sequence, const Tensor& weight, const Tensor& bias,
                const Tensor& whole, const Tensor& states, const Tensor& gates)
      : weight_(weight),
        whole_(whole),
        states_(states),
        gates_(gates),
        parts_(sequence.parts),
        weight_grad_dtype_(GradDType(weight)),
        bias_grad_dtype_(bias.defined() ? GradDType(bias) : weight_grad_dtype_) {}
  bool IsWeightEdge(size_t edge) const override { return edge == 1 || edge == 2; }

  std::vector<Tensor> Backward(std::vector<Tensor> grads, const BackwardContext& context) override {
    std::vector<Tensor> result(edges().size());
    Tensor dp;
    if (context.part == GradPart::kWeights) {
      dp = std::exchange(dp_, Tensor());
    } else {
      dp = BackwardSteps(grads[0].Contiguous(), states_.Take(context), gates_.Take(context),
                         context, result);
    }
    if (context.part == GradPart::kInputs) {
      // The weight half needs these, and must not run the steps again.
      dp_ = dp;
      return result;
    }
    const Tensor whole = whole_.Take(context);
    if (wants(1)) result[1] = ops::MatMulTransA(dp, whole, weight_grad_dtype_);
    if (wants(2)) result[2] = ops::SumLeading(dp, 1, bias_grad_dtype_);
    return result;
  }

  void ReleaseSaved() override {
    for (SavedTensor* saved : {&weight_, &whole_, &states_, &gates_}) saved->Reset();
    dp_ = Tensor();
  }

 protected:
  // Sets the gradients of x and of the first states, and returns that of the states' products,
  // [steps, rows, sections * units].
  virtual Tensor BackwardSteps(const Tensor& dy, const Tensor& states, const Tensor& gates,
                               const BackwardContext& context, std::vector<Tensor>& result) = 0;

  // Calls step(t, dproduct) for each step, from the last one on. It sets dp's step t. dproduct
  // [rows, units] is the part of the gradient of the state after step t that comes through step
  // t + 1's product. Returns that of the state before step 0, if it is wanted.
  template <typename Fn>
  Tensor ForEachStepBack(const Tensor& dy, const Tensor& dp, const BackwardContext& context,
                         const Fn& step) {
    const Tensor weight = weight_.Take(context);
    const DType wide = ComputeDType(dy.dtype());
    const Tensor product = Tensor::Empty({dy.size(1), weight.size(1)}, wide, dy.context());
    Tensor dproduct = Tensor::Zeros({dy.size(1), dy.size(2)}, wide, dy.context());
    for (int64_t t = dy.size(0) - 1; t >= 0; --t) {
      step(t, dproduct);
      if (t == 0 && !wants(3)) return Tensor();
      ops::MatMul(At(dp, t), weight, {.out_dtype = wide, .out = product});
      dproduct = parts_.own_grad == nullptr ? product : parts_.own_grad(product);
    }
    return dproduct;
  }

 private:
  SavedTensor weight_, whole_, states_, gates_;
  StateParts parts_;
  DType weight_grad_dtype_, bias_grad_dtype_;
  Tensor dp_;  // between the halves
};

class GruNode : public RecurrentNode {
 public:
  using RecurrentNode::RecurrentNode;
  const char* name() const override { return "gru"; }

 private:
  Tensor BackwardSteps(const Tensor& dy, const Tensor& states, const Tensor& gates,
                       const BackwardContext& context, std::vector<Tensor>& result) override {
    const Shape sums{dy.size(0), dy.size(1), 3 * dy.size(2)};
    const Tensor dx = Tensor::Empty(sums, dy.dtype(), dy.context());
    Tensor dp = Tensor::EmptyLike(dx);
    const Tensor dstate =
        Tensor::Zeros({dy.size(1), dy.size(2)}, ComputeDType(dy.dtype()), dy.context());
    const Tensor dproduct = ForEachStepBack(dy, dp, context, [&](int64_t t, const Tensor& later) {
      ops::GruCellBackward({.gates = At(gates, t),
                            .h = At(states, t),
                            .dy = At(dy, t),
                            .dproduct = later,
                            .dstate = dstate,
                            .dx = At(dx, t),
                            .dp = At(dp, t)});
    });
    if (dproduct.defined()) result[3] = ops::Add(dproduct, dstate).To(dy.dtype());
    result[0] = dx;
    return dp;
  }
};

// Its states are the cells.
class LstmNode : public RecurrentNode {
 public:
  using RecurrentNode::RecurrentNode;
  const char* name() const override { return "lstm"; }

 private:
  Tensor BackwardSteps(const Tensor& dy, const Tensor& cells, const Tensor& gates,
                       const BackwardContext& context, std::vector<Tensor>& result) override {
    Tensor dx = Tensor::EmptyLike(gates);
    const Tensor dstate = Tensor::Zeros({dy.size(1), dy.size(2)}, cells.dtype(), dy.context());
    const Tensor dh = ForEachStepBack(dy, dx, context, [&](int64_t t, const Tensor& later) {
      ops::LstmCellBackward({.gates = At(gates, t),
                             .c = At(cells, t),
                             .c_next = At(cells, t + 1),
                             .dy = At(dy, t),
                             .dproduct = later,
                             .dstate = dstate,
                             .dx = At(dx, t)});
    });
    result[0] = dx;
    if (dh.defined()) result[3] = dh.To(dy.dtype());
    result[4] = dstate;
    return dx;
  }
};

}  // namespace

Tensor Gru(const Tensor& x, const Tensor& weight, const Tensor& bias, const Tensor& h0,
           const StateParts& parts) {
  const Sequence sequence("gru", x, weight, bias, 3, parts);
  const bool keep = NeedsGrad({x, weight, bias, h0});
  const Tensor states = sequence.StatesFrom("gru", "h0", h0, sequence.x.dtype());
  const Tensor gates =
      keep ? sequence.Empty({sequence.steps, sequence.rows, 4 * sequence.units}, states.dtype())
           : Tensor();
  const Tensor whole = sequence.ForEachStep(states, [&](int64_t t, const Tensor& product) {
    ops::GruCellForward({.x = At(sequence.x, t),
                         .product = product,
                         .h = At(states, t),
                         .y = At(states, t + 1),
                         .gates = keep ? At(gates, t) : Tensor()});
  });
  Tensor y = states.Slice(0, 1, sequence.steps);
  if (keep) {
    Attach(y, std::make_shared<GruNode>(sequence, weight, bias, whole, states, gates),
           {x, weight, bias, h0});
  }
  return y;
}

LstmResult Lstm(const Tensor& x, const Tensor& weight, const Tensor& bias, const Tensor& h0,
                const Tensor& c0, const StateParts& parts) {
  const Sequence sequence("lstm", x, weight, bias, 4, parts);
  const bool keep = NeedsGrad({x, weight, bias, h0, c0});
  const Tensor states = sequence.StatesFrom("lstm", "h0", h0, sequence.x.dtype());
  const Tensor cells = sequence.StatesFrom("lstm", "c0", c0, sequence.wide);
  const Tensor gates = keep ? Tensor::EmptyLike(sequence.x) : Tensor();
  const Tensor whole = sequence.ForEachStep(states, [&](int64_t t, const Tensor& product) {
    ops::LstmCellForward({.x = At(sequence.x, t),
                          .product = product,
                          .c = At(cells, t),
                          .c_next = At(cells, t + 1),
                          .y = At(states, t + 1),
                          .gates = keep ? At(gates, t) : Tensor()});
  });
  Tensor y = states.Slice(0, 1, sequence.steps);
  if (keep) {
    Attach(y, std::make_shared<LstmNode>(sequence, weight, bias, whole, cells, gates),
           {x, weight, bias, h0, c0});
  }
  return {.y = y, .c = At(cells, sequence.steps)};
}

}  // namespace apogee::autograd
