// SPDX-License-Identifier: Apache-2.0

#include "apogee/data/prefetcher.h"

#include <unistd.h>

#include <utility>

namespace apogee::data {

Prefetcher::Prefetcher(std::function<MadeBatch(int64_t)> make, int64_t num_batches,
                       const Options& options)
    : make_(std::move(make)),
      num_batches_(num_batches),
      process_(getpid()),
      workers_(options.threads) {
  for (int64_t i = 0; i < options.ahead; ++i) AddOne();
}

void Prefetcher::AddOne() {
  if (added_ == num_batches_) return;
  workers_.Add([this, batch = added_++] { return make_(batch); });
}

bool Prefetcher::has_threads() const { return getpid() == process_; }

MadeBatch Prefetcher::Take() {
  AddOne();  // first, because Take throws the batch's error
  return workers_.Take();
}

}  // namespace apogee::data
