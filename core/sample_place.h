// SPDX-License-Identifier: Apache-2.0

// SamplePlace: the position of a batch's first sample among the samples that all ranks share.
//
//   const SamplePlace place{.stream = token, .window = 3, .first = 4};
//
// data::Loader sets it on the inputs that it makes (Storage::set_sample_place), and random masks
// are numbered by it. So masks do not depend on how a window is cut into micro-batches and ranks.
#ifndef APOGEE_CORE_SAMPLE_PLACE_H_
#define APOGEE_CORE_SAMPLE_PLACE_H_

#include <cstdint>
#include <memory>

namespace apogee {

struct SamplePlace {
  // Identifies the stream of samples; not null.
  std::shared_ptr<const void> stream;
  // Index of the window in the stream (data::DistributedSampler): the same on every rank.
  int64_t window = 0;
  // Index of the first sample within the window, counted over all ranks.
  int64_t first = 0;
};

}  // namespace apogee

#endif  // APOGEE_CORE_SAMPLE_PLACE_H_
