// SPDX-License-Identifier: Apache-2.0

#include "apogee/autograd/head/head_loss.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <utility>
#include <vector>

#include "apogee/autograd/functions/loss_node.h"
#include "apogee/autograd/node.h"
#include "apogee/autograd/saved_tensor.h"
#include "apogee/tensor/ops/check.h"
#include "apogee/tensor/ops/cross_entropy_part.h"
#include "apogee/tensor/ops/elementwise.h"
#include "apogee/tensor/ops/matmul.h"

namespace apogee::autograd {
namespace {

// The results of forward that backward uses. Gradients are `scale` times those of the loss.
struct Gradients {
  Tensor dx, dweight;  // undefined: not wanted
  double scale = 1;
};

class HeadLossNode : public LossNode {
 public:
  HeadLossNode(const Tensor& x, const Tensor& weight, const Gradients& made,
               const HeadLossOptions& options, int64_t num_targets)
      : LossNode(num_targets),
        dx_(made.dx),
        dweight_(made.dweight),
        scale_(made.scale),
        x_shape_(x.shape()),
        x_dtype_(options.input_grad_dtype.value_or(GradDType(x))),
        weight_dtype_(GradDType(weight)) {}
  const char* name() const override { return "head_cross_entropy"; }
  bool IsWeightEdge(size_t edge) const override { return edge == 1; }

  std::vector<Tensor> Backward(std::vector<Tensor> grads, const BackwardContext& context) override {
    const Tensor factor = scale_ == 1 ? grads[0] : ops::Scale(grads[0], 1 / scale_);
    std::vector<Tensor> result(2);
    if (context.part != GradPart::kInputs && wants(1)) {
      result[1] = Times(dweight_.Take(context), factor).To(weight_dtype_);
    }
    if (context.part != GradPart::kWeights && wants(0)) {
      result[0] = Times(dx_.Take(context), factor).To(x_dtype_).View(x_shape_);
    }
    return result;
  }
  void ReleaseSaved() override {
    dx_.Reset();
    dweight_.Reset();
  }

 private:
  // In place if the graph has let go of the gradient.
  static Tensor Times(Tensor grad, const Tensor& factor) {
    if (!grad.is_sole_owner()) return ops::Mul(grad, factor);
    ops::ScaleInPlace(grad, factor);
    return grad;
  }

  SavedTensor dx_, dweight_;
  double scale_;
  Shape x_shape_;
  DType x_dtype_, weight_dtype_;
};

// The factor of the gradients, a power of two, so that it is undone exactly. Above 1 for f16 only,
// whose exponents are few.
double ScaleFor(DType dtype, int64_t num_targets) {
  if (dtype != DType::kF16 || num_targets == 0) return 1;
  return std::exp2(12 + std::floor(std::log2(static_cast<double>(num_targets))));
}

class Pieces {
 public:
  Pieces(const Tensor& x, const Tensor& weight, const Tensor& targets,
         const HeadLossOptions& options)
      : x_(x.View({x.numel() / x.size(-1), x.size(-1)})),
        weight_(weight),
        targets_(targets),
        options_(options),
        out_in_(options.layout == WeightLayout::kOutIn),
        columns_(weight.size(out_in_ ? 0 : 1)),
        part_(options.split != nullptr ? options.split->part
                                       : ops::VocabPart{.first = 0, .vocab_size = columns_}),
        stat_(ComputeDType(x.dtype())),
        row_loss_(Tensor::Empty({x_.size(0)}, stat_, x.context())),
        num_targets_(ops::CountOthers(targets_.ToHost(), options.ignore_index)) {
    gradients_.scale = ScaleFor(x.dtype(), num_targets_);
  }

  void Run(bool wants_x, bool wants_weight) {
    const int64_t rows = x_.size(0);
    if (wants_x) gradients_.dx = Tensor::Empty(x_.shape(), stat_, x_.context());
    if (wants_weight) {
      gradients_.dweight =
          Tensor::Empty(weight_.shape(), stat_, x_.context(), MemoryCategory::kGradient);
      if (rows == 0) gradients_.dweight.Fill(0);
    }
    const int64_t piece =
        std::max<int64_t>((rows + options_.num_pieces - 1) / options_.num_pieces, 1);
    for (int64_t first = 0; first < rows; first += piece) {
      RunPiece(first, std::min(piece, rows - first));
    }
  }

  // The mean over all tokens, summed in their order.
  Tensor Loss() const {
    return ops::SumLeading(row_loss_, 0, stat_, 1.0 / static_cast<double>(num_targets_));
  }
  const Gradients& gradients() const { return gradients_; }
  int64_t num_targets() const { return num_targets_; }

