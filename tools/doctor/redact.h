// SPDX-License-Identifier: Apache-2.0

// Takes out of a text what does not belong on a public page: the names of user, home folder and
// machine, network addresses, passwords in addresses. What remains is printable.
//
//   Redactor redactor = Redactor::OfThisProcess();
//   redactor.Clean("/home/ada/run on 10.0.0.7");      // "~/run on <address>"
#ifndef APOGEE_TOOLS_DOCTOR_REDACT_H_
#define APOGEE_TOOLS_DOCTOR_REDACT_H_

#include <string>

namespace apogee::tools::doctor {

class Redactor {
 public:
  // Empty names, "/" and "root", which says nothing about anyone, stay.
  Redactor(std::string home, std::string user, std::string host);
  static Redactor OfThisProcess();

  // One line: control characters and what is no ASCII become "?".
  std::string Clean(const std::string& text) const;

 private:
  std::string home_, user_, host_;
};

}  // namespace apogee::tools::doctor

#endif  // APOGEE_TOOLS_DOCTOR_REDACT_H_
