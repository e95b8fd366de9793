// SPDX-License-Identifier: Apache-2.0

// SamplePlace: where the first sample of a batch stands among the samples that all ranks share.
//
//   const SamplePlace place{.stream = token, .window = 3, .first = 4};
//
// data::Loader puts it on the inputs that it makes (Storage::sample_place), and random masks are
// numbered by it: how a window is cut into micro-batches and ranks does not change a mask.
#ifndef APOGEE_CORE_SAMPLE_PLACE_H_
#define APOGEE_CORE_SAMPLE_PLACE_H_

#include <cstdint>
#include <memory>

namespace apogee {

struct SamplePlace {
  // Tells two streams of samples apart; not null.
  std::shared_ptr<const void> stream;
  // The window of the stream (data::DistributedSampler): the same on every rank.
  int64_t window = 0;
  // The place of the first sample within the window of all ranks.
  int64_t first = 0;
};

}  // namespace apogee

#endif  // APOGEE_CORE_SAMPLE_PLACE_H_
