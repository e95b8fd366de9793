// SPDX-License-Identifier: Apache-2.0

#include "apogee/autograd/functions/grouped.h"

#include <numeric>
#include <utility>

#include "apogee/autograd/node.h"
#include "apogee/autograd/saved_tensor.h"
#include "apogee/tensor/ops/elementwise.h"
#include "apogee/tensor/ops/gather.h"
#include "apogee/tensor/ops/matmul.h"
#include "apogee/tensor/ops/reduce.h"

namespace apogee::autograd {
namespace {

// Calls fn(group, first row, number of rows) for each group that has rows.
template <typename Fn>
void ForGroups(const std::vector<int64_t>& counts, const Fn& fn) {
  int64_t begin = 0;
  for (size_t g = 0; g < counts.size(); begin += counts[g++]) {
    if (counts[g] > 0) fn(g, begin, counts[g]);
  }
}

class GroupedLinearNode : public Node {
 public:
  GroupedLinearNode(const Tensor& x, const std::vector<int64_t>& counts,
                    const std::vector<Tensor>& weights)
      : x_(x.Detach().Contiguous()),
        counts_(counts),
        in_(x.size(1)),
        dtype_(x.dtype()),
        input_grad_dtype_(GradDType(x)) {
    weights_.reserve(weights.size());
    for (size_t g = 0; g < weights.size(); ++g) {
      weights_.push_back(counts[g] > 0 ? SavedTensor(weights[g]) : SavedTensor());
      weight_grad_dtypes_.push_back(GradDType(weights[g]));
    }
  }
  const char* name() const override { return "grouped_linear"; }
  bool IsWeightEdge(size_t edge) const override { return edge > 0; }

  std::vector<Tensor> Backward(std::vector<Tensor> grads, const BackwardContext& context) override {
    const Tensor dy = grads[0].To(dtype_).Contiguous();
    std::vector<Tensor> result(1 + weights_.size());
    if (context.part != GradPart::kInputs) {
      const Tensor x = x_.Take(context);
      std::vector<ops::GroupedProduct> products;
      std::vector<size_t> edges;
      ForGroups(counts_, [&](size_t g, int64_t begin, int64_t rows) {
        if (!wants(1 + g)) return;
        edges.push_back(1 + g);
        products.push_back({.a = dy.Slice(0, begin, rows),
                            .b = x.Slice(0, begin, rows),
                            .options = {.a_trans = true, .out_dtype = weight_grad_dtypes_[g]}});
      });
      const std::vector<Tensor> sums = ops::MatMulGroup(products);
      for (size_t i = 0; i < sums.size(); ++i) result[edges[i]] = sums[i];
    }
    if (context.part != GradPart::kWeights && wants(0)) result[0] = InputGrad(dy, context);
    return result;
  }

  void ReleaseSaved() override {
    x_.Reset();
    for (SavedTensor& weight : weights_) weight.Reset();
  }

 private:
  Tensor InputGrad(const Tensor& dy, const BackwardContext& context) {
    // Without rows, too: whoever made x may have to take part in a collective.
    const Tensor dx = Tensor::Empty({dy.size(0), in_}, input_grad_dtype_, dy.context());
    std::vector<ops::GroupedProduct> products;
    ForGroups(counts_, [&](size_t g, int64_t begin, int64_t rows) {
      products.push_back(
          {.a = dy.Slice(0, begin, rows),
           .b = weights_[g].Take(context),
           .options = {.out_dtype = input_grad_dtype_, .out = dx.Slice(0, begin, rows)}});
    });
    ops::MatMulGroup(products);
    return dx;
  }

  SavedTensor x_;
  std::vector<SavedTensor> weights_;
  std::vector<int64_t> counts_;
  int64_t in_;
  DType dtype_, input_grad_dtype_;
  std::vector<DType> weight_grad_dtypes_;
};

class WeightedSumNode : public Node {
 public:
  WeightedSumNode(const Tensor& rows, const Tensor& weight, const Tensor& index)
      : rows_(rows), weight_(weight), index_(index) {}
  const char* name() const override { return "weighted_sum"; }

  std::vector<Tensor> Backward(std::vector<Tensor> grads, const BackwardContext& context) override {
    const Tensor rows = rows_.Take(context), weight = weight_.Take(context);
    const Tensor dy = ops::Gather(grads[0].To(rows.dtype()), 0, index_.Take(context));
    std::vector<Tensor> result(2);
    if (wants(0)) result[0] = ops::Mul(dy, weight.View({weight.size(0), 1}));
    if (wants(1)) {
      const Tensor products = ops::Mul(dy, rows);
      const ops::Reduction over("weighted_sum", products.shape(), {1});
      result[1] = ops::Sum(products, over, /*keep_dims=*/false, weight.dtype());
    }
    return result;
  }

