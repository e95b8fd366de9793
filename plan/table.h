// SPDX-License-Identifier: Apache-2.0

// Aligned: a table as text. Private to plan.
//
//   Aligned({{"plugin", "peak"}, {"ddp", "4.4 GiB"}});
#ifndef APOGEE_PLAN_TABLE_H_
#define APOGEE_PLAN_TABLE_H_

#include <string>
#include <vector>

namespace apogee::plan {

using Cells = std::vector<std::string>;

// The first column is aligned to the left, the others to the right. A line for each row.
std::string Aligned(const std::vector<Cells>& rows);

}  // namespace apogee::plan

#endif  // APOGEE_PLAN_TABLE_H_
