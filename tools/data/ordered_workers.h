// SPDX-License-Identifier: Apache-2.0

// OrderedWorkers: threads that work on items, and give the results in the order of the items.
//
//   OrderedWorkers<Result> workers(2);
//   workers.Add([item] { return Work(item); });
//   Result first = workers.Take();            // waits; rethrows what the work threw
//
// With one thread, Add works at once on the caller's thread.
#ifndef APOGEE_TOOLS_DATA_ORDERED_WORKERS_H_
#define APOGEE_TOOLS_DATA_ORDERED_WORKERS_H_

#include <condition_variable>
#include <deque>
#include <functional>
#include <future>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

namespace apogee::tools {

template <typename Result>
class OrderedWorkers {
 public:
  explicit OrderedWorkers(int num_threads) {
    for (int i = 0; num_threads > 1 && i < num_threads; ++i) {
      threads_.emplace_back([this] { Run(); });
    }
  }
  ~OrderedWorkers() {
    {
      const std::lock_guard lock(mutex_);
      done_ = true;
      waiting_.clear();
    }
    changed_.notify_all();
    for (std::thread& thread : threads_) thread.join();
  }
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

}  // namespace apogee::tools

#endif  // APOGEE_TOOLS_DATA_ORDERED_WORKERS_H_
