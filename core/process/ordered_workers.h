// SPDX-License-Identifier: Apache-2.0

// OrderedWorkers: threads that work on items, and give the results in the order of the items.
//
//   OrderedWorkers<Result> workers(2);
//   workers.Add([item] { return Work(item); });
//   Result first = workers.Take();            // waits; rethrows what the work threw
//
// Without threads, Add works at once on the caller's thread. One thread adds and takes.
#ifndef APOGEE_CORE_PROCESS_ORDERED_WORKERS_H_
#define APOGEE_CORE_PROCESS_ORDERED_WORKERS_H_

#include <condition_variable>
#include <deque>
#include <future>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "apogee/core/error.h"

namespace apogee {

template <typename Result>
class OrderedWorkers {
 public:
  // Throws Error if a thread cannot be started.
  explicit OrderedWorkers(int num_threads) {
    try {
      for (int i = 0; i < num_threads; ++i) threads_.emplace_back([this] { Run(); });
    } catch (const std::system_error& error) {
      const size_t started = threads_.size();
      Stop();
      Throw("thread ", started + 1, " of ", num_threads, " could not be started: ", error.what(),
            "; use fewer threads");
    }
  }
  // Waits for the work that has begun.
  ~OrderedWorkers() { Stop(); }
  OrderedWorkers(const OrderedWorkers&) = delete;
  OrderedWorkers& operator=(const OrderedWorkers&) = delete;

  template <typename Work>
  void Add(Work work) {
    std::packaged_task<Result()> task(std::move(work));
    results_.push_back(task.get_future());
    if (threads_.empty()) {
      task();
      return;
    }
    {
      const std::lock_guard lock(mutex_);
      waiting_.push_back(std::move(task));
    }
    changed_.notify_one();
  }
  size_t num_pending() const { return results_.size(); }
  Result Take() {
    std::future<Result> first = std::move(results_.front());
    results_.pop_front();
    return first.get();
  }

 private:
  void Stop() {
    {
      const std::lock_guard lock(mutex_);
      done_ = true;
      waiting_.clear();
    }
    changed_.notify_all();
    for (std::thread& thread : threads_) thread.join();
  }
  void Run() {
    for (;;) {
      std::packaged_task<Result()> task;
      {
        std::unique_lock lock(mutex_);
        changed_.wait(lock, [this] { return done_ || !waiting_.empty(); });
        if (done_) return;
        task = std::move(waiting_.front());
        waiting_.pop_front();
      }
      task();
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::packaged_task<Result()>> waiting_;
  bool done_ = false;
  std::deque<std::future<Result>> results_;  // of the caller's thread
  std::vector<std::thread> threads_;
};

}  // namespace apogee

#endif  // APOGEE_CORE_PROCESS_ORDERED_WORKERS_H_
