// SPDX-License-Identifier: Apache-2.0

#include "apogee/driver/program.h"

#include <cstdio>
#include <exception>
#include <filesystem>
#include <optional>

#include "apogee/booster/run_lock.h"
#include "apogee/core/blocking_waits.h"
#include "apogee/core/process/standard_descriptors.h"
#include "apogee/core/process/standard_output.h"
#include "apogee/core/text/printable.h"
#include "apogee/driver/checkpoints.h"
#include "apogee/driver/records/counted_groups.h"
#include "apogee/driver/records/run_plan.h"
#include "apogee/driver/trace_file.h"
#include "apogee/report/report.h"

namespace apogee::driver {
namespace {

int Launch(RunFlags& flags, const Program& program) {
  // Of rank 0; of processes each has its own rank's, because a cluster starts those again that did
  // not exit with 0.
  int exit_code = 0;
  bool writes_report = false;  // in rank 0's process
  // A trace in the run's folder is for its report.
  const bool trace_in_out =
      !flags.trace.empty() && !flags.out.empty() &&
      std::filesystem::path(flags.trace).parent_path() == std::filesystem::path(flags.out);
  if (trace_in_out) OkOrThrow(MakeOutputFolder(flags.out));
  TraceFile trace(flags.trace);
  const Corpus corpus = program.load ? program.load() : ValueOrThrow(LoadCorpus(flags));
  flags.SettleEpochs(corpus.epoch_samples);
  const ProcessMemory start = ValueOrThrow(ReadProcessMemory());
  const RunPlan plan = PlanRun(flags, program.train, corpus, start);
  if (flags.checkpoints.save_every > 0) CatchStopSignals();
  const bool is_process = ValueOrThrow(comm::StartedProcesses()).size > 1;
  OkOrThrow(comm::launch(
      {.num_ranks = flags.ranks,
       .threads_per_rank = flags.threads_per_rank,
       .device = flags.device,
       .comm = flags.backend,
       .timeout_seconds = flags.timeout_seconds,
       .flight_record_dir = flags.flight_records,
       .trace = trace.get()},
      [&](comm::World& world) {
        const CountedGroups groups(world);
        const int code = program.train({groups.world(), corpus, start, &groups, &plan});
        if (is_process || world.rank() == 0) exit_code = code;
        if (world.rank() == 0) writes_report = flags.report;
      }));
  trace.Write();
  // After the trace, which it draws.
  if (writes_report) {
    const std::string page = flags.out + "/" + report::kReportName;
    OkOrThrow(report::WriteReport({flags.out}, page));
    std::printf("report: %s\n", Printable(page).c_str());
  }
  if (program.finish) program.finish();
  return exit_code;
}

}  // namespace

int Run(int argc, char** argv, RunFlags& flags, const Program& program) {
  KeepStandardDescriptors();
  // Before MPI begins, which RunFlags::Declare asks for the number of processes.
  UseBlockingWaits(argv);
  ReportFileSizeLimit();
  const auto fail = [&program](const std::string& message) {
    std::fprintf(stderr, "%s: %s\n", program.name.c_str(), PrintableLines(message).c_str());
    return 1;
  };
  int exit_code = 0;
  try {
    CommandLine line(program.name, program.about);
    program.declare(line);
    const std::optional<int> stop = line.Parse(argc, argv, [&] {
      flags.Settle(line);
      if (program.settle) program.settle(line);
    });
    exit_code = stop ? *stop : Launch(flags, program);
  } catch (const std::exception& error) {
    exit_code = fail(error.what());
  }
  const absl::Status printed = FlushStandardOutput();
  if (printed.ok()) return exit_code;
  fail(Message(printed));
  return exit_code == 0 ? 1 : exit_code;
}

}  // namespace apogee::driver
