// SPDX-License-Identifier: Apache-2.0

#include "apogee/tools/diff_tensors.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <map>
#include <optional>
#include <vector>

#include "apogee/core/text/printable.h"
#include "apogee/tensor/ops/float8.h"

namespace apogee::tools {
namespace {

// Values are compared as doubles, kPiece elements at a time.
constexpr int64_t kPiece = int64_t{1} << 20;

struct Difference {
  double largest = 0;  // |a - b|
  double scale = 0;    // largest |a|
  double relative() const { return largest == 0 ? 0 : largest / scale; }
};

std::vector<double> ValuesOf(const Tensor& x) {
  return (IsFloat8(x.dtype()) ? ops::CastFromFloat8(x, DType::kF64) : x).ToVector<double>();
}

// `largest` is NaN if an element is NaN on one side only.
Difference Compare(const Tensor& a, const Tensor& b) {
  Difference difference;
  for (int64_t at = 0; at < a.numel(); at += kPiece) {
    const int64_t count = std::min(kPiece, a.numel() - at);
    const std::vector<double> x = ValuesOf(a.Slice(0, at, count));
    const std::vector<double> y = ValuesOf(b.Slice(0, at, count));
    for (size_t i = 0; i < x.size(); ++i) {
      if (!std::isnan(x[i])) difference.scale = std::max(difference.scale, std::abs(x[i]));
      if (x[i] == y[i] || (std::isnan(x[i]) && std::isnan(y[i]))) continue;
      const double distance = std::abs(x[i] - y[i]);
      if (std::isnan(distance) || distance > difference.largest) difference.largest = distance;
      if (std::isnan(distance)) return difference;
    }
  }
  return difference;
}

bool SameKind(const StoredTensor& a, const StoredTensor& b) {
  return a.dtype == b.dtype && a.shape == b.shape;
}

// ", 0.25 of the update since ..."; "" if there is no earlier tensor to compare with.
absl::StatusOr<std::string> OfUpdate(const DiffTensorsOptions& options, const std::string& name,
                                     const StoredTensor& kind, const Tensor& a, double error) {
  if (options.before == nullptr) return "";
  const auto found = options.before->tensors().find(name);
  if (found == options.before->tensors().end() || !SameKind(found->second, kind)) return "";
  APOGEE_ASSIGN_OR_RETURN(const Tensor before, options.before->Load(name));
  const double update = Compare(a, before).largest;
  if (update == 0) return ", not updated since " + options.before_label;
  char number[32];
  std::snprintf(number, sizeof(number), ", %.6g", error / update);
  return number + (" of the update since " + options.before_label);
}

// "" if equal, bit for bit.
absl::StatusOr<std::string> Describe(const TensorStore& a, const TensorStore& b,
                                     const std::string& name, const DiffTensorsOptions& options,
                                     bool with_numbers) {
  const StoredTensor &in_a = a.tensors().at(name), &in_b = b.tensors().at(name);
  if (in_a.shape != in_b.shape) {
    return "shape " + FormatShape(in_a.shape) + " and " + FormatShape(in_b.shape);
  }
  APOGEE_ASSIGN_OR_RETURN(const Tensor x, a.Load(name));
  APOGEE_ASSIGN_OR_RETURN(const Tensor y, b.Load(name));
  const bool same_dtype = in_a.dtype == in_b.dtype;
  if (same_dtype && std::memcmp(x.raw(), y.raw(), static_cast<size_t>(x.bytes())) == 0) return "";
  std::string text = same_dtype ? "" : in_a.dtype + " and " + in_b.dtype + ": ";
  if (x.numel() != y.numel()) return text + "cannot be compared";
  if (!with_numbers) return text + "different";
  const Difference difference = Compare(x, y);
  char numbers[80];
  std::snprintf(numbers, sizeof(numbers), "max abs %.6g, relative %.6g", difference.largest,
                difference.relative());
  APOGEE_ASSIGN_OR_RETURN(const std::string of_update,
                          OfUpdate(options, name, in_a, x, difference.largest));
  return text + numbers + of_update;
}

}  // namespace

void TensorsDiff::Print(std::ostream& out, const std::string& indent) const {
  for (const std::string& line : lines) out << indent << line << "\n";
  const int64_t more = different + missing - static_cast<int64_t>(lines.size());
  if (more > 0) out << indent << "... and " << more << " more\n";
  out << indent << equal << " equal, " << different << " different, " << missing << " missing\n";
}

absl::StatusOr<TensorsDiff> DiffTensors(const DiffSide& a, const DiffSide& b,
                                        const DiffTensorsOptions& options) {
  TensorsDiff diff;
  std::map<std::string, StoredTensor> all = a.store->tensors();
  all.insert(b.store->tensors().begin(), b.store->tensors().end());
  for (const auto& [name, tensor] : all) {
    const bool in_a = a.store->tensors().contains(name);
    const bool has_room = static_cast<int64_t>(diff.lines.size()) < options.limit;
    std::string text;
    if (in_a && b.store->tensors().contains(name)) {
      APOGEE_ASSIGN_OR_RETURN(text, Describe(*a.store, *b.store, name, options, has_room));
      ++(text.empty() ? diff.equal : diff.different);
    } else {
      ++diff.missing;
      text = "only in " + (in_a ? a.label : b.label);
    }
    if (!text.empty() && has_room) {
      diff.lines.push_back(Printable(name) + "  " + text);
    }
  }
  return diff;
}

}  // namespace apogee::tools
