// SPDX-License-Identifier: Apache-2.0

#include "apogee/autograd/functions/norm.h"

#include <array>
#include <memory>

#include "apogee/autograd/node.h"
#include "apogee/autograd/saved_tensor.h"
#include "apogee/tensor/ops/nn.h"

namespace apogee::autograd {
namespace {

// x in `dtype`.
Tensor In(DType dtype, const Tensor& x) {
  return !x.defined() || x.dtype() == dtype ? x : x.Detach().To(dtype);
}

// Whether the kernels are to compute in x's dtype, f32, and the result has the parameters'.
bool IsWider(const Tensor& x, const Tensor& weight) {
  return x.dtype() == DType::kF32 &&
         (weight.dtype() == DType::kBF16 || weight.dtype() == DType::kF16);
}

class NormNode : public Node {
 public:
  NormNode(const Tensor& x, const Tensor& weight, const ops::NormResult& forward, bool rms,
           bool bias, double weight_offset)
      : x_(x),
        weight_(weight),
        mean_(forward.mean),
        rstd_(forward.rstd),
        rms_(rms),
        bias_(bias),
        weight_offset_(weight_offset),
        grad_dtype_(GradDType(weight)) {}
  const char* name() const override { return rms_ ? "rms_norm" : "layer_norm"; }

  std::vector<Tensor> Backward(std::vector<Tensor> grads, const BackwardContext& context) override {
    const Tensor x = x_.Take(context), weight = weight_.Take(context);
    const Tensor mean = mean_.Take(context), rstd = rstd_.Take(context);
    ops::NormGrads result =
        ops::NormBackward(x, In(x.dtype(), weight), mean, rstd, In(x.dtype(), grads[0]), rms_,
                          bias_, grad_dtype_, weight_offset_);
    return {result.dx, result.dweight, result.dbias};
  }
  void ReleaseSaved() override {
    x_.Reset();
    weight_.Reset();
    mean_.Reset();
    rstd_.Reset();
  }

 private:
  SavedTensor x_, weight_, mean_, rstd_;
  bool rms_, bias_;
  double weight_offset_;
  DType grad_dtype_;
};

// The settings of a norm other than its operands.
struct NormSettings {
  double eps = 0;
  bool rms = false;
  double weight_offset = 0;
  bool recompute = false;
};

ops::NormResult Forward(const Tensor& x, const Tensor& weight, const Tensor& bias,
                        const NormSettings& settings) {
  const DType dtype = IsWider(x, weight) ? x.dtype() : weight.dtype();
  return ops::NormForward(x, In(dtype, weight), In(dtype, bias), settings.eps, settings.rms,
                          settings.weight_offset);
}

// The weight and bias are saved as a node saves them: their storage may change.
void Recompute(const Tensor& y, const Tensor& x, const Tensor& weight, const Tensor& bias,
               const NormSettings& settings) {
  const auto saved = std::make_shared<std::array<SavedTensor, 2>>(
      std::array{SavedTensor(weight), SavedTensor(bias)});
  SetOrigin(y, x, [saved, settings](const Tensor& input) {
    const BackwardContext keep{.keep_saved = true};
    const Tensor w = (*saved)[0].Take(keep), b = (*saved)[1].Take(keep);
    return In(w.dtype(), Forward(input, w, b, settings).y);
  });
}

Tensor Norm(const Tensor& x_in, const Tensor& weight, const Tensor& bias,
            const NormSettings& settings) {
  const Tensor x = x_in.Detach().Contiguous();
  const DType dtype = IsWider(x, weight) ? x.dtype() : weight.dtype();
  const ops::NormResult forward = Forward(x, weight, bias, settings);
  Tensor y = In(weight.dtype(), forward.y);
  if (NeedsGrad({x_in, weight, bias})) {
    Attach(y,
           std::make_shared<NormNode>(x, weight, forward, settings.rms, bias.defined(),
                                      settings.weight_offset),
           {x_in, weight, bias});
    SetGradDType(y, dtype);
    if (settings.recompute) Recompute(y, x, weight, bias, settings);
  }
  return y;
}

}  // namespace

Tensor LayerNorm(const Tensor& x, const Tensor& weight, const Tensor& bias, double eps,
                 bool recompute) {
  return Norm(x, weight, bias, {.eps = eps, .recompute = recompute});
}

Tensor RmsNorm(const Tensor& x, const Tensor& weight, double eps, double weight_offset,
               bool recompute) {
  return Norm(x, weight, Tensor(),
              {.eps = eps, .rms = true, .weight_offset = weight_offset, .recompute = recompute});
}

}  // namespace apogee::autograd
