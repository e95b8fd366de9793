// SPDX-License-Identifier: Apache-2.0

#include "apogee/driver/run_flags.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "apogee/autograd/parameter.h"
#include "apogee/comm/launch.h"
#include "apogee/core/process/thread_team.h"
#include "apogee/core/text/text.h"
#include "apogee/tensor/cpu/cpu_context.h"
#include "apogee/tensor/make_context.h"

namespace apogee::driver {
namespace {

// "8 or 12": the multiples of `step` next to `value`.
std::string NearestMultiples(int64_t value, int64_t step) {
  const int64_t below = value / step * step;
  return (below > 0 ? std::to_string(below) + " or " : "") + std::to_string(below + step);
}

// The number of processes that mpirun or srun started; without them `otherwise`.
int DefaultRanks(int otherwise) {
  const auto processes = comm::StartedProcesses();
  // An error here is reported by launch.
  return processes.ok() && processes->size > 1 ? processes->size : otherwise;
}

int ThreadsPerRank(int threads, int ranks) {
  if (threads == 0) return ShareOfCores(ranks);
  const int each = std::max(1, threads / ranks);
  const absl::Status status = CheckNumThreads(each);
  if (!status.ok()) Throw("--threads ", threads, ": ", Message(status));
  return each;
}

void DeclareTraining(CommandLine& line, const RunFlagSet& set, RunFlags& f) {
  line.Group("Training");
  line.AddCount("--steps", f.steps, "Optimizer steps");
  if (set.epochs) {
    line.HideDefault("--steps");
    line.AddNumber("--epochs", f.epochs, "Passes over the training samples, instead of --steps",
                   0.001);
  }
  line.AddCount("--batch", f.batch,
                std::string("Samples per ") + (set.accumulate ? "micro-batch" : "step") +
                    ", of all ranks together");
  if (set.accumulate) {
    line.AddCount("--accumulate", f.accumulate, "Micro-batches per optimizer step");
  }
  line.AddChoice(
      "--precision", f.training.precision,
      [](const std::string& text) {
        return text == "auto" ? absl::StatusOr<Precision>(FastPrecision()) : ParsePrecision(text);
      },
      "f32, bf16 or fp16 (with f32 masters; fp16 needs a plugin with a loss scale), f64, or auto: "
      "bf16 if the processor has bf16 multiplication, else f32");
  line.AddTexts("--keep-f32", f.training.keep_f32,
                "Modules that stay in f32 under bf16 and fp16: shell patterns of their names");
  line.AddSwitch("--narrow-residual", f.narrow_residual,
                 "Keep the residual stream in bf16 or fp16, too: less memory, further from f64");
  line.AddText("--optimizer", f.optimizer, JoinTexts(f.optimizers.names(), ", "));
  line.AddOptions("optim", f.optimizer_options);
  line.AddNumber("--lr", f.lr, "Highest learning rate of the schedule");
  line.AddOptions("sched", f.schedule_options);
  if (set.schedule) {
    line.AddText("--schedule", f.schedule, JoinTexts(f.schedules.names(), ", "));
    line.AddCount("--warmup", f.warmup, "Warm-up steps; default: a tenth of --steps", 0);
    line.HideDefault("--warmup");
  }
  line.AddNumber("--max-norm", f.training.max_norm,
                 "Clip the gradients' global norm to this; 0: off");
  line.AddSeed("--seed", f.seed, "Seed of the weights, the order of the data, dropout and samples");
}

void DeclareRanks(CommandLine& line, RunFlags& f) {
  line.Group("Ranks");
  line.AddCount("--ranks", f.ranks,
                "Ranks, which share --batch. They are threads of this process; under mpirun and "
                "srun they are the processes, so leave --ranks out there");
  line.AddCount("--threads", f.threads,
                "CPU threads of all ranks together; 0, the default: one per core", 0);
  line.HideDefault("--threads");
  line.AddText("--device", f.device, "cpu, cuda, or one GPU by its number: cuda:0",
               [](const std::string& name) { return ParseDevice(name).status(); });
  line.AddChoice("--comm", f.backend, comm::ParseBackend,
                 "Backend for collectives: local (ranks are threads), mpi, tcp or nccl (ranks are "
                 "processes), auto");
  line.AddNumber("--timeout-seconds", f.timeout_seconds,
                 "Seconds that a collective waits for a rank before the run fails on all ranks",
                 0.001, 1e6);
  line.AddText("--flight-records", f.flight_records,
               "Folder for each rank's last collective calls, written if the run fails, for "
               "`apogee hang-report`");
}

void DeclareCheckpoints(CommandLine& line, CheckpointFlags& f) {
  line.Group("Checkpoints");
  line.AddCount("--save-every", f.save_every,
                "Steps between two checkpoints in OUT/checkpoints; the last step, SIGTERM and "
                "SIGINT also save one; default: no checkpoints");
  line.HideDefault("--save-every");
  line.AddText("--resume", f.resume,
               "auto: resume from the newest valid checkpoint in OUT/checkpoints, or start a new "
               "run if there is none. Or the folder of checkpoints to resume from");
  line.AddCount("--keep", f.keep, "Number of newest checkpoints to keep", 2);
  line.AddSwitch("--async-save", f.async_save,
                 "Write checkpoints in the background; needs memory for a copy of the data that a "
                 "rank writes");
}

void DeclareReport(CommandLine& line, const RunFlagSet& set, RunFlags& f) {
  line.Group("Report");
  line.AddText(
      "--out", f.out,
      "Folder for metrics.jsonl, train.log, run.json and TensorBoard events; default: no files");
  line.AddCount("--log-every", f.log_every, "Steps between two lines that stay on the terminal");
  line.AddText("--trace", f.trace,
               "Write a timeline of all ranks to this file, for ui.perfetto.dev; it is in memory "
               "until the run ends, so use it for short runs. OUT/trace.json is drawn by --report");
  line.AddSwitch("--report", f.report,
                 "Write OUT/report.html at the end: charts, memory, layout, traffic and notes of "
                 "the run, as `apogee report` does");
  line.AddSwitch("--print-events", f.print_events,
                 "Print every event of a step on rank 0: gradients that are ready, reductions, the "
                 "decision, gathers");
  if (!set.sample) return;
  if (set.prompt) line.AddText("--prompt", f.prompt, "Text that the sample continues");
  line.AddCount("--sample", f.sample, "Tokens to generate at the end", 0);
  line.AddNumber("--temperature", f.temperature,
                 "Temperature of the sample; a lower one makes likely tokens likelier", 0.01, 100);
}

void CheckCheckpoints(const CommandLine& line, const CheckpointFlags& flags,
                      const std::string& out) {
  if (flags.save_every > 0 && out.empty()) {
    Throw("--save-every needs --out: checkpoints go to OUT/checkpoints");
  }
  if (flags.resume == "auto" && out.empty()) {
    Throw("--resume auto needs --out: it looks in OUT/checkpoints; or give the folder");
  }
  if (line.given("--keep") && flags.save_every == 0) {
    Throw("--keep has no effect without --save-every");
  }
  if (flags.async_save && flags.save_every == 0) {
    Throw("--async-save has no effect without --save-every");
  }
}

// Copies --lr, --steps and --warmup into the options of the optimizer and the schedule.
void FillOptions(RunFlags& flags) {
  flags.optimizer_options.try_emplace("lr", optim::FormatOption(flags.lr));
  const auto known = ValueOrThrow(flags.schedules.Defaults(flags.schedule));
  if (known.contains("total_steps")) {
    flags.schedule_options.try_emplace("total_steps", std::to_string(flags.steps));
  }
  if (flags.warmup >= 0) {
    if (!known.contains("warmup_steps")) {
      Throw("--warmup: the schedule ", flags.schedule, " has no warm-up; leave the flag out");
    }
    flags.schedule_options["warmup_steps"] = std::to_string(flags.warmup);
  } else if (known.contains("warmup_steps")) {
    flags.schedule_options.try_emplace("warmup_steps", std::to_string(flags.steps / 10));
  }
}

}  // namespace

Precision FastPrecision() {
#if defined(__x86_64__) && (defined(__GNUC__) || defined(__clang__))
  if (__builtin_cpu_supports("avx512bf16") != 0) return Precision::kBf16;
#endif
  return Precision::kF32;
}

void RunFlags::Declare(CommandLine& line, const RunFlagSet& set) {
  ranks = DefaultRanks(ranks);
  DataFlags::Declare(line);
  DeclareTraining(line, set, *this);
  DeclareRanks(line, *this);
  DeclareCheckpoints(line, checkpoints);
  DeclareReport(line, set, *this);
  line.Footer(
      "Options of the optimizer or schedule: --optim.KEY=VALUE, --sched.KEY=VALUE, for "
      "instance\n--optim.betas=0.9,0.95 --optim.weight_decay=0.1 --sched.eta_min=1e-4\n"
      "Exit code: 0 trained, 1 the run failed (data, ranks that do not fit the model, loss, "
      "disk),\n2 wrong usage, 143 or 130 stopped early by SIGTERM or SIGINT, with a checkpoint.");
}

void RunFlags::Settle(const CommandLine& line) {
  DataFlags::Settle();
  training.f32_residual = !narrow_residual;
  threads_per_rank = ThreadsPerRank(threads, ranks);
  if (line.given("--steps")) {
    if (epochs > 0 && line.given("--epochs")) Throw("--steps or --epochs: give one of them");
    epochs = 0;
  }
  // The schedule depends on the steps. SettleEpochs fills in those of epochs.
  RunFlags filled = *this;
  FillOptions(filled);
  if (epochs == 0) FillOptions(*this);
  CheckCheckpoints(line, checkpoints, out);
  if (report && out.empty()) Throw("--report needs --out: the page goes to OUT/report.html");
  // Small instances report unsupported settings best.
  filled.MakeSchedule();
  filled.MakeOptimizer({std::make_shared<autograd::Parameter>(
      "weight", Tensor::Zeros({1}, DType::kF32, CpuContext()))});
  if (prompt.empty()) Throw("--prompt must not be empty: the sample continues it");
}

void RunFlags::SettleEpochs(int64_t samples) {
  if (epochs == 0) return;
  const double per_step = static_cast<double>(batch) * static_cast<double>(accumulate);
  steps = std::max<int64_t>(1, std::llround(epochs * static_cast<double>(samples) / per_step));
  FillOptions(*this);
}

void RunFlags::CheckBatch(int64_t parts, const std::string& reason) const {
  if (batch % parts == 0) return;
  Throw("--batch ", batch, " does not divide among ", reason, "; use --batch ",
        NearestMultiples(batch, parts));
}

void RunFlags::CheckReplicas(int replica_ranks, const std::string& flags) const {
  if (ranks % replica_ranks != 0) return;
  const int replicas = ranks / replica_ranks;
  CheckBatch(replicas,
             "the " + std::to_string(replicas) + " replicas of the model that " + flags + " give");
}

std::unique_ptr<optim::Optimizer> RunFlags::MakeOptimizer(
    std::vector<autograd::ParameterPtr> parameters) const {
  return ValueOrThrow(optimizers.Make(optimizer, std::move(parameters), optimizer_options));
}

optim::LrSchedule RunFlags::MakeSchedule() const {
  return ValueOrThrow(schedules.Make(schedule, schedule_options));
}

int64_t RunFlags::ModelDataBytes(int64_t num_parameters) const {
  const bool is_f64 = training.precision == Precision::kF64;
  const double value_and_gradient = is_f64                                  ? 8 + 8
                                    : training.precision == Precision::kF32 ? 4 + 4
                                                                            : 2 + 4 + 4;
  // A square matrix, because the states of some optimizers depend on the shape.
  const auto weight = std::make_shared<autograd::Parameter>(
      "weight", Tensor::Zeros({1024, 1024}, DType::kF32, CpuContext()));
  const double states =
      static_cast<double>(MakeOptimizer({weight})->states().PlannedBytes()) / (1024.0 * 1024.0);
  return static_cast<int64_t>(static_cast<double>(num_parameters) *
                              (value_and_gradient + states * (is_f64 ? 2 : 1)));
}

RunConfig RunFlags::Config(RunConfig::Texts own) const {
  // "distributed_NAME" and "NAME" are the same optimizer (optim/distributed.h).
  const std::string prefix = "distributed_";
  const std::string name =
      optimizer.starts_with(prefix) ? optimizer.substr(prefix.size()) : optimizer;
  RunConfig::Texts settings = std::move(own);
  settings["steps"] = std::to_string(steps);
  settings["accumulate"] = std::to_string(accumulate);
  settings["schedule"] = schedule;
  settings["max_norm"] = optim::FormatOption(training.max_norm);
  settings["device"] = device;
  settings["threads_per_rank"] = std::to_string(threads_per_rank);
  settings["save_every"] = std::to_string(checkpoints.save_every);
  for (const auto& [key, value] : schedule_options) settings["schedule." + key] = value;
  return {.identity = {{"optimizer", name}, {"criterion", "cross_entropy"}},
          .settings = std::move(settings)};
}

}  // namespace apogee::driver
