// SPDX-License-Identifier: Apache-2.0

// Redactor: removes private details from a text before it goes to a public page: the names of user,
// home folder and machine, network addresses, passwords in addresses. The result is printable.
//
//   Redactor redactor = Redactor::OfThisProcess();
//   redactor.Clean("/home/ada/run on 10.0.0.7");      // "~/run on <address>"
#ifndef APOGEE_TOOLS_DOCTOR_REDACT_H_
#define APOGEE_TOOLS_DOCTOR_REDACT_H_

#include <string>

namespace apogee::tools::doctor {

class Redactor {
 public:
  // Keeps empty names, "/" and "root", which identify nobody.
  Redactor(std::string home, std::string user, std::string host);
  static Redactor OfThisProcess();

  // One line: control characters and non-ASCII characters become "?".
  std::string Clean(const std::string& text) const;

 private:
  std::string home_, user_, host_;
};

}  // namespace apogee::tools::doctor

#endif  // APOGEE_TOOLS_DOCTOR_REDACT_H_
