// SPDX-License-Identifier: Apache-2.0

// What became of the ranks of a launch, and which error is the one to tell. Private to comm.
#ifndef APOGEE_COMM_OUTCOMES_H_
#define APOGEE_COMM_OUTCOMES_H_

#include <exception>
#include <mutex>
#include <string>
#include <vector>

#include "apogee/core/status.h"

namespace apogee::comm {

// What a rank's function threw, as text. Memory that has run out gets a remedy.
std::string WhyItFailed(const std::exception& error);

// Memory to tell of a failure with where there is no other: address space, given back by Release.
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
  // `echo`: what a rank threw because of a peer. The first error that is none is the one to tell.
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

#endif  // APOGEE_COMM_OUTCOMES_H_
