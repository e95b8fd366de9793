// SPDX-License-Identifier: Apache-2.0

#include "apogee/driver/text_run.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <system_error>
#include <utility>

#include "apogee/booster/metrics/line_file.h"
#include "apogee/core/text/text.h"
#include "apogee/core/trace/step_log.h"
#include "apogee/data/sampler.h"
#include "apogee/driver/checkpoints.h"
#include "apogee/driver/generate.h"
#include "apogee/driver/records/counted_groups.h"
#include "apogee/driver/records/peak_share.h"
#include "apogee/driver/records/run_plan.h"
#include "apogee/driver/reports.h"
#include "apogee/driver/validate.h"
#include "apogee/nn/configured.h"

namespace apogee::driver {

TextRun::TextRun(const Rank& rank, const RunFlags& flags, Booster& booster, const Plugin& plugin,
                 RunConfig::Texts settings)
    : rank_(rank),
      flags_(flags),
      config_(flags.Config(std::move(settings))),
      booster_(booster),
      plugin_(plugin) {
  booster.TraceTo(rank.world.trace(), rank.world.rank());
  booster.set_run_config(config_);
}

TextRun::~TextRun() = default;

bool TextRun::Start(const Boosted& boosted, const optim::LrScheduler& scheduler,
                    const RunDescription& description) {
  const comm::World& world = rank_.world;
  const ContextPtr& context = world.context();
  const nn::ConfigTexts config = nn::ConfigOf(boosted.model);
  if (const auto size = config.function.find("vocab_size"); size != config.function.end()) {
    data::CheckFits(*rank_.corpus.tokenizer, std::stoll(size->second));
  }
  boosted_ = std::make_unique<Boosted>(boosted);
  scheduler_ = &scheduler;

  const int64_t batch = flags_.batch / plugin_.data_size();
  const auto& samples = rank_.corpus.train_samples;
  const auto order = std::make_shared<data::ShuffleSampler>(samples->num_samples(), flags_.seed);
  // If a loss is about a micro-batch as a whole, the ranks share each micro-batch of one rank's
  // run.
  const bool shares_batch =
      std::ranges::any_of(boosted.model.Modules(), &nn::Module::sums_over_batch);
  const auto sampler =
      std::make_shared<data::DistributedSampler>(order, plugin_.data_rank(), plugin_.data_size(),
                                                 shares_batch ? batch : batch * flags_.accumulate);

  const bool dry = context->is_dry();  // writes and prints nothing
  const std::string out = dry ? "" : flags_.out;
  checkpoints_ = std::make_unique<CheckpointKeeper>(
      booster_, world,
      CheckpointKeeperOptions{
          .flags = flags_.checkpoints,
          .out = out,
          .steps = flags_.steps,
          .data = DescribeData(rank_.corpus, flags_.seed, flags_.batch * flags_.accumulate,
                               flags_.block)});
  const int64_t done = checkpoints_->Start();  // steps that the resumed run has done
  const int64_t steps = dry ? std::min(kPlannedSteps, flags_.steps) : flags_.steps - done;
  // A resumed run continues after the samples of the steps that are done.
  loader_ = std::make_unique<data::Loader>(
      samples, sampler, context,
      data::LoaderOptions{.batch = batch, .num_batches = steps * flags_.accumulate});
  loader_->set_state({.samples = done * flags_.batch * flags_.accumulate});

  if (world.rank() == 0 && !dry) {
    metrics_ = ValueOrThrow(MetricsLogger::Create({.out = out,
                                                   .total_steps = flags_.steps,
                                                   .resumed_step = done,
                                                   .log_every = flags_.log_every,
                                                   .ledger = &context->ledger()}));
    if (!out.empty() && context->is_host()) {
      share_ = std::make_unique<PeakShare>(context, DTypeOf(flags_.training.precision));
    }
  }
  if (world.rank() == 0 && !out.empty() && !rank_.corpus.tokenizer_json.empty()) {
    OkOrThrow(ValueOrThrow(LineFile::Create(flags_.out + "/tokenizer.json"))
                  ->Append(rank_.corpus.tokenizer_json));
  }
  if (world.rank() == 0 && !out.empty()) {
    std::error_code none;
    for (const char* name : report::kOptionalFiles) {
      if (done == 0) std::filesystem::remove(flags_.out + "/" + name, none);
    }
    WriteRecord(description);
  }
  if (!rank_.corpus.notice.empty()) Note("note: " + rank_.corpus.notice);
  Note("text: " + rank_.corpus.description);
  Note("model: " + description.model + ", " + FormatThousands(description.num_parameters) +
       " parameters, " + Name(flags_.training.precision) + ", " + DescribeRanks(world) +
       description.layout);
  const std::string note = boosted.optimizer.note();
  if (!note.empty()) Note(note);
  if (world.rank() == 0 && flags_.print_events) {
    log_ = std::make_unique<StepLog>(nullptr, [this](const std::string& line) { Note(line); });
    log_listens_ = boosted.optimizer.AddListener(*log_);
  }
  event_ = {.step = done, .tokens = flags_.batch * flags_.accumulate * flags_.block};
  const bool finished = checkpoints_->IsFinished(done, metrics_.get());
  TellCheckpointNotes();
  return !finished;
}

void TextRun::BeforeStep(double loss) {
  ++event_.step;
  // A signal reaches the ranks at different moments, so they add up the signals they have seen.
  // Ranks that share samples have the same loss, so the mean over all ranks is the batch's mean.
  const auto [terminate, interrupt] = StopSignals();
  const std::vector<double> sums = SumOverRanks(rank_.world, {terminate, interrupt, loss});
  stop_ = {sums[0], sums[1]};
  event_.loss = sums[2] / rank_.world.size();
  APOGEE_CHECK(std::isfinite(event_.loss), "step ", event_.step, ": the loss is ",
               std::isnan(event_.loss) ? "nan" : "infinite", "; lower --lr (now ", flags_.lr,
               ") or --max-norm (now ", flags_.training.max_norm, ")");
  event_.lr = scheduler_->last_lr()[0];
}

void TextRun::BeforeStep(const Tensor& loss) {
  BeforeStep(rank_.world.context()->is_dry() ? 0.0 : loss.Item());
}

bool TextRun::AfterStep() {
  const optim::StepReport& report = boosted_->optimizer.last_step();
  event_.grad_norm = report.grad_norm;
  if (share_ != nullptr) {
    event_.flops = share_->TakeFlops();
    event_.peak_flops = share_->peak_flops();
  }
  if (metrics_ != nullptr) OkOrThrow(metrics_->Step(event_));
  if (report.skip) {
    Note("step " + std::to_string(event_.step) + " changed nothing: the gradient of " +
         report.nonfinite_parameter + " is not finite");
  }
  const bool leave = checkpoints_->AfterStep(event_.step, stop_);
  TellCheckpointNotes();
  if (metrics_ != nullptr && rank_.groups != nullptr && !flags_.out.empty()) {
    CountTraffic(/*is_last=*/leave || event_.step == flags_.steps);
  }
  return leave;
}

void TextRun::WriteRecord(const RunDescription& description) const {
  report::RunRecord record{.model = description.model,
                           .parameters = description.num_parameters,
                           .ranks = rank_.world.size(),
                           .plugin = plugin_.name(),
                           .options = config_.settings};
  record.options.insert(config_.identity.begin(), config_.identity.end());
  for (const auto& [key, value] : flags_.optimizer_options) record.options["optim." + key] = value;
  record.options["batch"] = std::to_string(flags_.batch);
  record.options["block"] = std::to_string(flags_.block);
  record.options["precision"] = Name(flags_.training.precision);
  record.options["seed"] = std::to_string(flags_.seed);
  const auto file = ValueOrThrow(LineFile::Create(flags_.out + "/run.json"));
  OkOrThrow(file->Append(ToJson(record)));
}

void TextRun::CountTraffic(bool is_last) {
  if (first_traffic_ == nullptr) {
    first_step_ = event_.step;
    first_traffic_ =
        std::make_unique<report::TrafficRecord>(rank_.groups->Count(plugin_.gather_group()));
  } else if (is_last) {
    const report::TrafficRecord record = CountedBetween(
        *first_traffic_, rank_.groups->Count(plugin_.gather_group()), event_.step - first_step_);
    const auto file = ValueOrThrow(LineFile::Create(flags_.out + "/traffic.json"));
    OkOrThrow(file->Append(ToJson(record)));
  }
}

void TextRun::Validate() {
  const ValidationEvent event = driver::Validate(booster_, *boosted_, rank_.corpus, rank_.world,
                                                 {.batch = flags_.batch, .step = event_.step});
  if (metrics_ != nullptr) OkOrThrow(metrics_->Validation(event));
  if (share_ != nullptr) share_->TakeFlops();  // no part of the next step
}

void TextRun::ReportMemory() {
  if (rank_.plan == nullptr) return;
  Note(DescribeMemory(rank_.world, rank_.start));
  const PlanComparison plan = ComparePlan(*rank_.plan, rank_.world);
  Note(plan.text);
  if (rank_.world.rank() != 0 || flags_.out.empty() || plan.json.empty()) return;
  OkOrThrow(ValueOrThrow(LineFile::Create(flags_.out + "/plan.json"))->Append(plan.json));
}

void TextRun::WriteSample() { WriteSamples({flags_.prompt}); }

void TextRun::WriteSamples(const std::vector<std::string>& prompts) {
  if (rank_.world.context()->is_dry()) return;
  const auto averages = booster_.evaluation_weights();
  const std::vector<autograd::ParameterPtr> parameters = boosted_->model.Parameters();
  const bool sharded = std::ranges::any_of(
      parameters, [](const autograd::ParameterPtr& each) { return !each->is_local(); });
  if (plugin_.data_rank() != 0 && !sharded) return;
  const Corpus& corpus = rank_.corpus;
  // A sample of JSON Lines begins with the tokenizer's prefix and ends with its end of text.
  const bool has_end = corpus.end_of_text >= 0;
  for (const std::string& prompt : prompts) {
    Note("sample:\n" +
         Generate(booster_, boosted_->model, *corpus.tokenizer, prompt,
                  {.block = flags_.block,
                   .tokens = flags_.sample,
                   .temperature = flags_.temperature,
                   .seed = flags_.seed,
                   .prefix = has_end ? corpus.tokenizer->prefix() : std::vector<int32_t>{},
                   .end_of_text = corpus.end_of_text}));
  }
}

void TextRun::Note(const std::string& text) {
  if (metrics_ != nullptr) OkOrThrow(metrics_->Note(text));
}

int TextRun::exit_code() const { return checkpoints_->exit_code(); }

void TextRun::TellCheckpointNotes() {
  for (const std::string& note : checkpoints_->TakeNotes()) Note(note);
}

}  // namespace apogee::driver
