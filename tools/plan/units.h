// SPDX-License-Identifier: Apache-2.0

// Quantities with units, as people write them in flags.
//
//   APOGEE_ASSIGN_OR_RETURN(const double rate, ParseQuantity("--link", "400Gb/s", kRate));
//   // 5e10 bytes per second
#ifndef APOGEE_TOOLS_PLAN_UNITS_H_
#define APOGEE_TOOLS_PLAN_UNITS_H_

#include <string>

#include "apogee/core/status.h"

namespace apogee::tools {

enum class Quantity {
  kBytes,  // "80GiB", "24GB", "512"
  kRate,   // bytes per second: "400Gb/s" (bits), "3TB/s"
  kFlops,  // per second: "400T", "1.2PFLOP/s"
  kTime,   // seconds: "5us", "30s", "7.9h", "20days"
};

// InvalidArgument that names the flag, for a text that is no such quantity above 0.
absl::StatusOr<double> ParseQuantity(const std::string& flag, const std::string& text,
                                     Quantity quantity);

}  // namespace apogee::tools

#endif  // APOGEE_TOOLS_PLAN_UNITS_H_
