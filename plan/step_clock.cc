// SPDX-License-Identifier: Apache-2.0

#include "apogee/plan/step_clock.h"

#include <algorithm>

namespace apogee::plan {

StepClock::StepClock(const Machine* machine, const std::vector<int>& ranks) : machine_(machine) {
  for (const int rank : ranks) ranks_[rank].machine_ = machine;
}

void StepClock::Rank::OnKernel(const KernelCall& call) {
  const double seconds = machine_ == nullptr ? 0 : machine_->SecondsOf(call);
  const std::lock_guard lock(mutex_);
  now_.flops += call.flops;
  now_.seconds += seconds;
  now_.busy_seconds += seconds;
}

void StepClock::Rank::OnCall(const comm::CollectiveCall& call) {
  const std::lock_guard lock(mutex_);
  now_.traffic.Add(call.kind, call.payload_bytes);
}

void StepClock::Rank::Work(double seconds) {
  const std::lock_guard lock(mutex_);
  now_.seconds += seconds;
  now_.busy_seconds += seconds;
}

void StepClock::Rank::WaitUntil(double seconds) {
  const std::lock_guard lock(mutex_);
  now_.seconds = std::max(now_.seconds, seconds);
}

void StepClock::Rank::Mark() {
  const std::lock_guard lock(mutex_);
  mark_ = now_;
}

Progress StepClock::Rank::progress() const {
  const std::lock_guard lock(mutex_);
  return now_;
}

Progress StepClock::Rank::since_mark() const {
  const std::lock_guard lock(mutex_);
  return {.seconds = now_.seconds - mark_.seconds,
          .busy_seconds = now_.busy_seconds - mark_.busy_seconds,
          .flops = now_.flops - mark_.flops,
          .traffic = now_.traffic - mark_.traffic};
}

comm::CollectiveCost StepClock::CostOf(const comm::CollectiveCall& call,
                                       const std::vector<int>& members) {
  if (machine_ == nullptr) return {};
  return {.seconds = machine_->SecondsOf(call.kind, call.payload_bytes, members),
          .overlaps = !(machine_->shares_cores() && machine_->IsWithin(members))};
}

}  // namespace apogee::plan
