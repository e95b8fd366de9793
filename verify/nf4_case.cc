// SPDX-License-Identifier: Apache-2.0

// Replays recorded weights in 4 bits: codes, scales and decoded values of bitsandbytes, and a
// folder of its codes with an adapter.
#include <filesystem>

#include "apogee/autograd/engine.h"
#include "apogee/booster/lora/adapter_files.h"
#include "apogee/booster/pretrained.h"
#include "apogee/nn/losses.h"
#include "apogee/nn/quantized/quantized_weight.h"
#include "apogee/tensor/ops/block_codes.h"
#include "apogee/verify/cases.h"
#include "apogee/verify/hf/hf_replay.h"

namespace apogee::verify {
namespace {

namespace fs = std::filesystem;

// Elements [at, at + count) of the bytes, as values of `dtype`.
std::vector<double> Section(const Tensor& bytes, int64_t at, int64_t count, DType dtype) {
  const Tensor own = bytes.Slice(0, at, count * DTypeSize(dtype)).Clone();
  return Tensor::Wrap(own.raw(), {count}, dtype, own.context()).ToVector<double>();
}

// Scales are means and differences of float32: two units in the last place.
Tolerances Ulps(bool nested) { return {.atol = 0, .rtol = nested ? 2.5e-7 : 0}; }

void CompareDecoded(const GoldenCase& golden, const Tensor& decoded, const Tolerances& tolerances,
                    Comparison& comparison) {
  if (golden.contains("dequantized")) {
    comparison.Elements(decoded.ToVector<double>(), golden.Values("dequantized"), tolerances,
                        "decoded values");
    return;
  }
  const std::vector<double> all = decoded.ToVector<double>();
  const std::vector<double> head = golden.Values("dequantized_head"),
                            tail = golden.Values("dequantized_tail");
  comparison.Elements({all.begin(), all.begin() + std::ssize(head)}, head, tolerances,
                      "first decoded values");
  comparison.Elements({all.end() - std::ssize(tail), all.end()}, tail, tolerances,
                      "last decoded values");
}

}  // namespace

Comparison ReplayNf4(const GoldenCase& golden, DType) {
  Comparison comparison;
  const Tensor input = golden.Load("input");
  const bool nested = golden.text("double_quant") == "true";
  const BlockCodes codes{.nested = nested, .numel = input.numel()};
  const Tensor bytes = ops::EncodeBlocks(input, codes).ToHost();
  comparison.Elements(Section(bytes, codes.map_begin(), BlockCodes::kMapSize, DType::kF32),
                      golden.Values("quant_map"), {}, "map");
  comparison.Elements(Section(bytes, codes.code_begin(), (codes.numel + 1) / 2, DType::kU8),
                      golden.Values("packed"), {}, "codes");
  const int64_t blocks = codes.num_blocks();
  if (nested) {
    comparison.Elements(Section(bytes, codes.nested_map_begin(), 256, DType::kF32),
                        golden.Values("nested_quant_map"), {}, "map of scales");
    comparison.Elements(Section(bytes, codes.scale_begin(), blocks, DType::kU8),
                        golden.Values("absmax_codes"), {}, "codes of scales");
    comparison.Elements(
        Section(bytes, codes.nested_begin(), codes.num_nested_blocks(), DType::kF32),
        golden.Values("nested_absmax"), Ulps(nested), "scales of scales");
    comparison.Elements(Section(bytes, codes.offset_begin(), 1, DType::kF32),
                        golden.Values("nested_offset"), Ulps(nested), "offset of scales");
  } else {
    comparison.Elements(Section(bytes, codes.scale_begin(), blocks, DType::kF32),
                        golden.Values("absmax"), {}, "scales");
  }
  const Tensor decoded = ops::DecodeBlocks(bytes, codes, {}, input.shape(), input.dtype());
  // A scale that is off by an ulp may round a 16-bit value the other way.
  const bool narrow = nested && DTypeSize(input.dtype()) == 2;
  CompareDecoded(golden, decoded, narrow ? Tolerances{.atol = 0, .rtol = 8e-3} : Ulps(nested),
                 comparison);
  return comparison;
}

Comparison ReplayNf4Folder(const std::string& path, const ContextPtr& context, DType dtype) {
  const std::string folder = fs::absolute(path).parent_path().string();
  const GoldenCase golden =
      ValueOrThrow(GoldenCase::Open(path, folder, context, "interop-nf4-folder/"));
  Comparison comparison;
  const Json recorded = golden.required("tolerance");
  const double rtol = recorded.at("rtol").get<double>();
  const auto tolerances = [&](const char* kind) {
    if (dtype == DType::kF64) return Tolerances{.atol = 1e-11, .rtol = 1e-10};
    return Tolerances{.atol = recorded.at(kind).get<double>(), .rtol = rtol};
  };
  nn::HfModel hf = ValueOrThrow(LoadPretrained(folder, context, {.dtype = dtype}));
  hf.module->Train(false);
  const HfReplay replay{folder, golden, dtype, HfTolerances(golden, dtype), comparison};
  const auto compare = [&](const std::string& start, const char* kind) {
    const Tensor logits = replay.Logits(hf);
    comparison.Elements(logits.Detach().ToVector<double>(), golden.Values(start + "logits"),
                        tolerances(kind), start + "logits");
    const Tensor loss = nn::CrossEntropyLoss()(logits, replay.Targets(hf));
    comparison.Number(loss.Item(), golden.Values(start + "loss").at(0), tolerances(kind),
                      start + "loss");
    return loss;
  };
  compare("ref64/", "logits_atol");
  const std::string adapter_folder = (fs::path(folder) / golden.text("adapter")).string();
  const AdapterConfig adapter = ValueOrThrow(
      AddPretrainedLora(*hf.module, adapter_folder, "default", {}, checkpoint::RealFileSystem()));
  autograd::Backward(compare("qlora/ref64/", "qlora_logits_atol"));
  for (const auto& [name, parameter] : nn::AdapterTensors(*hf.module, adapter.lora, "default")) {
    const std::string entry = "qlora/ref64/grad/" + AdapterFileName(name);
    comparison.Elements(parameter->grad().ToVector<double>(), golden.Values(entry),
                        tolerances("qlora_grad_atol"), entry);
  }
  for (const auto& quantized : hf.module->QuantizedWeights()) {
    const std::string entry = "dequantized/" + quantized->weight()->name();
    if (!golden.contains(entry)) continue;
    comparison.Elements(quantized->weight()->data().ToVector<double>(), golden.Values(entry), {},
                        entry);
  }
  return comparison;
}

}  // namespace apogee::verify