  void ReleaseSaved() override {
    rows_.Reset();
    weight_.Reset();
    index_.Reset();
  }

 private:
  SavedTensor rows_, weight_, index_;
};

void CheckGroups(const Tensor& x, const std::vector<int64_t>& counts,
                 const std::vector<Tensor>& weights) {
  APOGEE_CHECK(x.defined() && x.rank() == 2 && !weights.empty() && counts.size() == weights.size(),
               "grouped_linear: needs x [rows, in] and as many counts as weights, got ",
               counts.size(), " counts and ", weights.size(), " weights");
  const int64_t rows = std::accumulate(counts.begin(), counts.end(), int64_t{0});
  APOGEE_CHECK(rows == x.size(0), "grouped_linear: the counts add up to ", rows, ", but x ",
               x.shape(), " has ", x.size(0), " rows");
  for (size_t g = 0; g < weights.size(); ++g) {
    APOGEE_CHECK(counts[g] >= 0, "grouped_linear: counts[", g, "] is ", counts[g]);
    APOGEE_CHECK(weights[g].defined() && weights[g].rank() == 2 &&
                     weights[g].size(1) == x.size(1) && weights[g].size(0) == weights[0].size(0) &&
                     weights[g].dtype() == x.dtype(),
                 "grouped_linear: weights[", g, "] must be ", DTypeName(x.dtype()), " [",
                 weights[0].size(0), ", ", x.size(1), "], as x and weights[0] are");
  }
}

}  // namespace

Tensor TakeRows(const Tensor& x, const Tensor& ids) {
  const Tensor index = ops::IndexOfIds(ids, 0, 2);
  Tensor y = ops::Gather(x, 0, index);
  const auto gradient = [index, n = x.size(0), dtype = GradDType(x)](const Tensor& dy) {
    return ops::ScatterAdd(dy, 0, index, n).To(dtype);
  };
  if (AttachMap(y, "take_rows", x, gradient) != nullptr && DTypeSize(x.dtype()) == 2) {
    SetGradDType(y, DType::kF32);
  }
  return y;
}

Tensor GroupedLinear(const Tensor& x_in, const std::vector<int64_t>& counts,
                     const std::vector<Tensor>& weights, std::optional<DType> out_dtype) {
  CheckGroups(x_in, counts, weights);
  const Tensor x = x_in.Detach().Contiguous();
  const DType dtype = out_dtype.value_or(x.dtype());
  Tensor y = Tensor::Empty({x.size(0), weights[0].size(0)}, dtype, x.context());
  std::vector<ops::GroupedProduct> products;
  ForGroups(counts, [&](size_t g, int64_t begin, int64_t rows) {
    products.push_back(
        {.a = x.Slice(0, begin, rows),
         .b = weights[g].Detach(),
         .options = {.b_trans = true, .out_dtype = dtype, .out = y.Slice(0, begin, rows)}});
  });
  ops::MatMulGroup(products);
  std::vector<Tensor> inputs = {x_in};
  inputs.insert(inputs.end(), weights.begin(), weights.end());
  if (NeedsGrad(inputs)) {
    Attach(y, std::make_shared<GroupedLinearNode>(x_in, counts, weights), inputs);
  }
  return y;
}

Tensor WeightedSum(const Tensor& rows, const Tensor& weight, const Tensor& tokens,
                   int64_t num_tokens) {
  APOGEE_CHECK(rows.defined() && weight.defined() && rows.rank() == 2 &&
                   weight.shape() == Shape({rows.size(0)}) && weight.dtype() == rows.dtype(),
               "weighted_sum: needs rows [R, d] and weight [R] of one dtype");
  const Tensor index = ops::IndexOfIds(tokens, 0, 2);
  const Tensor weights = weight.Detach().Contiguous();
  const Tensor products = ops::Mul(rows.Detach(), weights.View({weight.size(0), 1}));
  Tensor y = ops::ScatterAdd(products, 0, index, num_tokens);
  if (NeedsGrad({rows, weight})) {
    Attach(y, std::make_shared<WeightedSumNode>(rows, weights, index), {rows, weight});
  }
  return y;
}

}  // namespace apogee::autograd
