// SPDX-License-Identifier: Apache-2.0

#include "apogee/optim/orthogonal/gram_sums.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "apogee/core/error.h"
#include "apogee/optim/core/kernels.h"
#include "apogee/tensor/ops/elementwise.h"

namespace apogee::optim {
namespace {

constexpr int kMostExponent = 120;  // of an f32

}  // namespace

int64_t GramParts::NumSums() const {
  int64_t count = 0;
  for (const int64_t side : sides) count += side * side + 1;  // A, and the sum of squares
  return count;
}

std::optional<GramParts> PartsForGram(const Layout& layout,
                                      const std::vector<MatrixPart>& matrices) {
  const int64_t cut = layout.cut_multiple(), cols = matrices.front().cols;
  const MatrixPart& last = matrices.back();
  const int64_t rows = last.first_row + last.rows, numel = rows * cols;
  const bool of_rows = cut % cols == 0 && cut < numel && matrices.size() == 1 && rows >= cols;
  const bool of_columns =
      cut > 1 && cut < cols && cols % cut == 0 &&
      std::ranges::all_of(matrices, [&](const MatrixPart& part) { return part.rows <= cols; });
  if (!of_rows && !of_columns) return std::nullopt;
  GramParts parts{.tall = of_rows, .num_parts = of_rows ? numel / cut : cols / cut};
  for (const MatrixPart& part : matrices) parts.sides.push_back(of_rows ? cols : part.rows);
  const int64_t own = layout.local_numel(), whole = of_rows ? cols : rows;
  APOGEE_CHECK(own % whole == 0, "layout of ", layout.logical_shape(), ": ", own,
               " elements are no parts of ", whole, " each, but cut_multiple is ", cut);
  if (own == 0) return parts;
  if (of_rows) {
    parts.own = {{0, own / cols, cols}};
  } else {
    for (const MatrixPart& part : matrices) {
      parts.own.push_back({part.first_row, part.rows, own / rows});
    }
  }
  return parts;
}

bool GramCostsLess(const GramParts& parts, const std::vector<MatrixPart>& matrices, int64_t steps) {
  double by_owner = 0, by_sums = 0;
  const auto count = static_cast<double>(steps), ranks = static_cast<double>(parts.num_parts);
  for (size_t i = 0; i < matrices.size(); ++i) {
    const auto m = static_cast<double>(parts.sides[i]);
    const double n = static_cast<double>(matrices[i].rows * matrices[i].cols) / m;
    const double products = 4 * m * m * n, square = 2 * m * m * m;
    by_owner += count * (products + square) / ranks + kOperationsPerNumber * 2 * m * n;
    by_sums += count * (products / ranks + square) + kOperationsPerNumber * count * m * m;
  }
  return by_sums < by_owner;
}

GramIteration::GramIteration(const Tensor& own, GramParts parts, NewtonSchulz settings)
    : own_(own), parts_(std::move(parts)), settings_(std::move(settings)) {}

double GramIteration::Largest() const {
  if (parts_.own.empty()) return 0;
  NormChunk chunk{own_.raw(), own_.dtype(), own_.numel(), 0};
  const DeviceContext& context = *own_.context();
  OptimKernelsFor(context).grad_norm(context, {NormKind::kMax, std::span(&chunk, 1)});
  return chunk.result;
}

void GramIteration::SetLargest(double largest) {
  int exponent = 0;
  if (std::isfinite(largest)) std::frexp(largest, &exponent);
  power_ = std::ldexp(1, std::clamp(exponent, -kMostExponent, kMostExponent));
  for (const MatrixPart& part : parts_.own) {
    const Tensor x = part.Of(own_);
    x_.push_back(ops::Scale(parts_.tall ? x.Transpose(0, 1).Contiguous() : x, 1 / power_));
  }
  own_ = Tensor();
}

void GramIteration::Write(const Tensor& to) const {
  int64_t at = 0;
  for (const Tensor& x : x_) {
    const int64_t side = x.size(0), count = side * side;
    to.Slice(0, at, count).View({side, side}).CopyFrom(SymmetricProduct(x));
    const double norm = step_ == 0 ? FrobeniusNorm(x) : 0;
    to.Slice(0, at + count, 1).Fill(norm * norm);
    at += count + 1;
  }
}

void GramIteration::Advance(const Tensor& sums) {
  int64_t at = 0;
  for (Tensor& x : x_) {
    const int64_t side = x.size(0), count = side * side;
    Tensor gram = sums.Slice(0, at, count).View({side, side});
    if (step_ == 0) {
      const double norm = std::sqrt(sums.Slice(0, at + count, 1).Item());
      const double factor = power_ / settings_.Divisor(power_ * norm);
      x = ops::Scale(x, factor);
      gram = ops::Scale(gram, factor * factor);
    }
    x = Advanced(x, gram, settings_.coefficients[step_]);
    at += count + 1;
  }
  ++step_;
}

Tensor GramIteration::Result(const std::vector<double>& scales) const {
  if (x_.empty()) return {};
  const int64_t rows = parts_.own.back().first_row + parts_.own.back().rows;
  const Tensor result = Tensor::Empty({rows * parts_.own.back().cols}, x_[0].dtype(),
                                      x_[0].context(), MemoryCategory::kWorkspace);
  for (size_t i = 0; i < x_.size(); ++i) {
    const Tensor scaled = ops::Scale(x_[i], scales[i]);
    parts_.own[i].Of(result).CopyFrom(parts_.tall ? scaled.Transpose(0, 1) : scaled);
  }
  return result;
}

}  // namespace apogee::optim
