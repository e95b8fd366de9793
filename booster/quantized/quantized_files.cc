// SPDX-License-Identifier: Apache-2.0

#include "apogee/booster/quantized/quantized_files.h"

#include <cstring>

#include "apogee/booster/quantized/quant_state.h"
#include "apogee/checkpoint/format/tensor_file.h"
#include "apogee/core/text/printable.h"
#include "apogee/core/text/text.h"
#include "apogee/nn/quantized/quantized_weight.h"
#include "apogee/tensor/cpu/cpu_context.h"
#include "apogee/tensor/kernels/block_codes.h"

namespace apogee {
namespace {

using checkpoint::HfWeights;
using internal::Concat;

constexpr const char* kStateEnd = ".quant_state.bitsandbytes__";
constexpr int64_t kMaxStateBytes = 4096;

// The whole tensor, which must have `numel` elements of `dtype`.
absl::StatusOr<Tensor> Read(const HfWeights& weights, const std::string& name, int64_t numel,
                            DType dtype) {
  const auto found = weights.tensors().find(name);
  if (found == weights.tensors().end()) return InvalidArgument("\"", name, "\" is missing");
  const Shape shape(found->second.entry->shape);
  if (shape.numel() != numel) {
    return InvalidArgument("\"", name, "\" is ", shape, ", and must have ", numel, " elements");
  }
  if (checkpoint::TensorDType(found->second.entry->dtype) != dtype) {
    return InvalidArgument("\"", name, "\" has elements of ", Printable(found->second.entry->dtype),
                           ", and must have ", DTypeName(dtype));
  }
  const Tensor value = Tensor::Empty(shape, dtype, CpuContext());
  APOGEE_RETURN_IF_ERROR(weights.Read(name, Layout(shape), value));
  return value;
}

absl::StatusOr<QuantState> ReadState(const HfWeights& weights, const std::string& name,
                                     const std::string& path) {
  const auto found = weights.tensors().find(name);
  const int64_t bytes = Shape(found->second.entry->shape).numel();
  if (bytes > kMaxStateBytes) {
    return InvalidArgument(path, " has ", bytes, " bytes; at most ", kMaxStateBytes, " are read");
  }
  APOGEE_ASSIGN_OR_RETURN(const Tensor text, Read(weights, name, bytes, DType::kU8));
  return ParseQuantState(std::string(static_cast<const char*>(text.raw()), bytes), path);
}

// The weight's bytes, as BlockCodes has them.
absl::StatusOr<Tensor> ReadBytes(const HfWeights& weights, const std::string& name,
                                 const BlockCodes& codes, const QuantState& state) {
  const Tensor bytes =
      Tensor::Empty({codes.bytes()}, DType::kU8, CpuContext(), MemoryCategory::kParameter);
  const auto copy = [&](const std::string& part, int64_t numel, DType dtype,
                        int64_t at) -> absl::Status {
    APOGEE_ASSIGN_OR_RETURN(const Tensor value, Read(weights, part, numel, dtype));
    std::memcpy(bytes.data<uint8_t>() + at, value.raw(), static_cast<size_t>(value.bytes()));
    return absl::OkStatus();
  };
  APOGEE_RETURN_IF_ERROR(
      copy(name + ".quant_map", BlockCodes::kMapSize, DType::kF32, codes.map_begin()));
  APOGEE_RETURN_IF_ERROR(copy(name, (codes.numel + 1) / 2, DType::kU8, codes.code_begin()));
  APOGEE_RETURN_IF_ERROR(copy(name + ".absmax", codes.num_blocks(),
                              codes.nested ? DType::kU8 : DType::kF32, codes.scale_begin()));
  if (!codes.nested) return bytes;
  APOGEE_RETURN_IF_ERROR(copy(name + ".nested_quant_map", BlockCodes::kNestedMapSize, DType::kF32,
                              codes.nested_map_begin()));
  APOGEE_RETURN_IF_ERROR(
      copy(name + ".nested_absmax", codes.num_nested_blocks(), DType::kF32, codes.nested_begin()));
  std::memcpy(bytes.data<uint8_t>() + codes.offset_begin(), &state.offset, sizeof(float));
  return bytes;
}

}  // namespace

absl::StatusOr<std::vector<WeightInCodes>> FindCodes(nn::Module& model, HfWeights& weights,
                                                     const std::string& dir) {
  std::vector<std::string> names;
  for (const auto& [name, place] : weights.tensors()) {
    if (const size_t end = name.find(kStateEnd); end != std::string::npos) {
      names.push_back(name.substr(0, end));
    }
  }
  std::string problems;
  std::vector<WeightInCodes> found;
  for (const std::string& name : names) {
    const autograd::ParameterPtr weight = model.FindParameter(name);
    nn::Module* owner = nullptr;
    for (nn::Module* module : model.Modules()) {
      if (weight != nullptr && module->Declares(*weight)) owner = module;
    }
    if (owner == nullptr) {
      AddProblem(problems, "\"", name, "\" has codes, and no place in this model");
      continue;
    }
    const std::string state_name = name + kStateEnd + "nf4";
    if (!weights.tensors().contains(state_name)) {
      AddProblem(problems, "\"", name, "\" has other codes than nf4, which is all that is read");
      continue;
    }
    const absl::StatusOr<QuantState> state =
        ReadState(weights, state_name, Concat(dir, ": \"", state_name, "\""));
    if (!state.ok()) {
      AddProblem(problems, Message(state.status()));
      continue;
    }
    if (!(Shape(state->shape) == weight->shape())) {
      AddProblem(problems, "\"", name, "\" is ", Shape(state->shape), ", and this model needs ",
                 weight->shape());
      continue;
    }
    const BlockCodes codes{.nested = state->nested, .numel = weight->shape().numel()};
    const absl::StatusOr<Tensor> bytes = ReadBytes(weights, name, codes, *state);
    if (!bytes.ok()) {
      AddProblem(problems, Message(bytes.status()));
      continue;
    }
    found.push_back({owner, weight, state->nested, *bytes});
  }
  if (!problems.empty())
    return InvalidArgument(dir, ": the weights in 4 bits do not fit:", problems);
  for (const std::string& name : names) weights.Remove(name);
  return found;
}

void TakeCodes(const std::vector<WeightInCodes>& found) {
  for (const auto& [owner, weight, nested, bytes] : found) {
    const DType dtype = weight->dtype();
    const ContextPtr context = weight->context();
    weight->set_lazy_value({dtype, context, [] { return Tensor(); }});  // not encoded: never read
    owner->QuantizeParameter(weight, {.nested = nested})
        .SetBytes(bytes.To(context, MemoryCategory::kParameter), dtype);
  }
}

}  // namespace apogee