 private:
  void RunPiece(int64_t first, int64_t count) {
    const Tensor x = x_.Slice(0, first, count), targets = targets_.Slice(0, first, count);
    Tensor logits = ops::MatMul(x, weight_, {.b_trans = out_in_});
    if (options_.soft_cap) {
      logits = ops::UnaryForward(UnaryOp::kSoftCap, logits, *options_.soft_cap);
    }
    const Tensor lse = LogSumExp(logits, targets, first);
    if (!gradients_.dx.defined() && !gradients_.dweight.defined()) return;
    const Tensor one = Tensor::Full({}, stat_, gradients_.scale, x.context());
    Tensor capped;  // the cap's derivative follows from its result
    if (options_.soft_cap) capped = logits;
    Tensor dlogits =
        ops::CrossEntropyPartBackward(std::move(logits), targets, lse, part_, options_.ignore_index,
                                      one, num_targets_, options_.label_smoothing);
    if (options_.soft_cap) {
      dlogits =
          ops::UnaryBackward(UnaryOp::kSoftCap, capped, std::move(dlogits), *options_.soft_cap);
    }
    AddWeightGradient(x, dlogits, /*adds=*/first > 0);
    if (gradients_.dx.defined()) {
      ops::MatMul(
          dlogits, weight_,
          {.b_trans = !out_in_, .out_dtype = stat_, .out = gradients_.dx.Slice(0, first, count)});
    }
  }

  // Of the piece's rows over the whole vocabulary; keeps their losses.
  Tensor LogSumExp(const Tensor& logits, const Tensor& targets, int64_t first) {
    const int64_t count = targets.numel();
    const ops::CrossEntropyPart own = ops::CrossEntropyPartForward(
        logits, targets, part_, options_.ignore_index, options_.label_smoothing);
    const Tensor max = own.lse.Clone();
    if (options_.split != nullptr) options_.split->maximum(max);
    ops::CrossEntropyPartSums(own, max);
    if (options_.split != nullptr) options_.split->sum(own.packed);
    return ops::CrossEntropyPartRows(own, max, targets, options_.ignore_index,
                                     row_loss_.Slice(0, first, count));
  }

  void AddWeightGradient(const Tensor& x, const Tensor& dlogits, bool adds) {
    if (!gradients_.dweight.defined()) return;
    ops::MatMul(
        out_in_ ? dlogits : x, out_in_ ? x : dlogits,
        {.a_trans = true, .out_dtype = stat_, .out = gradients_.dweight, .accumulate = adds});
  }

  const Tensor x_, weight_, targets_;
  const HeadLossOptions& options_;
  const bool out_in_;
  const int64_t columns_;
  const ops::VocabPart part_;
  const DType stat_;
  const Tensor row_loss_;  // of all rows
  const int64_t num_targets_;
  Gradients gradients_;
};

void Check(const Tensor& x, const Tensor& weight, const Tensor& targets,
           const HeadLossOptions& options) {
  APOGEE_CHECK(options.num_pieces >= 1, "head_cross_entropy: num_pieces must be at least 1, got ",
               options.num_pieces);
  APOGEE_CHECK(options.label_smoothing >= 0 && options.label_smoothing <= 1,
               "head_cross_entropy: label_smoothing must be in [0, 1], got ",
               options.label_smoothing);
  const int in = options.layout == WeightLayout::kOutIn ? 1 : 0;
  APOGEE_CHECK(x.defined() && weight.defined() && targets.defined() && x.rank() >= 2 &&
                   weight.rank() == 2 && weight.size(in) == x.size(-1) && x.size(-1) > 0 &&
                   targets.numel() == x.numel() / x.size(-1),
               "head_cross_entropy: x ", x.shape(), ", weight ", weight.shape(), " and targets ",
               targets.shape(), " do not fit");
}

}  // namespace

Tensor HeadCrossEntropy(const Tensor& x, const Tensor& weight, const Tensor& targets,
                        const HeadLossOptions& options) {
  Check(x, weight, targets, options);
  const Tensor ids = targets.Detach().Contiguous();
  Pieces pieces(x.Detach().Contiguous(), weight.Detach().Contiguous(), ids.View({ids.numel()}),
                options);
  pieces.Run(NeedsGrad({x}), NeedsGrad({weight}));
  Tensor loss = pieces.Loss();
  if (NeedsGrad({x, weight})) {
    Attach(loss,
           std::make_shared<HeadLossNode>(x, weight, pieces.gradients(), options,
                                          pieces.num_targets()),
           {x, weight});
  }
  return loss;
}

}  // namespace apogee::autograd
