// SPDX-License-Identifier: Apache-2.0

#include "apogee/data/dataset.h"

namespace apogee::data {

void Dataset::Fill(int64_t, int64_t*, int64_t*) const {
  Throw(
      "Dataset: this dataset has no Fill; call FillFields. A dataset of your own overrides Fill "
      "for ",
      "sequences of tokens, and fields and FillFields for other samples");
}

std::vector<Field> Dataset::fields() const {
  APOGEE_CHECK(
      block() >= 1, "Dataset: block() is ", block(),
      "; override it for sequences of tokens, and fields and FillFields for other samples");
  return {{"inputs", DType::kI64, {block()}}, {"targets", DType::kI64, {block()}}};
}

void Dataset::FillFields(int64_t index, const SampleMemory& sample) const {
  Fill(index, sample.field<int64_t>(0).data(), sample.field<int64_t>(1).data());
}

void TextDataset::Fill(int64_t index, int64_t* inputs, int64_t* targets) const {
  APOGEE_CHECK(index >= 0 && index < num_samples(), "TextDataset: sample ", index,
               " is outside [0, ", num_samples(), ")");
  const char* text = span_.text->data() + span_.offset + index * stride_;
  for (int64_t t = 0; t < block_; ++t) {
    inputs[t] = static_cast<unsigned char>(text[t]);
    targets[t] = static_cast<unsigned char>(text[t + 1]);
  }
}

}  // namespace apogee::data
