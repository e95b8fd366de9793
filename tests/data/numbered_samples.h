// SPDX-License-Identifier: Apache-2.0

// A dataset whose samples are their indices, to compare orders.
//
//   Loader loader(std::make_shared<NumberedSamples>(1000), sampler, context, {.batch = 4});
//   std::vector<int64_t> ids = IdsOf(loader.Next());
#ifndef APOGEE_TESTS_DATA_NUMBERED_SAMPLES_H_
#define APOGEE_TESTS_DATA_NUMBERED_SAMPLES_H_

#include <vector>

#include "apogee/data/loader.h"

namespace apogee::testing {

class NumberedSamples : public data::Dataset {
 public:
  explicit NumberedSamples(int64_t num_samples) : num_samples_(num_samples) {}
  int64_t num_samples() const override { return num_samples_; }
  std::vector<data::Field> fields() const override { return {{"inputs", DType::kI64, {}}}; }
  void FillFields(int64_t index, const data::SampleMemory& sample) const override {
    sample.field<int64_t>(0)[0] = index;
  }

 private:
  int64_t num_samples_;
};

inline std::vector<int64_t> IdsOf(const data::Batch& batch) {
  return batch.inputs.ToVector<int64_t>();
}

}  // namespace apogee::testing

#endif  // APOGEE_TESTS_DATA_NUMBERED_SAMPLES_H_
