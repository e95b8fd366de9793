// SPDX-License-Identifier: Apache-2.0

// Datasets: samples by their index. A sample has named fields; the first is "inputs".
//
//   for (const Field& field : dataset.fields()) ...              // names, dtypes, shapes
//   dataset.Fill(/*index=*/7, inputs, targets);                  // of a sequence of tokens
//
// Datasets over texts and token files are in data/token_dataset.h. To write your own, derive from
// Dataset:
//
//   * Sequences of tokens: override num_samples, block and Fill.
//   * Other samples: override num_samples, fields and FillFields.
//
// A dataset is immutable; several threads may use it.
#ifndef APOGEE_DATA_DATASET_H_
#define APOGEE_DATA_DATASET_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "apogee/core/dtype.h"
#include "apogee/core/error.h"
#include "apogee/core/shape.h"

namespace apogee::data {

// The target of a position that is not learned: what nn::CrossEntropyLoss ignores by default.
inline constexpr int64_t kIgnoredTarget = -100;

// One field of each sample.
struct Field {
  std::string name;
  DType dtype = DType::kI64;
  Shape shape;  // of one sample; a batch has one dim more in front
};

// The memory of one sample, field by field, that a dataset fills.
class SampleMemory {
 public:
  // `data[f]` has room for fields[f] of one sample. Both must outlive this object.
  SampleMemory(std::span<const Field> fields, std::span<std::byte* const> data)
      : fields_(fields), data_(data) {}
  // Field number `field`. Throws Error if its dtype is not T's, or if there is no such field.
  template <typename T>
  std::span<T> field(size_t field) const {
    APOGEE_CHECK(field < fields_.size(), "SampleMemory: field ", field, " of ", fields_.size());
    const Field& it = fields_[field];
    APOGEE_CHECK(DTypeOf<T>() == it.dtype, "SampleMemory: field \"", it.name, "\" is ",
                 DTypeName(it.dtype), ", not ", DTypeName(DTypeOf<T>()));
    return {reinterpret_cast<T*>(data_[field]), static_cast<size_t>(it.shape.numel())};
  }

 private:
  std::span<const Field> fields_;
  std::span<std::byte* const> data_;
};

class Dataset {
 public:
  virtual ~Dataset() = default;
  // Samples have indices [0, num_samples()).
  virtual int64_t num_samples() const = 0;

  // For sequences of tokens. Tokens of one sample; 0 for other samples.
  virtual int64_t block() const { return 0; }
  // Writes block() input tokens, and for each the token that follows it as its target. Throws Error
  // for an index outside [0, num_samples()).
  virtual void Fill(int64_t index, int64_t* inputs, int64_t* targets) const;

  // The fields of each sample: always the same. The first is "inputs"; "targets", if there are any,
  // are what the loss compares with. By default both are i64 [block()].
  virtual std::vector<Field> fields() const;
  // Writes all fields of a sample. Throws as Fill, which it calls by default.
  virtual void FillFields(int64_t index, const SampleMemory& sample) const;
};

}  // namespace apogee::data

#endif  // APOGEE_DATA_DATASET_H_
