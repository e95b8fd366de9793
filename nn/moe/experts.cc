// SPDX-License-Identifier: Apache-2.0

#include "apogee/nn/moe/experts.h"

#include "apogee/autograd/functions/activation.h"
#include "apogee/autograd/functions/grouped.h"
#include "apogee/nn/layers.h"

namespace apogee::nn {
namespace {

// Every rank reads every value, also those of experts without rows: reading may be a collective.
std::vector<Tensor> ValuesOf(const std::vector<ParameterPtr>& parameters, size_t first,
                             size_t count) {
  std::vector<Tensor> values;
  values.reserve(count);
  for (size_t i = first; i < first + count; ++i) values.push_back(parameters[i]->value());
  return values;
}

}  // namespace

Experts::Experts(const ExpertsOptions& o) : activation_(o.activation) {
  const auto add = [this](int64_t expert, const std::string& name, const Shape& shape,
                          const Init& init) {
    return RegisterParameter(std::to_string(expert) + "." + name + ".weight", shape, init);
  };
  for (int64_t e = 0; e < o.num_experts; ++e) {
    const Shape in{o.intermediate_size, o.hidden_size}, out{o.hidden_size, o.intermediate_size};
    matrices_.gate.push_back(add(e, o.names.expert_gate, in, o.init));
    matrices_.up.push_back(add(e, o.names.expert_up, in, o.init));
    matrices_.down.push_back(add(e, o.names.expert_down, out, o.residual_init));
  }
}

Tensor Experts::Run(const Tensor& rows, const std::vector<int64_t>& counts) {
  counts_ = counts;
  return (*this)(rows);
}

Tensor Experts::Forward(const Tensor& rows) { return Compute(rows, counts_, 0); }

Tensor Experts::Compute(const Tensor& rows, const std::vector<int64_t>& counts,
                        size_t first) const {
  const auto values = [&](const std::vector<ParameterPtr>& parameters) {
    return ValuesOf(parameters, first, counts.size());
  };
  const Tensor gate = autograd::GroupedLinear(rows, counts, values(matrices_.gate));
  const Tensor up = autograd::GroupedLinear(rows, counts, values(matrices_.up));
  const Tensor hidden = autograd::Gated(activation_, gate, up);
  const DType wide = rows.dtype() == DType::kF64 ? DType::kF64 : DType::kF32;
  return autograd::GroupedLinear(hidden, counts, values(matrices_.down), wide);
}

}  // namespace apogee::nn
