// SPDX-License-Identifier: Apache-2.0

// MeasureRates: trains small models here, and times their kernels and collectives.
//
//   APOGEE_ASSIGN_OR_RETURN(const plan::Rates rates, plan::MeasureRates({.threads = 1}));
//
// The models are transformers of several widths, and one for each optimizer. One set is measured
// with one rank, another with as many ranks as the cores hold, all training at the same time. The
// time between the ends of two kernels belongs to the second one, with the work of the host.
#ifndef APOGEE_PLAN_MACHINE_MEASURE_H_
#define APOGEE_PLAN_MACHINE_MEASURE_H_

#include "apogee/core/status.h"
#include "apogee/plan/machine/rates.h"
#include "apogee/plan/training_setup.h"

namespace apogee::plan {

struct MeasureOptions {
  int threads = 1;  // of a rank
  Precision precision = Precision::kF32;
  double seconds = 20;  // about, in all
  // This model is measured, too, if its step takes little of the time. Null: none.
  const TrainingSetup* setup = nullptr;
};

// Runs in this process, with threads as ranks. InvalidArgument for more threads than cores.
absl::StatusOr<Rates> MeasureRates(const MeasureOptions& options);

}  // namespace apogee::plan

#endif  // APOGEE_PLAN_MACHINE_MEASURE_H_
