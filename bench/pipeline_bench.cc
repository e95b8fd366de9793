// SPDX-License-Identifier: Apache-2.0

// How long the stages of a pipeline wait, measured, compared with the schedules' formulas
// (plugins/pipeline/schedule.h). Prints one JSON line per schedule and number of micro-batches.
//
//   pipeline_bench --stages 4 --micros 8 16 --ms 8 --svg /tmp/bubbles
//
// The stages sleep instead of computing: the ranks don't need a core each, and all operations take
// the same time. So this measures the executor.
//
//   bubble    the share of the stages' time in which they waited, over all steps but the first
//   formula   the same for a schedule whose messages take no time
//   of_1f1b   bubble divided by the bubble that 1F1B measured
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <thread>

#include "apogee/autograd/node.h"
#include "apogee/booster/booster.h"
#include "apogee/booster/metrics/line_file.h"
#include "apogee/comm/launch.h"
#include "apogee/core/blocking_waits.h"
#include "apogee/core/trace/trace_writer.h"
#include "apogee/nn/losses.h"
#include "apogee/optim/momentum/sgd.h"
#include "apogee/pictures/timeline/timeline_svg.h"
#include "apogee/pictures/timeline/trace_reader.h"
#include "apogee/plugins/hybrid_parallel.h"

using namespace apogee;

namespace {

using Duration = std::chrono::duration<double>;

struct Options {
  int stages = 4;
  std::vector<int> micros = {8, 16};
  double ms = 8;  // of a stage's forward, and of each half of its backward
  int steps = 4;
  std::string svg;  // a prefix; empty: no pictures
};

class SleepNode : public autograd::Node {
 public:
  explicit SleepNode(Duration time) : time_(time) {}
  const char* name() const override { return "sleep"; }
  bool IsWeightEdge(size_t edge) const override { return edge == 1; }
  std::vector<Tensor> Backward(std::vector<Tensor> grads,
                               const autograd::BackwardContext& context) override {
    const bool all = context.part == autograd::GradPart::kAll;
    std::this_thread::sleep_for(all ? 2 * time_ : time_);
    std::vector<Tensor> result(2);
    if (context.part != autograd::GradPart::kWeights) result[0] = grads[0];
    if (context.part != autograd::GradPart::kInputs) {
      result[1] = Tensor::Zeros({1}, DType::kF32, grads[0].context());
    }
    return result;
  }

 private:
  Duration time_;
};

// Returns its input, after a delay.
class Sleeper : public nn::Module {
 public:
  Sleeper(int64_t width, Duration time, bool is_first)
      : time_(time), weight_(RegisterParameter("weight", {1}, nn::Init::Constant(1))) {
    if (is_first) input_ = RegisterParameter("input", {1, width}, nn::Init::Constant(1));
  }
  Tensor Forward(const Tensor& x) override {
    std::this_thread::sleep_for(time_);
    Tensor y = x.Detach().Clone();
    // The first stage also computes gradients of its inputs, so it takes as long as the others.
    const Tensor weight = weight_->value();
    const Tensor from = input_ != nullptr ? input_->value() : x;
    if (autograd::NeedsGrad({from})) {
      autograd::Attach(y, std::make_shared<SleepNode>(time_), {from, weight});
    }
    return y;
  }

 private:
  Duration time_;
  nn::ParameterPtr weight_, input_;
};

constexpr int64_t kWidth = 4;

class Sleepers : public nn::Chain {
 public:
  Sleepers(int parts, Duration time) {
    for (int i = 0; i < parts; ++i) {
      sleepers_.push_back(
          Register(std::to_string(i), std::make_shared<Sleeper>(kWidth, time, i == 0)));
    }
  }

 protected:
  std::vector<nn::Piece> MakePieces() override {
    std::vector<nn::Piece> pieces;
    for (const auto& sleeper : sleepers_) {
      pieces.push_back({.name = "sleeper",
                        .modules = {sleeper.get()},
                        .cost = 1,
                        .forward = std::ref(*sleeper)});
    }
    return pieces;
  }

