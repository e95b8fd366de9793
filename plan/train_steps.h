// SPDX-License-Identifier: Apache-2.0

// TrainSteps: the ordinary loop of one rank, for dry and for real. Private to plan.
//
//   TrainSteps(setup, candidate, world, /*num_steps=*/2, [&](int step) { ... });
#ifndef APOGEE_PLAN_TRAIN_STEPS_H_
#define APOGEE_PLAN_TRAIN_STEPS_H_

#include <functional>

#include "apogee/comm/launch.h"
#include "apogee/plan/candidates.h"
#include "apogee/plan/training_setup.h"

namespace apogee::plan {

// Calls before_step(step) before each step, after the model has been boosted. Samples are
// arbitrary tokens, the same in every step. Throws Error as the plugin and the optimizer do.
void TrainSteps(const TrainingSetup& setup, const Candidate& candidate, comm::World& world,
                int num_steps, const std::function<void(int step)>& before_step);

}  // namespace apogee::plan

#endif  // APOGEE_PLAN_TRAIN_STEPS_H_
