// SPDX-License-Identifier: Apache-2.0

#include "apogee/data/prefetcher.h"

#include <unistd.h>

#include <system_error>
#include <utility>

#include "apogee/core/error.h"

namespace apogee::data {

Prefetcher::Prefetcher(std::function<MadeBatch(int64_t)> make, int64_t num_batches,
                       const Options& options)
    : make_(std::move(make)),
      num_batches_(num_batches),
      process_(getpid()),
      slots_(static_cast<size_t>(options.ahead)) {
  try {
    for (int i = 0; i < options.threads; ++i) threads_.emplace_back([this] { Work(); });
  } catch (const std::system_error& error) {
    const size_t started = threads_.size();
    Stop();
    Throw("Loader: thread ", started + 1, " of ", options.threads,
          " could not be started: ", error.what(), "; use fewer threads");
  }
}

Prefetcher::~Prefetcher() { Stop(); }

void Prefetcher::Stop() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  can_make_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

bool Prefetcher::has_threads() const { return getpid() == process_; }

void Prefetcher::Work() {
  std::unique_lock lock(mutex_);
  while (true) {
    can_make_.wait(lock, [&] {
      return stop_ ||
             (begun_ < num_batches_ && begun_ < next_ + static_cast<int64_t>(slots_.size()));
    });
    if (stop_) return;
    const int64_t batch = begun_++;
    Slot slot;
    lock.unlock();
    try {
      slot.made = make_(batch);
    } catch (...) {
      slot.error = std::current_exception();
    }
    lock.lock();
    SlotOf(batch) = std::move(slot);
    if (batch == next_) is_made_.notify_one();
  }
}

MadeBatch Prefetcher::Take() {
  Slot slot;
  {
    std::unique_lock lock(mutex_);
    is_made_.wait(lock, [&] { return SlotOf(next_).is_ready(); });
    slot = std::exchange(SlotOf(next_), {});
    ++next_;
  }
  can_make_.notify_one();
  if (slot.error != nullptr) std::rethrow_exception(slot.error);
  return std::move(*slot.made);
}

}  // namespace apogee::data
