// SPDX-License-Identifier: Apache-2.0

#include "apogee/report/files/run_data.h"

#include <limits>
#include <utility>

#include "apogee/checkpoint/files/file_system.h"
#include "apogee/checkpoint/format/open_tensor_file.h"
#include "apogee/pictures/timeline/trace_reader.h"
#include "apogee/report/charts/inline_svg.h"
#include "apogee/report/files/metrics_rows.h"
#include "apogee/report/files/run_folder.h"

namespace apogee::report {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr int64_t kMaxJsonBytes = int64_t{64} << 20;
constexpr int64_t kMaxLogBytes = int64_t{1} << 30;
constexpr int64_t kMaxTraceBytes = int64_t{1} << 30;
constexpr int64_t kMaxPictureBytes = int64_t{64} << 20;

absl::StatusOr<std::string> ReadFile(const std::string& path, int64_t limit) {
  return checkpoint::ReadTextFile(*checkpoint::RealFileSystem(), path, limit);
}

absl::Status ReadSteps(const std::string& path, RunData& run) {
  APOGEE_ASSIGN_OR_RETURN(MetricsRows rows, MetricsRows::Open(path));
  double tokens = 0, seconds = 0;
  while (true) {
    APOGEE_ASSIGN_OR_RETURN(std::optional<MetricsRow> row, rows.Next());
    if (!row) break;
    const auto x = static_cast<double>(row->step);
    const auto& [loss, lr, grad_norm, unused] = row->values;
    const auto& [speed, time, share] = row->measured;
    if (!run.loss.empty() && speed && time) {
      tokens += *speed * *time;
      seconds += *time;
    }
    run.loss.push_back({x, loss.value_or(kNan)});
    run.lr.push_back({x, lr.value_or(kNan)});
    run.grad_norm.push_back({x, grad_norm.value_or(kNan)});
    run.tokens_per_s.push_back({x, speed.value_or(kNan)});
    run.share_of_peak.push_back({x, share.value_or(kNan)});
    run.memory = std::move(row->memory);
  }
  if (run.loss.empty()) {
    return NotFound(path, ": there are no rows in it; a program writes one after each step");
  }
  if (seconds > 0) run.mean_tokens_per_s = tokens / seconds;
  return absl::OkStatus();
}

absl::Status ReadValidations(const std::string& path, RunData& run) {
  APOGEE_ASSIGN_OR_RETURN(MetricsRows rows, MetricsRows::Open(path));
  while (true) {
    APOGEE_ASSIGN_OR_RETURN(const std::optional<MetricsRow> row, rows.Next());
    if (!row) return absl::OkStatus();
    run.validation_loss.push_back({static_cast<double>(row->step), row->values[0].value_or(kNan)});
  }
}

// Sets `to` to what `read` makes of the file's text, if the run has the file.
template <typename T, typename Read>
absl::Status ReadIfThere(const RunFolder& folder, const std::string& name, int64_t limit, T& to,
                         const Read& read) {
  const std::string path = folder.PathOf(name);
  if (path.empty()) return absl::OkStatus();
  APOGEE_ASSIGN_OR_RETURN(const std::string text, ReadFile(path, limit));
  APOGEE_ASSIGN_OR_RETURN(to, read(text, path));
  return absl::OkStatus();
}

absl::StatusOr<std::vector<StepTimeline>> ReadTimelines(const std::string& text,
                                                        const std::string& path) {
  APOGEE_ASSIGN_OR_RETURN(std::vector<PipelineEvent> events, ReadPipelineEvents(text, path));
  return Timelines(std::move(events));
}

}  // namespace

absl::StatusOr<RunData> ReadRun(const std::string& path, const std::string& id) {
  APOGEE_RETURN_IF_ERROR(checkpoint::RealFileSystem()->List(path).status());
  APOGEE_ASSIGN_OR_RETURN(const std::optional<RunFolder> folder, RunFolder::Find(path));
  const std::string metrics = folder ? folder->PathOf("metrics.jsonl") : "";
  if (metrics.empty()) {
    return NotFound(path,
                    ": there is no metrics.jsonl in it; give the folder that a training program "
                    "wrote with --out");
  }
  RunData run;
  run.path = path;
  APOGEE_RETURN_IF_ERROR(ReadSteps(metrics, run));
  if (const std::string rows = folder->PathOf("validation.jsonl"); !rows.empty()) {
    APOGEE_RETURN_IF_ERROR(ReadValidations(rows, run));
  }
  for (const auto& [step, unused] : folder->checkpoints()) run.checkpoints.push_back(step);
  run.rejected = folder->rejected();
  const auto picture = [](const std::string& name) {
    return [name](const std::string& text, const std::string& file) {
      return InlineSvg(text, file, name);
    };
  };
  const auto log = [](const std::string& text, const std::string&) {
    return absl::StatusOr<RunLog>(ReadRunLog(text));
  };
  APOGEE_RETURN_IF_ERROR(ReadIfThere(*folder, "train.log", kMaxLogBytes, run.log, log));
  APOGEE_RETURN_IF_ERROR(
      ReadIfThere(*folder, "run.json", kMaxJsonBytes, run.record, ReadRunRecord));
  APOGEE_RETURN_IF_ERROR(
      ReadIfThere(*folder, "traffic.json", kMaxJsonBytes, run.traffic, ReadTrafficRecord));
  APOGEE_RETURN_IF_ERROR(
      ReadIfThere(*folder, "plan.json", kMaxJsonBytes, run.plan, ReadMemoryPlan));
  APOGEE_RETURN_IF_ERROR(
      ReadIfThere(*folder, "trace.json", kMaxTraceBytes, run.timelines, ReadTimelines));
  APOGEE_RETURN_IF_ERROR(ReadIfThere(*folder, "shard_map.svg", kMaxPictureBytes, run.shard_map,
                                     picture(id + "-shards-")));
  APOGEE_RETURN_IF_ERROR(ReadIfThere(*folder, "chunk_map.svg", kMaxPictureBytes, run.chunk_map,
                                     picture(id + "-chunks-")));
  APOGEE_RETURN_IF_ERROR(ReadIfThere(*folder, "expert_loads.svg", kMaxPictureBytes,
                                     run.expert_loads, picture(id + "-experts-")));
  return run;
}

}  // namespace apogee::report