 private:
  std::vector<std::shared_ptr<Sleeper>> sleepers_;
};

void Train(const comm::World& world, const Options& options, const pipeline::PipelineShape& shape) {
  Sleepers model(shape.num_parts(), Duration(options.ms / 1e3 / shape.num_chunks));
  model.Initialize(world.context(), {.seed = 1});
  optim::Sgd optimizer(model.Parameters(), {.lr = 0.1});
  HybridParallelOptions parallel{.pp_size = shape.num_stages, .schedule = shape.kind};
  parallel.num_microbatches = shape.num_micros;
  HybridParallelPlugin plugin(world, {}, parallel);
  Booster booster(plugin);
  Boosted boosted = booster.boost(model, optimizer, {.criterion = nn::CrossEntropyLoss()});
  const data::Batch batch = {
      Tensor::Full({shape.num_micros, kWidth}, DType::kF32, 1, world.context()),
      Tensor::Full({shape.num_micros}, DType::kI64, 1, world.context())};
  for (int step = 0; step < options.steps; ++step) {
    booster.execute_pipeline(batch, model, boosted.criterion, &boosted.optimizer);
    boosted.optimizer.step();
    boosted.optimizer.zero_grad();
  }
}

// All steps but the first, in which ranks start at different times.
std::vector<StepTimeline> Measure(const Options& options, const pipeline::PipelineShape& shape) {
  const std::string path = std::filesystem::temp_directory_path() /
                           ("pipeline_bench." + std::to_string(getpid()) + ".json");
  Trace trace;
  OkOrThrow(comm::launch({.num_ranks = shape.num_stages, .threads_per_rank = 1, .trace = &trace},
                         [&](comm::World& world) { Train(world, options, shape); }));
  OkOrThrow(WriteTrace(trace, path));
  std::stringstream text;
  text << std::ifstream(path).rdbuf();
  std::filesystem::remove(path);
  std::vector<StepTimeline> steps = Timelines(ValueOrThrow(ReadPipelineEvents(text.str(), path)));
  steps.erase(steps.begin());
  return steps;
}

double Run(const Options& options, const std::string& schedule, int micros, double of_1f1b) {
  pipeline::PipelineShape shape{.kind = ValueOrThrow(pipeline::ParsePipelineSchedule(schedule)),
                                .num_stages = options.stages,
                                .num_chunks = schedule == "1f1b" ? 1 : 2,
                                .num_micros = micros};
  const std::vector<StepTimeline> steps = Measure(options, shape);
  const double bubble = BubbleShare(steps);
  const double formula = pipeline::Simulate(shape, pipeline::MakeSchedule(shape), {}).bubble_share;
  std::printf(
      "{\"schedule\": \"%s\", \"stages\": %d, \"chunks\": %d, \"micros\": %d, \"bubble\": %.4f, "
      "\"formula\": %.4f, \"ratio\": %.3f, \"of_1f1b\": %.3f}\n",
      schedule.c_str(), shape.num_stages, shape.num_chunks, micros, bubble, formula,
      bubble / formula, of_1f1b > 0 ? bubble / of_1f1b : 1.0);
  if (!options.svg.empty()) {
    const std::string name = schedule + "-" + std::to_string(micros);
    OkOrThrow(ValueOrThrow(LineFile::Create(options.svg + "-" + name + ".svg"))
                  ->Append(TimelineSvg(steps.back(), name)));
  }
  return bubble;
}

}  // namespace

int main(int argc, char** argv) {
  UseBlockingWaits(argv);
  Options options;
  CLI::App app("How long the stages of a pipeline wait, compared with the formulas.");
  app.add_option("--stages", options.stages)->capture_default_str()->check(CLI::Range(2, 64));
  app.add_option("--micros", options.micros, "Micro-batches, at least as many as stages")
      ->capture_default_str();
  app.add_option("--ms", options.ms,
                 "Milliseconds of a stage's forward, and of each half of its backward")
      ->capture_default_str()
      ->check(CLI::PositiveNumber);
  app.add_option("--steps", options.steps, "Steps; the first is not counted")
      ->capture_default_str()
      ->check(CLI::Range(2, 1000));
  app.add_option("--svg", options.svg,
                 "Prefix of the files in which the last step of each run is drawn");
  CLI11_PARSE(app, argc, argv);
  try {
    for (const int micros : options.micros) {
      const double of_1f1b = Run(options, "1f1b", micros, 0);
      Run(options, "interleaved", micros, of_1f1b);
      Run(options, "zbv", micros, of_1f1b);
    }
  } catch (const std::exception& error) {
    std::fprintf(stderr, "pipeline_bench: %s\n", error.what());
    return 1;
  }
  return 0;
}
