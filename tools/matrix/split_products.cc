#include "apogee/tools/matrix/split_products.h"

#include <fnmatch.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "apogee/autograd/functions/activation.h"
#include "apogee/autograd/node.h"
#include "apogee/nn/layers.h"
#include "apogee/nn/parallel/plan.h"
#include "apogee/nn/parallel/shard.h"
#include "apogee/tensor/ops/elementwise.h"
#include "apogee/tensor/ops/matmul.h"

namespace apogee::tools {
namespace {

using autograd::WeightLayout;
using nn::parallel::ParallelStyle;

struct Split {
  // By input features, as a row-parallel layer; else by output features.
  bool inputs = false;
  int sections = 1;
  int num_parts = 1;
  WeightLayout layout = WeightLayout::kOutIn;
};

// Part `part` of dim `dim`; the last ones are shorter, or undefined, where parts are unequal.
Tensor PartOf(const Tensor& x, int dim, const Split& split, int part) {
  if (split.sections > 1) {
    return nn::parallel::CutLocal({.dim = dim, .sections = split.sections}, x, part,
                                  split.num_parts);
  }
  const int64_t size = x.size(dim), most = (size + split.num_parts - 1) / split.num_parts;
  const int64_t begin = std::min(part * most, size), length = std::min(most, size - begin);
  return length == 0 ? Tensor() : x.Detach().Slice(dim, begin, length).Contiguous();
}

// a b, or a b^T, with the contracted dim in parts.
Tensor ProductInParts(const Tensor& a, const Tensor& b, bool b_trans, const Split& split) {
  const DType wide = a.dtype() == DType::kF64 ? DType::kF64 : DType::kF32;
  Tensor sum;
  for (int part = 0; part < split.num_parts; ++part) {
    const Tensor a_part = PartOf(a, -1, split, part);
    if (!a_part.defined()) break;
    const Tensor b_part = PartOf(b, b_trans ? 1 : 0, split, part);
    const Tensor product = ops::MatMul(a_part, b_part, {.b_trans = b_trans}).To(wide);
    sum = sum.defined() ? ops::Add(sum, product) : product;
  }
  return sum.To(a.dtype());
}

class SplitLinearNode : public autograd::Node {
 public:
  SplitLinearNode(Tensor x, Tensor weight, DType weight_grad_dtype, DType bias_grad_dtype,
                  const Split& split)
      : x_(std::move(x)),
        weight_(std::move(weight)),
        weight_grad_dtype_(weight_grad_dtype),
        bias_grad_dtype_(bias_grad_dtype),
        split_(split) {}
  const char* name() const override { return "split_linear"; }

  std::vector<Tensor> Backward(std::vector<Tensor> grads,
                               const autograd::BackwardContext&) override {
    const Tensor& dy = grads[0];
    const bool out_in = split_.layout == WeightLayout::kOutIn;
    std::vector<Tensor> result(3);
    if (wants(1)) {
      result[1] = out_in ? ops::MatMulTransA(dy, x_, weight_grad_dtype_)
                         : ops::MatMulTransA(x_, dy, weight_grad_dtype_);
    }
    if (wants(2)) result[2] = ops::SumLeading(dy, 1, bias_grad_dtype_);
    if (wants(0)) {
      result[0] = split_.inputs ? ops::MatMul(dy, weight_, {.b_trans = !out_in})
                                : ProductInParts(dy, weight_, !out_in, split_);
    }
    return result;
  }
  void ReleaseSaved() override { x_ = weight_ = Tensor(); }

 private:
  Tensor x_, weight_;
  DType weight_grad_dtype_, bias_grad_dtype_;
  Split split_;
};

Tensor SplitLinear(const Tensor& x, const Tensor& weight, const Tensor& bias, const Split& split) {
  const bool out_in = split.layout == WeightLayout::kOutIn;
  Tensor y;
  if (split.inputs) {
    y = ProductInParts(x, weight, out_in, split);
    if (bias.defined()) y = ops::Add(y, bias);
  } else {
    y = ops::MatMul(x, weight, {.b_trans = out_in, .bias = bias});
  }
  if (autograd::NeedsGrad({x, weight, bias})) {
    const DType bias_grad = autograd::GradDType(bias.defined() ? bias : weight);
    autograd::Attach(
        y,
        std::make_shared<SplitLinearNode>(x.Detach(), weight.Detach(), autograd::GradDType(weight),
                                          bias_grad, split),
        {x, weight, bias});
  }
  return y;
}

void Replace(nn::Linear& linear, const nn::parallel::PlanRule& rule, int num_parts) {
  const bool inputs = rule.style == ParallelStyle::kRow || rule.style == ParallelStyle::kRowSplit;
  const Split split{.inputs = inputs,
                    .sections = rule.sections,
                    .num_parts = num_parts,
                    .layout = linear.layout()};
  linear.ReplaceForward([&linear, split](const Tensor& x) {
    const Tensor bias = linear.bias() != nullptr ? linear.bias()->value() : Tensor();
    const Tensor y = SplitLinear(x, linear.weight()->value(), bias, split);
    return linear.activation() ? autograd::Activate(*linear.activation(), y) : y;
  });
}

}  // namespace

void SplitProducts(nn::Module& model, int num_parts) {
  const std::optional<nn::parallel::ParallelPlan> plan = nn::parallel::ShippedPlan(model);
  APOGEE_CHECK(plan.has_value(), "split products: no plan comes with this model");
  for (const nn::parallel::PlanRule& rule : plan->rules) {
    for (const auto& [name, module] : model.NamedModules()) {
      auto* linear = dynamic_cast<nn::Linear*>(module);
      if (linear == nullptr || fnmatch(rule.pattern.c_str(), name.c_str(), 0) != 0) continue;
      Replace(*linear, rule, num_parts);
    }
  }
}

}  // namespace apogee::tools
