// SPDX-License-Identifier: Apache-2.0

// Draws one pipeline step as SVG: a row per stage, time from left to right, a box with the
// micro-batch's number per piece of work, hatching where the stage waits.
//
//   std::string svg = TimelineSvg(step, "1F1B, 4 stages");
//
// Colours distinguish forward, backward and the backward of weights; odd chunks are paler. For
// programs, a box has the attributes data-kind, data-rank, data-micro-batch and data-chunk, and a
// bubble has data-bubble (the rank). Widths are to scale. The text is one XML document.
#ifndef APOGEE_PICTURES_TIMELINE_TIMELINE_SVG_H_
#define APOGEE_PICTURES_TIMELINE_TIMELINE_SVG_H_

#include <string>

#include "apogee/pictures/timeline/pipeline_timeline.h"

namespace apogee {

std::string TimelineSvg(const StepTimeline& step, const std::string& title);

// "4.567 ms".
std::string FormatMs(int64_t ns);

}  // namespace apogee

#endif  // APOGEE_PICTURES_TIMELINE_TIMELINE_SVG_H_
