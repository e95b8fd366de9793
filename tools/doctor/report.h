// SPDX-License-Identifier: Apache-2.0

// What `apogee doctor` has found: sections of rows, and advice where something looks wrong.
//
//   Report report;
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
  // Everything that is added goes through it.
  explicit Report(Redactor redactor) : redactor_(std::move(redactor)) {}

  void Begin(const std::string& section) { text_ += section + "\n"; }
  void Add(const std::string& name, const std::string& value);
  // Further lines of a row, such as what a program printed.
  void AddLines(const std::string& lines);
  // One sentence: what is wrong, and what to do.
  void Advise(const std::string& advice) { advice_.push_back(redactor_.Clean(advice)); }

  const std::vector<std::string>& advice() const { return advice_; }
  // The sections, then the advice, a line with "! " for each.
  std::string Text() const;

 private:
  Redactor redactor_;
  std::string text_;
  std::vector<std::string> advice_;
};

}  // namespace apogee::tools::doctor

#endif  // APOGEE_TOOLS_DOCTOR_REPORT_H_
