// SPDX-License-Identifier: Apache-2.0

#include "apogee/optim/orthogonal/newton_schulz.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <sstream>
#include <tuple>

#include "apogee/core/text/text.h"
#include "apogee/optim/core/kernels.h"
#include "apogee/tensor/ops/elementwise.h"
#include "apogee/tensor/ops/matmul.h"

namespace apogee::optim {
namespace {

const std::map<std::string, Coefficients>& Sets() {
  static const auto& sets = *new std::map<std::string, Coefficients>{
      {"simple", {{3.4445, -4.7750, 2.0315}}},
      {"quintic",
       {{4.0848, -6.8946, 2.9270},
        {3.9505, -6.3029, 2.6377},
        {3.7418, -5.5913, 2.3037},
        {2.8769, -3.1427, 1.2046},
        {2.8366, -3.0525, 1.2012}}},
      {"polar_express",
       {{8.156554524902461, -22.48329292557795, 15.878769915207462},
        {4.042929935166739, -2.808917465908714, 0.5000178451051316},
        {3.8916678022926607, -2.772484153217685, 0.5060648178503393},
        {3.285753657755655, -2.3681294933425376, 0.46449024233003106},
        {2.3465413258596377, -1.7097828382687081, 0.42323551169305323}}},
      {"cans",
       {{8.4703, -25.1081, 18.6293},
        {4.1828, -3.1087, 0.5806},
        {3.9619, -2.9541, 0.5630},
        {3.2866, -2.4647, 0.5074},
        {2.2737, -1.6447, 0.4162}}},
      {"deepseek4",
       {{3.4445, -4.7750, 2.0315},
        {3.4445, -4.7750, 2.0315},
        {3.4445, -4.7750, 2.0315},
        {3.4445, -4.7750, 2.0315},
        {3.4445, -4.7750, 2.0315},
        {3.4445, -4.7750, 2.0315},
        {3.4445, -4.7750, 2.0315},
        {3.4445, -4.7750, 2.0315},
        {2, -1.5, 0.5}}}};
  return sets;
}

Coefficients Spread(const Coefficients& triples, int64_t steps, bool cycles) {
  Coefficients spread;
  for (size_t i = 0; i < static_cast<size_t>(steps); ++i) {
    spread.push_back(triples[cycles ? i % triples.size() : std::min(i, triples.size() - 1)]);
  }
  return spread;
}

// Smaller matrices take longer in parts than as one product.
constexpr int64_t kLeastHalved = 256;

}  // namespace

absl::StatusOr<Coefficients> ParseCoefficients(const std::string& text, int64_t steps) {
  const auto found = Sets().find(text);
  if (found != Sets().end()) return Spread(found->second, steps, text == "quintic");
  std::vector<double> numbers;
  std::istringstream words(text);
  for (std::string word; std::getline(words, word, ',');) {
    size_t read = 0;
    try {
      numbers.push_back(std::stod(word, &read));
    } catch (const std::exception&) {
      read = 0;
    }
    if (word.empty() || read != word.size() || !std::isfinite(numbers.back())) {
      std::vector<std::string> names;
      for (const auto& [name, set] : Sets()) names.push_back(name);
      return InvalidArgument("coefficients: ", UnknownName("set", text, names),
                             ", or give numbers between commas");
    }
  }
  if (numbers.empty() || numbers.size() % 3 != 0) {
    return InvalidArgument("coefficients must be triples of numbers, got ", numbers.size(),
                           " numbers");
  }
  Coefficients triples;
  for (size_t i = 0; i < numbers.size(); i += 3) {
    triples.push_back({numbers[i], numbers[i + 1], numbers[i + 2]});
  }
  return Spread(triples, steps, /*cycles=*/false);
}

double FrobeniusNorm(const Tensor& x) {
  NormChunk chunk{x.raw(), x.dtype(), x.numel(), 0};
  const DeviceContext& context = *x.context();
  OptimKernelsFor(context).grad_norm(context, {NormKind::kL2, std::span(&chunk, 1)});
  return std::sqrt(chunk.result);
}

// Of large matrices the lower left quarter is copied, which saves a quarter of the work.
Tensor SymmetricProduct(const Tensor& x) {
  const int64_t n = x.size(-2), half = n / 2;
  if (n < kLeastHalved) return ops::MatMul(x, x, {.b_trans = true});
  const Tensor low = x.Slice(0, half, n - half);
  const Tensor result = Tensor::Empty({n, n}, x.dtype(), x.context(), MemoryCategory::kWorkspace);
  const Tensor top = result.Slice(0, 0, half), bottom = result.Slice(0, half, n - half);
  std::ignore = ops::MatMul(x.Slice(0, 0, half), x, {.b_trans = true, .out = top});
  bottom.Slice(1, half, n - half).CopyFrom(ops::MatMul(low, low, {.b_trans = true}));
  bottom.Slice(1, 0, half).CopyFrom(top.Slice(1, half, n - half).Transpose(0, 1));
  return result;
}

Tensor Advanced(const Tensor& x, const Tensor& gram, const std::array<double, 3>& triple) {
  const auto& [a, b, c] = triple;
  const Tensor square = SymmetricProduct(gram);  // gram is symmetric
  ops::Accumulate(square, gram, b, c);
  const Tensor next = ops::MatMul(square, x);
  ops::Accumulate(next, x, a);
  return next;
}

double NewtonSchulz::Divisor(double norm) const {
  return clamps_norm ? std::max(norm, eps) : norm_scale * norm + eps;
}

namespace {

// X of the first step: [m, n] with m <= n.
Tensor Scaled(const Tensor& g, const NewtonSchulz& settings) {
  const bool tall = g.size(0) > g.size(1);
  return ops::Scale(tall ? g.Transpose(0, 1).Contiguous() : g,
                    1 / settings.Divisor(FrobeniusNorm(g)),
                    settings.bf16 ? DType::kBF16 : g.dtype());
}

// O in the shape and dtype of g.
Tensor Finished(const Tensor& x, const Tensor& g) {
  return (g.size(0) > g.size(1) ? x.Transpose(0, 1).Contiguous() : x).To(g.dtype());
}

Tensor Iterated(Tensor x, const Coefficients& coefficients) {
  for (const auto& triple : coefficients) x = Advanced(x, SymmetricProduct(x), triple);
  return x;
}

}  // namespace

Tensor Orthogonalized(const Tensor& g, const NewtonSchulz& settings) {
  return Finished(Iterated(Scaled(g, settings), settings.coefficients), g);
}

void Orthogonalize(const std::vector<Tensor>& matrices, const NewtonSchulz& settings,
                   const std::function<void(size_t i, Tensor result)>& take) {
  const Tensor& first = matrices.front();
  const int64_t m = std::min(first.size(0), first.size(1)),
                n = std::max(first.size(0), first.size(1));
  const int64_t count = std::ssize(matrices);
  if (count == 1 || m >= kLeastHalved) {
    for (size_t i = 0; i < matrices.size(); ++i) take(i, Orthogonalized(matrices[i], settings));
    return;
  }
  const Tensor batch = Tensor::Empty({count, m, n}, settings.bf16 ? DType::kBF16 : first.dtype(),
                                     first.context(), MemoryCategory::kWorkspace);
  const auto place = [&](const Tensor& of, size_t i) {
    return of.Slice(0, static_cast<int64_t>(i), 1).View({m, n});
  };
  for (size_t i = 0; i < matrices.size(); ++i) {
    place(batch, i).CopyFrom(Scaled(matrices[i], settings));
  }
  const Tensor x = Iterated(batch, settings.coefficients);
  for (size_t i = 0; i < matrices.size(); ++i) take(i, Finished(place(x, i), matrices[i]));
}

}  // namespace apogee::optim
