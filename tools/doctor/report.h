// SPDX-License-Identifier: Apache-2.0

// The report of `apogee doctor`: sections of rows, and advice if something looks wrong.
//
//   Report report(Redactor::OfThisProcess());
//   report.Begin("memory");
//   report.Add("available", "12.0 GiB");
//   report.Advise("/dev/shm has 64 MiB free: ...");
//   std::cout << report.Text();
#ifndef APOGEE_TOOLS_DOCTOR_REPORT_H_
#define APOGEE_TOOLS_DOCTOR_REPORT_H_

#include <string>
#include <vector>

#include "apogee/tools/doctor/redact.h"

namespace apogee::tools::doctor {

class Report {
 public:
  // `redactor` cleans everything that is added.
  explicit Report(Redactor redactor) : redactor_(std::move(redactor)) {}

  void Begin(const std::string& section) { text_ += section + "\n"; }
  void Add(const std::string& name, const std::string& value);
  // Adds further lines to a row, a program's output for example.
  void AddLines(const std::string& lines);
  // One sentence: the problem and its remedy.
  void Advise(const std::string& advice) { advice_.push_back(redactor_.Clean(advice)); }

  const std::vector<std::string>& advice() const { return advice_; }
  // The sections, then one line "! ..." per advice.
  std::string Text() const;

 private:
  Redactor redactor_;
  std::string text_;
  std::vector<std::string> advice_;
};

}  // namespace apogee::tools::doctor

#endif  // APOGEE_TOOLS_DOCTOR_REPORT_H_
