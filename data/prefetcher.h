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

#include <condition_variable>
#include <exception>
#include <functional>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

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
  // Waits for the batches that are being made.
  ~Prefetcher();
  Prefetcher(const Prefetcher&) = delete;
  Prefetcher& operator=(const Prefetcher&) = delete;

  // The next batch. Throws what `make` threw for it; the batch after it can still be taken. Not to
  // be called after num_batches.
  MadeBatch Take();
  // The number of the batch that Take returns.
  int64_t next() const { return next_; }
  // False in a child that was forked from the process with the threads: nobody fills there, and
  // destruction would wait for threads that do not exist.
  bool has_threads() const;

 private:
  struct Slot {
    std::optional<MadeBatch> made;
    std::exception_ptr error;
    bool is_ready() const { return made.has_value() || error != nullptr; }
  };

  void Work();
  void Stop();
  Slot& SlotOf(int64_t batch) { return slots_[static_cast<size_t>(batch) % slots_.size()]; }

  const std::function<MadeBatch(int64_t)> make_;
  const int64_t num_batches_;
  const pid_t process_;

  std::mutex mutex_;
  std::condition_variable can_make_, is_made_;
  std::vector<Slot> slots_;  // batch k waits in slot k % ahead
  int64_t next_ = 0;         // to take; changed by the taking thread
  int64_t begun_ = 0;        // batches that threads have begun
  bool stop_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace apogee::data

#endif  // APOGEE_DATA_PREFETCHER_H_
