// SPDX-License-Identifier: Apache-2.0

// StepClock: the records of the ranks of a dry run: virtual time, work, and traffic. Private to
// plan.
//
//   StepClock clock(options.machine, num_ranks);
//   world.context()->set_kernel_listener(&clock.Of(world.rank()));
#ifndef APOGEE_PLAN_STEP_CLOCK_H_
#define APOGEE_PLAN_STEP_CLOCK_H_

#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "apogee/comm/dry/dry_clock.h"
#include "apogee/core/kernel_listener.h"
#include "apogee/plan/machine/machine.h"

namespace apogee::plan {

// What a rank has done so far.
struct Progress {
  double seconds = 0;  // virtual time
  double flops = 0;
  comm::Traffic traffic = {};
};

// A time without waiting.
struct Busy {
  double begin = 0, end = 0;
};

// The seconds that a step takes longer than the clock says, because `cores` cores are fewer than
// the busy ranks need with `threads` threads each. `ranks`: the times of all ranks together, each
// as often as a rank runs in it.
double CrowdedSeconds(const std::vector<Busy>& ranks, const Machine& machine);

class StepClock : public comm::DryClock {
 public:
  class Rank : public KernelListener {
   public:
    void OnKernel(const KernelCall& call) override;
    void OnCall(const comm::CollectiveCall& call);
    void Work(double seconds);
    void WaitUntil(double seconds);
    // The step to be priced begins.
    void Mark();
    Progress progress() const;
    Progress since_mark() const;
    // When the rank was busy since the mark, in absolute virtual time, ascending.
    std::vector<Busy> busy() const;

   private:
    friend class StepClock;
    // A rank may have threads of its own.
    mutable std::mutex mutex_;
    const Machine* machine_ = nullptr;
    Progress now_, mark_;
    double busy_since_ = 0;
    std::vector<Busy> busy_;
  };

  // `machine`: null if nobody asks for times. Must outlive the clock.
  StepClock(const Machine* machine, const std::vector<int>& ranks);

  Rank& Of(int rank) { return ranks_.at(rank); }
  double Now(int rank) override { return Of(rank).progress().seconds; }
  void Work(int rank, double seconds) override { Of(rank).Work(seconds); }
  void WaitUntil(int rank, double seconds) override { Of(rank).WaitUntil(seconds); }
  comm::CollectiveCost CostOf(const comm::CollectiveCall& call,
                              const std::vector<int>& members) override;

 private:
  const Machine* machine_;
  std::map<int, Rank> ranks_;
};

}  // namespace apogee::plan

#endif  // APOGEE_PLAN_STEP_CLOCK_H_
