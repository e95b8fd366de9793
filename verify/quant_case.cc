// SPDX-License-Identifier: Apache-2.0

// Replays the recorded code maps and block-wise quantizations.
#include <cmath>

#include "apogee/optim/lowbit/quantized_state.h"
#include "apogee/verify/cases.h"

namespace apogee::verify {
namespace {

using internal::Concat;
using optim::CodeMap;

std::vector<double> Map(bool is_signed, int max_exponent_bits, int total_bits) {
  const auto map = DynamicMap(is_signed, max_exponent_bits, total_bits);
  return {map.begin(), map.end()};
}

void CompareMaps(const GoldenCase& golden, Comparison& comparison) {
  const double rtol = golden.required("tolerance").value("rtol", 0.0);
  for (const auto& [entry, ignored] : golden.file().entries()) {
    if (!entry.starts_with("code/")) continue;
    int total_bits = 8;
    if (const size_t bits = entry.find("_bits"); bits != std::string::npos) {
      total_bits = std::stoi(entry.substr(bits + 5));
    }
    const int exponent_bits = total_bits == 8 ? 7 : std::min(3, total_bits - 1);
    comparison.Elements(Map(!entry.starts_with("code/unsigned"), exponent_bits, total_bits),
                        golden.Values(entry), {0, rtol}, entry);
  }
}

// Codes must be equal where the nearest value is clear, and may differ by one near a tie. In a
// block whose scale is 0 every code means 0.
void CompareCodes(const GoldenCase& golden, const std::string& name, int64_t block,
                  Comparison& comparison) {
  const Tensor input = golden.Load("input/" + name);
  const bool is_signed = golden.Values("code_map/" + name).at(0) == 0;
  const CodeMap& map = is_signed ? CodeMap::Signed() : CodeMap::Unsigned();
  const optim::QuantizedState state(
      Tensor::Zeros(input.shape(), DType::kU8, golden.context()),
      Tensor::Zeros(optim::BlockScaleShape(input.numel(), block), DType::kF32, golden.context()),
      map, block);
  state.Quantize(input);

  const std::vector<double> scales = state.scales().ToVector<double>();
  comparison.Elements(scales, golden.Values("absmax/" + name), {}, "absmax of " + name);
  const std::vector<double> codes = state.codes().ToVector<double>();
  const std::vector<double> expected = golden.Values("codes/" + name);
  const std::vector<double> margin = golden.Values("tie_margin/" + name);
  APOGEE_CHECK(expected.size() == codes.size() && margin.size() == codes.size(), "case ",
               golden.label(), ": ", name, ": codes, input and tie_margin differ in size");
  for (size_t i = 0; i < codes.size(); ++i) {
    if (scales[i / static_cast<size_t>(block)] == 0) continue;
    const double allowed = margin[i] > 1e-5 ? 0 : 1;
    if (std::fabs(codes[i] - expected[i]) > allowed) {
      comparison.Fail(
          Concat("code ", i, " of ", name, " is ", codes[i], ", recorded ", expected[i]));
      return;
    }
  }
  // Decode the recorded codes, so that only decoding is compared.
  state.codes().CopyFrom(golden.Load("codes/" + name));
  const double rtol = golden.required("tolerance").at("dequant_rtol").get<double>();
  comparison.Elements(state.Dequantize(DType::kF32).ToVector<double>(),
                      golden.Values("dequant/" + name), {0, rtol}, "dequantized " + name);
}

}  // namespace

Comparison ReplayQuant(const GoldenCase& golden, DType) {
  Comparison comparison;
  CompareMaps(golden, comparison);
  const Json hyper = golden.required("hyper");
  for (const auto& [entry, ignored] : golden.file().entries()) {
    if (!entry.starts_with("input/")) continue;
    CompareCodes(golden, entry.substr(6), hyper.at("blocksize").get<int64_t>(), comparison);
  }
  return comparison;
}

}  // namespace apogee::verify
