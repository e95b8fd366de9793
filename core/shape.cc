// SPDX-License-Identifier: Apache-2.0

#include "apogee/core/shape.h"

#include <ostream>

#include "apogee/core/error.h"

namespace apogee {

Shape::Shape(std::span<const int64_t> dims) : rank_(static_cast<int>(dims.size())) {
  APOGEE_CHECK(dims.size() <= kMaxRank, "a tensor has at most ", kMaxRank, " dims, got ",
               dims.size());
  for (size_t i = 0; i < dims.size(); ++i) {
    APOGEE_CHECK(dims[i] >= 0, "dim ", i, " has negative size ", dims[i]);
    dims_[i] = dims[i];
  }
}

int64_t Shape::numel() const {
  int64_t product = 1;
  for (int64_t size : dims()) product *= size;
  return product;
}

int Shape::Normalize(int dim) const {
  const int normalized = dim < 0 ? dim + rank_ : dim;
  APOGEE_CHECK(normalized >= 0 && normalized < rank_, "dim ", dim, " is outside shape ",
               ToString());
  return normalized;
}

std::array<int64_t, Shape::kMaxRank> Shape::RowMajorStrides() const {
  std::array<int64_t, kMaxRank> strides{};
  int64_t stride = 1;
  for (int i = rank_ - 1; i >= 0; --i) {
    strides[static_cast<size_t>(i)] = stride;
    stride *= dims_[static_cast<size_t>(i)];
  }
  return strides;
}

std::string Shape::ToString() const {
  std::string text = "[";
  for (int i = 0; i < rank_; ++i) {
    if (i > 0) text += ", ";
    text += std::to_string(dims_[static_cast<size_t>(i)]);
  }
  return text + "]";
}

std::ostream& operator<<(std::ostream& out, const Shape& shape) { return out << shape.ToString(); }

}  // namespace apogee
