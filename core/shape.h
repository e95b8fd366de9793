// SPDX-License-Identifier: Apache-2.0

// Shape: the sizes of a tensor's dims, up to kMaxRank of them. A scalar has none.
//
//   Shape shape{2, 3};   shape.numel() == 6;   shape[-1] == 3;   shape.ToString() == "[2, 3]"
#ifndef APOGEE_CORE_SHAPE_H_
#define APOGEE_CORE_SHAPE_H_

#include <array>
#include <cstdint>
#include <initializer_list>
#include <iosfwd>
#include <span>
#include <string>

namespace apogee {

class Shape {
 public:
  static constexpr int kMaxRank = 6;

  Shape() = default;
  Shape(std::initializer_list<int64_t> dims) : Shape(std::span(dims.begin(), dims.size())) {}
  // Throws Error for more than kMaxRank dims or a negative size.
  explicit Shape(std::span<const int64_t> dims);

  int rank() const { return rank_; }
  int64_t numel() const;
  // Negative dims count from the end. Throws Error outside [-rank, rank).
  int64_t operator[](int dim) const { return dims_[static_cast<size_t>(Normalize(dim))]; }
  void Set(int dim, int64_t size) { dims_[static_cast<size_t>(Normalize(dim))] = size; }
  // The dim in [0, rank) for a dim that may be negative. Throws Error as above.
  int Normalize(int dim) const;
  std::span<const int64_t> dims() const { return {dims_.data(), static_cast<size_t>(rank_)}; }
  // Strides, in elements, of the row-major layout.
  std::array<int64_t, kMaxRank> RowMajorStrides() const;
  std::string ToString() const;

  friend bool operator==(const Shape& a, const Shape& b) {
    return a.rank_ == b.rank_ && a.dims_ == b.dims_;
  }
  friend std::ostream& operator<<(std::ostream& out, const Shape& shape);

 private:
  std::array<int64_t, kMaxRank> dims_{};
  int rank_ = 0;
};

}  // namespace apogee

#endif  // APOGEE_CORE_SHAPE_H_
