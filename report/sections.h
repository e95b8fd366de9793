// SPDX-License-Identifier: Apache-2.0

// The sections of a report, as HTML. Each says what is missing, and how to record it.
//
//   std::string page = SummarySection(runs) + TrainingSection(runs) + MemorySection(runs);
#ifndef APOGEE_REPORT_SECTIONS_H_
#define APOGEE_REPORT_SECTIONS_H_

#include <string>
#include <vector>

#include "apogee/report/files/run_data.h"

namespace apogee::report {

using Runs = std::vector<RunData>;

// A row per run: model, ranks, plugin, steps, losses, speed, peak memory; and the options.
std::string SummarySection(const Runs& runs);
// Charts over the steps.
std::string TrainingSection(const Runs& runs);
// Peaks by category, planned against measured.
std::string MemorySection(const Runs& runs);
// Which rank holds what, when chunks are whole, and the pipeline's last step.
std::string PicturesSection(const Runs& runs);
// Calls and bytes of collectives.
std::string TrafficSection(const Runs& runs);
// Skipped steps, checkpoints, notes.
std::string EventsSection(const Runs& runs);

// Tells the pictures of the runs apart, for identifiers in the page.
std::string RunId(size_t run);
// The run's label with its colour, as markup.
std::string RunName(const Runs& runs, size_t run);
// A section with an anchor, from its contents.
std::string Section(const std::string& id, const std::string& title, const std::string& contents);

}  // namespace apogee::report

#endif  // APOGEE_REPORT_SECTIONS_H_
