// SPDX-License-Identifier: Apache-2.0

#include "apogee/optim/grad_clip.h"

#include <cmath>
#include <limits>

#include "apogee/optim/core/kernels.h"

namespace apogee::optim {
namespace {

// The present gradients, all on one device. They will be changed in place, so a strided gradient is
// first replaced by a contiguous copy.
std::vector<Tensor> PresentGrads(const std::vector<autograd::ParameterPtr>& params) {
  std::vector<Tensor> grads;
  for (const autograd::ParameterPtr& parameter : params) {
    APOGEE_CHECK(parameter != nullptr, "gradient clipping: a parameter is null");
    const auto place = parameter->grad_place();
    APOGEE_CHECK(place == nullptr, "gradient clipping: parameter \"", parameter->name(),
                 "\": ", place->where);
    if (!parameter->requires_grad() || !parameter->has_grad()) continue;
    if (!parameter->grad().is_contiguous()) parameter->set_grad(parameter->grad().Contiguous());
    grads.push_back(parameter->grad());
    APOGEE_CHECK(grads.back().device() == grads[0].device(), "gradient clipping: parameter \"",
                 parameter->name(), "\" is on ", grads.back().device().ToString(), ", others on ",
                 grads[0].device().ToString());
  }
  return grads;
}

// Refuses parts: clipping needs the norm of the whole gradient, and ranks would get different
// norms.
void CheckWhole(const std::vector<autograd::ParameterPtr>& params) {
  for (const autograd::ParameterPtr& parameter : params) {
    APOGEE_CHECK(parameter == nullptr || !parameter->is_part(), "gradient norm: parameter \"",
                 parameter->name(),
                 "\" is cut, and this rank holds only a part of it; set the plugin's max_norm, and "
                 "read the norm from Optimizer::last_step()");
  }
}

double NormOf(const std::vector<Tensor>& grads, NormKind kind) {
  if (grads.empty()) return 0;
  std::vector<NormChunk> chunks;
  for (const Tensor& grad : grads) chunks.push_back({grad.raw(), grad.dtype(), grad.numel(), 0});
  const DeviceContext& context = *grads[0].context();
  OptimKernelsFor(context).grad_norm(context, {kind, chunks});
  double total = 0;
  for (const NormChunk& chunk : chunks) {
    const double part = chunk.result;
    total = kind != NormKind::kMax ? total + part : part > total || part != part ? part : total;
  }
  return kind == NormKind::kL2 ? std::sqrt(total) : total;
}

void ScaleGrads(const std::vector<Tensor>& grads, double factor, double limit) {
  if (grads.empty()) return;
  std::vector<ScaleChunk> chunks;
  for (const Tensor& grad : grads) chunks.push_back({grad.raw(), grad.dtype(), grad.numel()});
  const DeviceContext& context = *grads[0].context();
  OptimKernelsFor(context).grad_scale(context, {factor, limit, chunks});
}

}  // namespace

double ClipGradNorm(const std::vector<autograd::ParameterPtr>& params, const ClipOptions& options) {
  APOGEE_CHECK(options.max_norm > 0, "ClipGradNorm: max_norm is ", options.max_norm,
               ", must be above 0");
  CheckWhole(params);
  const std::vector<Tensor> grads = PresentGrads(params);
  const double norm = NormOf(grads, options.norm_kind);
  APOGEE_CHECK(!options.error_if_nonfinite || std::isfinite(norm),
               "ClipGradNorm: the gradient norm is ", norm, "; the gradients were left alone");
  const double factor = options.max_norm / (norm + 1e-6);
  if (!(factor >= 1)) ScaleGrads(grads, factor, std::numeric_limits<double>::infinity());
  return norm;
}

void ClipGradValue(const std::vector<autograd::ParameterPtr>& params, double limit) {
  APOGEE_CHECK(limit > 0, "ClipGradValue: the limit is ", limit, ", must be above 0");
  ScaleGrads(PresentGrads(params), 1, limit);
}

double GradNorm(const std::vector<autograd::ParameterPtr>& params, NormKind kind) {
  CheckWhole(params);
  return NormOf(PresentGrads(params), kind);
}

}  // namespace apogee::optim
