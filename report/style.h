// SPDX-License-Identifier: Apache-2.0

// The look of a report, and its script.
//
//   page += "<style>" + std::string(kStyle) + "</style>";
//
// Colours are variables that depend on the reader's setting, dark or light. The script shows the
// values under the pointer; without it nothing is missing.
#ifndef APOGEE_REPORT_STYLE_H_
#define APOGEE_REPORT_STYLE_H_

namespace apogee::report {

extern const char* const kStyle;
extern const char* const kScript;

}  // namespace apogee::report

#endif  // APOGEE_REPORT_STYLE_H_
