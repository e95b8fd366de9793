// SPDX-License-Identifier: Apache-2.0

// Validates a model: its loss on the part of the data that is not used for training.
//
//   ValidationEvent event = Validate(booster, boosted, corpus, world, {.batch = 8, .step = steps});
#ifndef APOGEE_DRIVER_VALIDATE_H_
#define APOGEE_DRIVER_VALIDATE_H_

#include "apogee/booster/booster.h"
#include "apogee/booster/metrics/metrics.h"
#include "apogee/comm/launch.h"
#include "apogee/driver/corpus.h"

namespace apogee::driver {

struct ValidateOptions {
  int64_t batch = 8;  // samples per call, of all data-parallel ranks together
  int64_t step = 0;   // for the event
};

// The mean over every target of the validation samples, under any plugin. Collective: batches are
// dealt out to the data-parallel ranks, and all ranks of one replica call the model together. Rank
// 0 alone knows the event's bytes. Leaves the model in training mode.
ValidationEvent Validate(Booster& booster, const Boosted& boosted, const Corpus& corpus,
                         const comm::World& world, const ValidateOptions& options);

}  // namespace apogee::driver

#endif  // APOGEE_DRIVER_VALIDATE_H_
