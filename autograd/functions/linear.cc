// SPDX-License-Identifier: Apache-2.0

#include "apogee/autograd/functions/linear.h"

#include <algorithm>
#include <vector>

#include "apogee/autograd/functions/shape.h"
#include "apogee/autograd/node.h"
#include "apogee/autograd/saved_tensor.h"
#include "apogee/tensor/ops/elementwise.h"
#include "apogee/tensor/ops/matmul.h"

namespace apogee::autograd {
namespace {

class LinearNode : public Node {
 public:
  LinearNode(const Tensor& x, const Tensor& weight, const Tensor& bias, const Tensor& pre,
             const LinearOptions& options)
      : weight_(weight),
        pre_(pre),
        options_(options),
        dtype_(weight.dtype()),
        weight_grad_dtype_(GradDType(weight)),
        bias_grad_dtype_(bias.defined() ? GradDType(bias) : weight_grad_dtype_) {
    if (NeedsGrad({weight})) x_ = SavedTensor(x);
    if (!options_.input_grad_dtype) options_.input_grad_dtype = GradDType(x);
  }

  const char* name() const override { return "linear"; }
  bool IsWeightEdge(size_t edge) const override { return edge > 0; }

  std::vector<Tensor> Backward(std::vector<Tensor> grads, const BackwardContext& context) override {
    Tensor dy = std::move(grads[0]);
    const Tensor wide = dy.dtype() != dtype_ ? dy : Tensor();  // of a result of out_dtype
    if (wide.defined()) dy = wide.To(dtype_);
    if (options_.activation.has_value()) {
      const Tensor pre = pre_.Take(context);
      dy = ops::ActivationBackward(*options_.activation, pre, std::move(dy));
    }
    std::vector<Tensor> result(3);
    const bool out_in = options_.layout == WeightLayout::kOutIn;
    if (context.part != GradPart::kInputs) {
      if (wants(1)) {
        const Tensor x = x_.Take(context);
        result[1] = out_in ? ops::MatMulTransA(dy, x, weight_grad_dtype_)
                           : ops::MatMulTransA(x, dy, weight_grad_dtype_);
      }
      if (wants(2)) {
        result[2] = ops::SumLeading(wide.defined() ? wide : dy, 1, bias_grad_dtype_);
      }
    }
    if (context.part != GradPart::kWeights && wants(0)) {
      result[0] = ops::MatMul(dy, weight_.Take(context),
                              {.b_trans = !out_in, .out_dtype = options_.input_grad_dtype});
    }
    return result;
  }

  void ReleaseSaved() override {
    x_.Reset();
    weight_.Reset();
    pre_.Reset();
  }

 private:
  SavedTensor x_, weight_, pre_;
  LinearOptions options_;
  DType dtype_;  // of the products
  DType weight_grad_dtype_, bias_grad_dtype_;
};

class MatMulNode : public Node {
 public:
  MatMulNode(const Tensor& a, const Tensor& b, bool a_trans, bool b_trans)
      : a_(a), b_(b), a_trans_(a_trans), b_trans_(b_trans) {}
  const char* name() const override { return "matmul"; }

  std::vector<Tensor> Backward(std::vector<Tensor> grads, const BackwardContext& context) override {
    const Tensor a = a_.Take(context), b = b_.Take(context);
    const Tensor& dc = grads[0];
    std::vector<Tensor> result(2);
    // With c = op(a) op(b): d op(a) = dc op(b)^T and d op(b) = op(a)^T dc, transposed back if op
    // transposes.
    if (wants(0)) {
      result[0] = a_trans_ ? ops::MatMul(b, dc, {.a_trans = b_trans_, .b_trans = true})
                           : ops::MatMul(dc, b, {.b_trans = !b_trans_});
    }
    if (wants(1)) {
      if (b.rank() == 2 && !a_trans_) {
        result[1] =
            b_trans_ ? ops::MatMulTransA(dc, a, b.dtype()) : ops::MatMulTransA(a, dc, b.dtype());
      } else {
        result[1] = b_trans_ ? ops::MatMul(dc, a, {.a_trans = true, .b_trans = a_trans_})
                             : ops::MatMul(a, dc, {.a_trans = !a_trans_});
      }
    }
    return result;
  }
  void ReleaseSaved() override {
    a_.Reset();
    b_.Reset();
  }

 private:
  SavedTensor a_, b_;
  bool a_trans_, b_trans_;
};

Shape BatchOf(const Tensor& x) {
  return Shape(x.shape().dims().first(static_cast<size_t>(std::max(0, x.rank() - 2))));
}

// x with the batch dims `batch`.
Tensor WithBatch(const Tensor& x, const Shape& batch) {
  if (BatchOf(x) == batch) return x;
  std::vector<int64_t> sizes(batch.dims().begin(), batch.dims().end());
  sizes.push_back(x.size(-2));
  sizes.push_back(x.size(-1));
  return Contiguous(Expand(x, Shape(sizes)));
}

}  // namespace

Tensor Linear(const Tensor& x, const Tensor& weight, const Tensor& bias,
              const LinearOptions& options) {
  const bool out_in = options.layout == WeightLayout::kOutIn;
  APOGEE_CHECK(options.activation || !options.recompute_activation,
               "linear: recompute_activation has no effect without an activation");
  APOGEE_CHECK(!options.activation || !options.out_dtype,
               "linear: an activation has its operand's dtype; set either activation or out_dtype");
  const ops::MatMulOptions product = {
      .b_trans = out_in, .bias = bias, .out_dtype = options.out_dtype};
  Tensor y, pre;
  if (options.activation) {
    ops::Activated result = ops::MatMulActivation(x, weight, *options.activation, product);
    y = std::move(result.y);
    pre = std::move(result.pre);
    if (options.recompute_activation && NeedsGrad({x, weight, bias})) {
      SetOrigin(y, pre, [kind = *options.activation](const Tensor& before) {
        return ops::ActivationForward(kind, before);
      });
    }
  } else {
    y = ops::MatMul(x, weight, product);
  }
  if (NeedsGrad({x, weight, bias})) {
    Attach(y, std::make_shared<LinearNode>(x, weight, bias, pre, options), {x, weight, bias});
  }
  return y;
}

Tensor MatMul(const Tensor& a, const Tensor& b, bool a_trans, bool b_trans) {
  if (a.rank() >= 2 && b.rank() > 2 && BatchOf(a) != BatchOf(b)) {
    const Shape batch = ops::BroadcastShape("matmul", BatchOf(a), BatchOf(b));
    return MatMul(WithBatch(a, batch), WithBatch(b, batch), a_trans, b_trans);
  }
  Tensor c = ops::MatMul(a, b, {.a_trans = a_trans, .b_trans = b_trans});
  if (NeedsGrad({a, b})) {
    Attach(c,
           std::make_shared<MatMulNode>(a.Detach().Contiguous(), b.Detach().Contiguous(), a_trans,
                                        b_trans),
           {a, b});
  }
  return c;
}

}  // namespace apogee::autograd
