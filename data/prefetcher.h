// SPDX-License-Identifier: Apache-2.0

// Prefetcher: threads that make batches 0, 1, 2, ... before they are asked for.
//
//   Prefetcher prefetcher([&](int64_t k) { return maker.Make(0, k * 16); }, /*num_batches=*/600,
//                         {.threads = 2, .ahead = 4});
//   MadeBatch first = prefetcher.Take();
//
// One thread takes. Threads sleep while `ahead` batches wait to be taken.
#ifndef APOGEE_DATA_PREFETCHER_H_
#define APOGEE_DATA_PREFETCHER_H_

#include <sys/types.h>

#include <functional>

#include "apogee/core/process/ordered_workers.h"
#include "apogee/data/batch_maker.h"

namespace apogee::data {

class Prefetcher {
 public:
  struct Options {
    int threads = 1;
    int64_t ahead = 2;
  };
  // `make` must be callable by several threads at once. Throws Error if a thread cannot be started.
  Prefetcher(std::function<MadeBatch(int64_t)> make, int64_t num_batches, const Options& options);

  // The next batch. Throws what `make` threw for it; the batch after it can still be taken. Not to
  // be called after num_batches.
  MadeBatch Take();
  // The number of the batch that Take returns.
  int64_t next() const { return added_ - static_cast<int64_t>(workers_.num_pending()); }
  // False in a child that was forked from the process with the threads: nobody fills there, and
  // destruction would wait for threads that do not exist.
  bool has_threads() const;

 private:
  void AddOne();

  const std::function<MadeBatch(int64_t)> make_;
  const int64_t num_batches_;
  const pid_t process_;
  int64_t added_ = 0;
  OrderedWorkers<MadeBatch> workers_;
};

}  // namespace apogee::data

#endif  // APOGEE_DATA_PREFETCHER_H_
