// SPDX-License-Identifier: Apache-2.0

// Validates a model: its loss on the part of a text that is not used for training.
//
//   ValidationEvent event = Validate(boosted, plugin, corpus, world,
//                                    {.block = 128, .batch = 8, .step = steps});
#ifndef APOGEE_EXAMPLES_COMMON_VALIDATE_H_
#define APOGEE_EXAMPLES_COMMON_VALIDATE_H_

#include "apogee/booster/booster.h"
#include "apogee/booster/metrics/metrics.h"
#include "apogee/comm/launch.h"
#include "apogee/data/text_corpus.h"

struct ValidateOptions {
  int64_t block = 128;
  int64_t batch = 8;  // samples per call, of all data-parallel ranks together
  int64_t step = 0;   // for the event
};

// The mean over every block of the validation text. Collective: batches are dealt out to the
// data-parallel ranks, and all ranks of one replica call the model together. Leaves the model in
// training mode.
apogee::ValidationEvent Validate(apogee::Boosted& boosted, const apogee::Plugin& plugin,
                                 const apogee::data::TextCorpus& corpus,
                                 const apogee::comm::World& world, const ValidateOptions& options);

#endif  // APOGEE_EXAMPLES_COMMON_VALIDATE_H_
