// SPDX-License-Identifier: Apache-2.0

#include "apogee/nn/init.h"

#include <cmath>

#include "apogee/tensor/ops/nn.h"

namespace apogee::nn {

Init Init::Named(const std::string& name, const Shape& shape) {
  if (name == "zeros") return Constant(0);
  if (name == "ones") return Constant(1);
  const bool xavier = name == "xavier_uniform" || name == "xavier_normal";
  const bool kaiming = name == "kaiming_uniform" || name == "kaiming_normal";
  const bool normal = name.ends_with("_normal");
  APOGEE_CHECK(xavier || kaiming, "init: there is no \"", name,
               "\"; names are zeros, ones, xavier_uniform, xavier_normal, kaiming_uniform and "
               "kaiming_normal");
  APOGEE_CHECK(shape.rank() >= 2 && shape.numel() > 0, "init: ", name,
               " needs a weight [out, in, ..], got ", shape,
               "; for vectors use zeros, ones, Init::Normal or Init::Uniform");
  const auto size = static_cast<double>(shape.numel());
  const double in = size / static_cast<double>(shape[0]),
               out = size / static_cast<double>(shape[1]);
  const double std = xavier ? std::sqrt(2 / (in + out)) : std::sqrt(2 / in);
  return normal ? Normal(0, std) : Uniform(-std::sqrt(3.0) * std, std::sqrt(3.0) * std);
}

Tensor FirstValue(const Shape& shape, const Init& init, const PhiloxKey& key, DType dtype,
                  const ContextPtr& context) {
  const Tensor value = Tensor::Empty(shape, dtype, context, MemoryCategory::kParameter);
  switch (init.kind) {
    case Init::Kind::kConstant:
      value.Fill(init.a);
      break;
    case Init::Kind::kNormal:
      ops::FillNormal(value, init.a, init.b, key);
      break;
    case Init::Kind::kUniform:
      ops::FillUniform(value, init.a, init.b, key);
      break;
  }
  return value;
}

}  // namespace apogee::nn
