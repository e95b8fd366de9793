// SPDX-License-Identifier: Apache-2.0

#include "apogee/nn/convolution.h"

#include <cmath>

#include "apogee/autograd/functions/shape.h"
#include "apogee/autograd/node.h"
#include "apogee/nn/layers.h"

namespace apogee::nn {
namespace {

std::string TextOf(const Extent& extent) {
  return ConfigText(std::vector<int64_t>{extent.height, extent.width});
}

}  // namespace

Convolution::Convolution(Function function, bool transposed, int64_t in, int64_t out,
                         const std::vector<int64_t>& kernel, const ConvOptions& options, bool bias)
    : function_(function), transposed_(transposed), options_(options) {
  const int64_t groups = options.groups;
  APOGEE_CHECK(in > 0 && out > 0, "convolution: channels must be positive, got ", in, " and ", out);
  APOGEE_CHECK(groups > 0 && in % groups == 0 && out % groups == 0,
               "convolution: groups must divide the channels ", in, " and ", out, ", got ", groups);
  std::vector<int64_t> sizes{transposed ? in : out, (transposed ? out : in) / groups};
  int64_t fan_in = sizes[1];
  for (const int64_t size : kernel) {
    APOGEE_CHECK(size > 0, "convolution: the kernel's size must be positive, got ", size);
    sizes.push_back(size);
    fan_in *= size;
  }
  const double bound = 1.0 / std::sqrt(static_cast<double>(fan_in));
  weight_ = RegisterParameter("weight", Shape(sizes), Init::Uniform(-bound, bound));
  if (bias) bias_ = RegisterParameter("bias", {out}, Init::Uniform(-bound, bound));
}

Tensor Convolution::Forward(const Tensor& x) {
  APOGEE_CHECK(!autograd::IsCut(x), "convolution \"", full_name(), "\": its input ", x.shape(),
               " holds only this rank's channels of an activation that the plan shards, and no "
               "rule of the plan names it; add a rule of style row for it, or gather the input "
               "(ParallelStyle::kColumnGather of the layer before)");
  return Apply(InputOf(*this, x, *weight_), weight_->value(), autograd::ValueOf(bias_), options_);
}

void Convolution::DescribeConfig(ConfigTexts& texts) const {
  texts.function["stride"] = TextOf(options_.stride);
  texts.function["padding"] = options_.same_padding ? "same" : TextOf(options_.padding);
  texts.function["dilation"] = TextOf(options_.dilation);
  texts.function["groups"] = ConfigText(options_.groups);
  if (transposed_) texts.function["output_padding"] = TextOf(options_.output_padding);
}

void Pool::DescribeConfig(ConfigTexts& texts) const {
  texts.function["kernel"] = TextOf(kernel_);
  texts.function["stride"] = TextOf(options_.stride.value_or(kernel_));
  texts.function["padding"] = TextOf(options_.padding);
  texts.function["count_padding"] = ConfigText(options_.count_padding);
}

Tensor Flatten::Forward(const Tensor& x) {
  APOGEE_CHECK(x.defined() && x.rank() >= 1, "flatten: x must have at least one dim, of samples");
  const int64_t samples = x.size(0);
  int64_t columns = 1;
  for (int dim = 1; dim < x.rank(); ++dim) columns *= x.size(dim);
  return autograd::View(autograd::Contiguous(x), {samples, columns});
}

}  // namespace apogee::nn
