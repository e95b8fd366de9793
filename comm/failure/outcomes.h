// SPDX-License-Identifier: Apache-2.0

// Outcomes: how the ranks of a launch ended, and which error to report. Private to comm.
#ifndef APOGEE_COMM_FAILURE_OUTCOMES_H_
#define APOGEE_COMM_FAILURE_OUTCOMES_H_

#include <exception>
#include <mutex>
#include <string>
#include <vector>

#include "apogee/core/status.h"

namespace apogee::comm {

// The text of a rank's exception, with a remedy if memory has run out.
std::string WhyItFailed(const std::exception& error);

// A reserve of address space that Release gives back, so that a failure can be reported when memory
// has run out.
class Reserve {
 public:
  Reserve();
  ~Reserve() { Release(); }
  Reserve(const Reserve&) = delete;
  Reserve& operator=(const Reserve&) = delete;
  void Release();

 private:
  void* block_;
};

class Outcomes {
 public:
  // `echo`: the rank failed only because of a peer. ToStatus reports the first error that is none.
  void Fail(int rank, const std::string& message, bool echo);
  absl::Status ToStatus(int num_ranks) const;

 private:
  struct Failure {
    int rank;
    std::string message;
    bool echo;
  };
  mutable std::mutex mutex_;
  std::vector<Failure> failures_;
};

}  // namespace apogee::comm

#endif  // APOGEE_COMM_FAILURE_OUTCOMES_H_
