// SPDX-License-Identifier: Apache-2.0

// Datasets of fixed-length token sequences, and the one over text.
//
//   TextDataset train(corpus.train(), /*block=*/128);           // a sample starts at every byte
//   TextDataset validation(corpus.validation(), 128, /*stride=*/128);   // samples do not overlap
//   train.Fill(/*index=*/7, inputs, targets);                   // bytes 7..134 and 8..135
//
// A dataset is immutable; several threads may use it.
#ifndef APOGEE_DATA_DATASET_H_
#define APOGEE_DATA_DATASET_H_

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "apogee/core/error.h"

namespace apogee::data {

class Dataset {
 public:
  virtual ~Dataset() = default;
  // Samples have indices [0, num_samples()).
  virtual int64_t num_samples() const = 0;
  // Tokens of one sample.
  virtual int64_t block() const = 0;
  // Writes block() input tokens, and for each the token that follows it as its target. Throws Error
  // for an index outside [0, num_samples()).
  virtual void Fill(int64_t index, int64_t* inputs, int64_t* targets) const = 0;
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
  void Fill(int64_t index, int64_t* inputs, int64_t* targets) const override {
    APOGEE_CHECK(index >= 0 && index < num_samples(), "TextDataset: sample ", index,
                 " is outside [0, ", num_samples(), ")");
    const char* text = span_.text->data() + span_.offset + index * stride_;
    for (int64_t t = 0; t < block_; ++t) {
      inputs[t] = static_cast<unsigned char>(text[t]);
      targets[t] = static_cast<unsigned char>(text[t + 1]);
    }
  }

 private:
  TextSpan span_;
  int64_t block_;
  int64_t stride_;
};

}  // namespace apogee::data

#endif  // APOGEE_DATA_DATASET_H_
