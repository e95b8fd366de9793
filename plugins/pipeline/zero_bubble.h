// SPDX-License-Identifier: Apache-2.0

// Makes the zbv schedule with a list scheduler: see schedule.h.
#ifndef APOGEE_PLUGINS_PIPELINE_ZERO_BUBBLE_H_
#define APOGEE_PLUGINS_PIPELINE_ZERO_BUBBLE_H_

#include "apogee/plugins/pipeline/schedule.h"

namespace apogee::pipeline {

PipelineSchedule ZeroBubbleV(const PipelineShape& shape);

}  // namespace apogee::pipeline

#endif  // APOGEE_PLUGINS_PIPELINE_ZERO_BUBBLE_H_
