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

}  // namespace apogee::data
