// SPDX-License-Identifier: Apache-2.0

// The loss on the part of a text that no step has seen.
//
//   ValidationEvent event = Validate(boosted, corpus, world, DataPartOf(plugin, world),
//                                    {.block = 128, .batch = 8, .step = steps});
#ifndef APOGEE_EXAMPLES_COMMON_VALIDATE_H_
#define APOGEE_EXAMPLES_COMMON_VALIDATE_H_

#include "apogee/booster/booster.h"
#include "apogee/booster/metrics.h"
#include "apogee/data/text_corpus.h"
#include "apogee/examples/common/ranks.h"

struct ValidateOptions {
  int64_t block = 128;
  int64_t batch = 8;  // samples per call, of all data parts together
  int64_t step = 0;   // for the event
};

// Mean over every block of the validation text. Collective; batches go round the data parts, and
// the ranks of one part call the model together. The model is in training mode afterwards.
apogee::ValidationEvent Validate(apogee::Boosted& boosted, const apogee::data::TextCorpus& corpus,
                                 const apogee::comm::World& world, const DataPart& part,
                                 const ValidateOptions& options);

#endif  // APOGEE_EXAMPLES_COMMON_VALIDATE_H_
