// SPDX-License-Identifier: Apache-2.0

#include "apogee/booster/metrics/metrics.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include "apogee/booster/metrics/progress.h"
#include "apogee/booster/metrics/step_rows.h"
#include "apogee/booster/metrics/tensorboard.h"
#include "apogee/booster/run_lock.h"
#include "apogee/core/text/printable.h"

namespace apogee {
namespace {

// In the console's speed and ETA a step's weight falls by the factor 0.95 with each later step.
constexpr double kSmoothing = 0.05;

// JSON has neither NaN nor infinity.
std::string Number(double value) {
  if (!std::isfinite(value)) return "null";
  char text[32];
  std::snprintf(text, sizeof(text), "%.9g", value);
  return text;
}

class JsonLine {
 public:
  JsonLine& Add(const std::string& key, double value) { return AddRaw(key, Number(value)); }
  JsonLine& Add(const std::string& key, int64_t value) {
    return AddRaw(key, std::to_string(value));
  }
  // `json` is a complete value.
  JsonLine& AddRaw(const std::string& key, const std::string& json) {
    text_ += (text_.empty() ? "{\"" : ",\"") + key + "\":" + json;
    return *this;
  }
  std::string Close() const { return text_ + "}"; }

 private:
  std::string text_;
};

std::string MemoryJson(const MemoryLedger& ledger) {
  JsonLine json;
  for (int i = 0; i < kNumMemoryCategories; ++i) {
    const auto category = static_cast<MemoryCategory>(i);
    json.Add(MemoryCategoryName(category), ledger.peak_bytes(category));
  }
  return json.Add("total", ledger.peak_total_bytes())
      .Add("reserved", ledger.peak_reserved_bytes())
      .Close();
}

absl::Status CheckLoss(const char* what, int64_t step, double loss) {
  if (std::isfinite(loss)) return absl::OkStatus();
  return InvalidArgument("step ", step, ": the ", what, " is ",
                         std::isnan(loss) ? "nan" : "infinite", "; a loss must be a finite number");
}

}  // namespace

MetricsLogger::MetricsLogger(const MetricsOptions& options)
    : options_(options),
      console_(std::make_unique<ProgressConsole>(options.console)),
      last_event_(std::chrono::steady_clock::now()) {}

MetricsLogger::~MetricsLogger() = default;

absl::StatusOr<std::unique_ptr<MetricsLogger>> MetricsLogger::Create(
    const MetricsOptions& options) {
  if (options.log_every < 1) {
    return InvalidArgument("metrics: log_every must be at least 1, got ", options.log_every);
  }
  auto logger = std::unique_ptr<MetricsLogger>(new MetricsLogger(options));
  if (!options.out.empty()) APOGEE_RETURN_IF_ERROR(logger->OpenFiles());
  return logger;
}

absl::Status MetricsLogger::OpenFiles() {
  APOGEE_RETURN_IF_ERROR(MakeOutputFolder(options_.out));
  APOGEE_ASSIGN_OR_RETURN(OpenedStepRows steps,
                          OpenStepRows(options_.out + "/metrics.jsonl", options_.resumed_step));
  APOGEE_ASSIGN_OR_RETURN(OpenedStepRows validations,
                          OpenStepRows(options_.out + "/validation.jsonl", options_.resumed_step));
  steps_ = std::move(steps.file);
  validations_ = std::move(validations.file);
  last_validated_step_ = validations.last_step;
  const std::string log = options_.out + "/train.log";
  APOGEE_ASSIGN_OR_RETURN(
      log_, options_.resumed_step == 0 ? LineFile::Create(log) : LineFile::Continue(log));
  APOGEE_ASSIGN_OR_RETURN(
      board_, TensorBoardWriter::Create(options_.out, /*first_step=*/options_.resumed_step + 1));
  return absl::OkStatus();
}

double MetricsLogger::TakeSeconds() {
  const auto now = std::chrono::steady_clock::now();
  return std::chrono::duration<double>(now - std::exchange(last_event_, now)).count();
}

Progress MetricsLogger::Observe(const StepEvent& event, double seconds) {
  // The first step warms caches and compiles kernels: it starts the averages but soon stops
  // counting.
  const double weight = num_steps_ <= 1 ? 1.0 : kSmoothing;
  mean_step_s_ += weight * (seconds - mean_step_s_);
  mean_tokens_ += weight * (static_cast<double>(event.tokens) - mean_tokens_);
  ++num_steps_;
  const auto left = static_cast<double>(std::max<int64_t>(0, options_.total_steps - event.step));
  return {.step = event.step,
          .total_steps = options_.total_steps,
          .loss = event.loss,
          .lr = event.lr,
          .grad_norm = event.grad_norm,
          .tokens_per_s = mean_tokens_ / mean_step_s_,
          .eta_s = num_steps_ > 1 ? left * mean_step_s_ : -1,
          .ledger = options_.ledger};
}

absl::Status MetricsLogger::Step(const StepEvent& event) {
  APOGEE_RETURN_IF_ERROR(CheckLoss("loss", event.step, event.loss));
  const double seconds = TakeSeconds();
  const std::string line = FormatProgress(Observe(event, seconds));
  const bool lasting =
      num_steps_ == 1 || event.step % options_.log_every == 0 || event.step == options_.total_steps;
  if (lasting) {
    APOGEE_RETURN_IF_ERROR(Note(line));
  } else {
    console_->Live(line);
  }
  if (steps_ == nullptr) return absl::OkStatus();

  const double tokens_per_s = static_cast<double>(event.tokens) / seconds;
  JsonLine json;
  json.Add("step", event.step).Add("loss", event.loss).Add("lr", event.lr);
  json.Add("grad_norm", event.grad_norm).Add("tokens_per_s", tokens_per_s).Add("seconds", seconds);
  std::vector<TensorBoardWriter::Scalar> scalars = {
      {"train/loss", event.loss}, {"train/lr", event.lr}, {"train/tokens_per_s", tokens_per_s}};
  if (event.peak_flops > 0) {
    const double share = event.flops / seconds / event.peak_flops;
    json.Add("share_of_peak", share);
    scalars.emplace_back("train/share_of_peak", share);
  }
  if (std::isfinite(event.grad_norm)) scalars.emplace_back("train/grad_norm", event.grad_norm);
  if (options_.ledger != nullptr) {
    json.AddRaw("memory", MemoryJson(*options_.ledger));
    scalars.emplace_back("memory/peak_bytes",
                         static_cast<double>(options_.ledger->peak_total_bytes()));
  }
  APOGEE_RETURN_IF_ERROR(steps_->Append(json.Close() + "\n"));
  return board_->Scalars(event.step, scalars);
}

absl::Status MetricsLogger::Validation(const ValidationEvent& event) {
  APOGEE_RETURN_IF_ERROR(CheckLoss("validation loss", event.step, event.loss));
  // With a token per byte both are the same.
  const bool has_bytes = event.bytes > 0 && event.bytes != event.tokens;
  const double per_byte =
      has_bytes ? event.loss * static_cast<double>(event.tokens) / static_cast<double>(event.bytes)
                : event.loss;
  char line[160], byte_text[48] = "";
  if (has_bytes) std::snprintf(byte_text, sizeof(byte_text), ", %.4f nats per byte", per_byte);
  std::snprintf(line, sizeof(line), "step %lld: validation loss %.4f nats per token%s (%.3f bits)",
                static_cast<long long>(event.step), event.loss, byte_text,
                per_byte / std::log(2.0));
  APOGEE_RETURN_IF_ERROR(Note(line));
  TakeSeconds();  // the next step's time excludes the validation
  if (validations_ == nullptr || has_validation(event.step)) return absl::OkStatus();
  last_validated_step_ = event.step;
  JsonLine json;
  json.Add("step", event.step).Add("loss", event.loss).Add("tokens", event.tokens);
  if (event.bytes > 0) json.Add("bytes", event.bytes);
  APOGEE_RETURN_IF_ERROR(validations_->Append(json.Close() + "\n"));
  return board_->Scalars(event.step, {{"validation/loss", event.loss}});
}

absl::Status MetricsLogger::Note(const std::string& text) {
  const std::string shown = PrintableLines(text);
  console_->Line(shown);
  return log_ == nullptr ? absl::OkStatus() : log_->Append(shown + "\n");
}

}  // namespace apogee
