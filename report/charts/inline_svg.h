// SPDX-License-Identifier: Apache-2.0

// InlineSvg: a picture that this library drew (pictures/), as markup for the middle of a page.
//
//   APOGEE_ASSIGN_OR_RETURN(std::string svg, InlineSvg(text, "out/chunk_map.svg", "run0-chunks-"));
//
// The text may come from anybody. Only the elements and attributes that pictures/ writes are let
// through, so the result has no scripts, no links and no loads. The identifiers of patterns get a
// prefix, because a page may have several pictures. Errors: DataLoss that names the file and the
// byte.
#ifndef APOGEE_REPORT_CHARTS_INLINE_SVG_H_
#define APOGEE_REPORT_CHARTS_INLINE_SVG_H_

#include <string>

#include "apogee/core/status.h"

namespace apogee::report {

// `path`: for messages. `prefix`: letters, digits and hyphens.
absl::StatusOr<std::string> InlineSvg(const std::string& text, const std::string& path,
                                      const std::string& prefix);

}  // namespace apogee::report

#endif  // APOGEE_REPORT_CHARTS_INLINE_SVG_H_
