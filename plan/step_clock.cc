// SPDX-License-Identifier: Apache-2.0

#include "apogee/plan/step_clock.h"

#include <algorithm>
#include <utility>

namespace apogee::plan {

StepClock::StepClock(const Machine* machine, const std::vector<int>& ranks) : machine_(machine) {
  for (const int rank : ranks) ranks_[rank].machine_ = machine;
}

void StepClock::Rank::OnKernel(const KernelCall& call) {
  const double seconds = machine_ == nullptr ? 0 : machine_->SecondsOf(call);
  const std::lock_guard lock(mutex_);
  now_.flops += call.flops;
  now_.seconds += seconds;
}

void StepClock::Rank::OnCall(const comm::CollectiveCall& call) {
  const std::lock_guard lock(mutex_);
  now_.traffic.Add(call.kind, call.payload_bytes);
}

void StepClock::Rank::Work(double seconds) {
  const std::lock_guard lock(mutex_);
  now_.seconds += seconds;
}

void StepClock::Rank::WaitUntil(double seconds) {
  const std::lock_guard lock(mutex_);
  if (seconds <= now_.seconds) return;
  if (machine_ != nullptr && machine_->shares_cores() && busy_since_ < now_.seconds) {
    busy_.push_back({busy_since_, now_.seconds});
  }
  now_.seconds = busy_since_ = seconds;
}

void StepClock::Rank::Mark() {
  const std::lock_guard lock(mutex_);
  mark_ = now_;
  busy_.clear();
  busy_since_ = now_.seconds;
}

std::vector<Busy> StepClock::Rank::busy() const {
  const std::lock_guard lock(mutex_);
  std::vector<Busy> all = busy_;
  if (busy_since_ < now_.seconds) all.push_back({busy_since_, now_.seconds});
  return all;
}

Progress StepClock::Rank::progress() const {
  const std::lock_guard lock(mutex_);
  return now_;
}

Progress StepClock::Rank::since_mark() const {
  const std::lock_guard lock(mutex_);
  return {.seconds = now_.seconds - mark_.seconds,
          .flops = now_.flops - mark_.flops,
          .traffic = now_.traffic - mark_.traffic};
}

double CrowdedSeconds(const std::vector<Busy>& ranks, const Machine& machine) {
  std::vector<std::pair<double, int>> events;  // a rank more or less is busy
  for (const Busy& busy : ranks) {
    events.emplace_back(busy.begin, 1);
    events.emplace_back(busy.end, -1);
  }
  std::ranges::sort(events);
  double extra = 0;
  int running = 0;
  for (size_t i = 0; i < events.size(); ++i) {
    const double share = static_cast<double>(running) * machine.threads / machine.cores;
    if (share > 1) {
      extra += (events[i].first - events[i - 1].first) * (share * machine.crowding - 1);
    }
    running += events[i].second;
  }
  return extra;
}

comm::CollectiveCost StepClock::CostOf(const comm::CollectiveCall& call,
                                       const std::vector<int>& members) {
  if (machine_ == nullptr) return {};
  return {.seconds = machine_->SecondsOf(call.kind, call.payload_bytes, members),
          .overlaps = !(machine_->shares_cores() && machine_->IsWithin(members))};
}

}  // namespace apogee::plan
