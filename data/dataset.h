// SPDX-License-Identifier: Apache-2.0

// Datasets: samples by their index. A sample has named fields; the first is "inputs".
//
//   TextDataset train(corpus.train(), /*block=*/128);           // a sample starts at every byte
//   TextDataset validation(corpus.validation(), 128, /*stride=*/128);   // samples do not overlap
//   train.Fill(/*index=*/7, inputs, targets);                   // bytes 7..134 and 8..135
//
// Datasets over token files are in data/token_dataset.h. To write your own, derive from Dataset:
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

// A range of bytes of a text; keeps the text alive.
struct TextSpan {
  std::shared_ptr<const std::string> text;
  int64_t offset = 0;
  int64_t size = 0;
};

class TextDataset : public Dataset {
 public:
  // Sample i is bytes [i * stride, i * stride + block] of the span, block + 1 bytes. Throws Error
  // if the span is too short for one sample.
  TextDataset(TextSpan span, int64_t block, int64_t stride = 1)
      : span_(std::move(span)), block_(block), stride_(stride) {
    APOGEE_CHECK(block >= 1 && stride >= 1 && span_.size > block, "TextDataset: a text of ",
                 span_.size, " bytes holds no sample of block ", block, " + 1 (stride ", stride,
                 ")");
  }

  int64_t num_samples() const override { return (span_.size - block_ - 1) / stride_ + 1; }
  int64_t block() const override { return block_; }
  void Fill(int64_t index, int64_t* inputs, int64_t* targets) const override;

 private:
  TextSpan span_;
  int64_t block_;
  int64_t stride_;
};

}  // namespace apogee::data

#endif  // APOGEE_DATA_DATASET_H_
