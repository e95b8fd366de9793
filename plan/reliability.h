// SPDX-License-Identifier: Apache-2.0

// Reliability: how often a run on many ranks fails, how often to save, and the time that is lost.
//
//   const plan::Reliability r = plan::ReliabilityOf({}, /*num_ranks=*/1024, /*save_seconds=*/30);
//   r.mttf_seconds;        // 28,440: a failure every 7.9 hours
//   r.interval_seconds;    // 1,306: save every 22 minutes
//   r.lost;                // 0.056 of all time
//
// Failures of ranks are independent, and any of them stops the run. With the MTTF of a rank divided
// by the ranks, and t the seconds that a save stops training, the interval I = sqrt(2 MTTF t) loses
// least (Young 1974); the share lost is t / I + (I / 2 + restart) / MTTF.
#ifndef APOGEE_PLAN_RELIABILITY_H_
#define APOGEE_PLAN_RELIABILITY_H_

namespace apogee::plan {

struct ReliabilityOptions {
  // Mean time between failures of one rank. The default is that of Meta's clusters: 7.9 hours at
  // 1,024 GPUs (Kokolis et al. 2024, arXiv:2410.21680).
  double rank_mttf_seconds = 7.9 * 3600 * 1024;
  // From a failure to the next step.
  double restart_seconds = 300;
  // That a save stops training. 0: what a rank needs to write its parameters and states at
  // save_bytes_per_second.
  double save_seconds = 0;
  double save_bytes_per_second = 1e9;
};

struct Reliability {
  double mttf_seconds = 0;      // of the run
  double save_seconds = 0;      // that a save stops training
  double interval_seconds = 0;  // between saves
  double lost = 0;              // share of all time, at most 1
};

// `save_seconds`: instead of that of the options.
Reliability ReliabilityOf(const ReliabilityOptions& options, int num_ranks, double save_seconds);

}  // namespace apogee::plan

#endif  // APOGEE_PLAN_RELIABILITY_H_
