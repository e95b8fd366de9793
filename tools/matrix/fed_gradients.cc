#include "apogee/tools/matrix/fed_gradients.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "apogee/autograd/functions/arithmetic.h"
#include "apogee/comm/layout.h"
#include "apogee/core/rng.h"
#include "apogee/nn/parallel/shard.h"

namespace apogee::tools {
namespace {

constexpr int64_t kNumSamples = 36;

bool Always(int64_t /*step*/, int64_t /*sample*/) { return true; }
bool Never(int64_t /*step*/, int64_t /*sample*/) { return false; }
// Absent everywhere in every fifth step.
bool MostSteps(int64_t step, int64_t /*sample*/) { return step % 5 != 4; }
// One rank's, then nobody's, then another rank's.
bool OneSample(int64_t step, int64_t sample) {
  return (step % 3 == 0 && sample == 0) || (step % 3 == 2 && sample == 25);
}
// The second half of the ranks (of the micro-steps, on one rank), from the third step on.
bool LateSamples(int64_t step, int64_t sample) {
  return step % 4 >= 2 && sample >= kNumSamples / 2;
}
// Only the first micro-step, which is one without synchronisation where there is such a thing.
bool FirstSample(int64_t step, int64_t sample) { return step % 2 == 0 && sample == 0; }

struct FedParam {
  const char* name;
  Shape shape;
  bool (*present)(int64_t step, int64_t sample);
  // Under tensor parallelism; nothing: held whole.
  std::optional<nn::parallel::TensorShard> shard = std::nullopt;
};

const std::vector<FedParam>& FedParams() {
  using Shard = nn::parallel::TensorShard;
  static const Shard rows{.dim = 0}, columns{.dim = 1}, padded{.dim = 0, .pad = true};
  static const auto& params = *new std::vector<FedParam>{
      {"row", {1, 40}, &Always, columns},
      {"column", {40, 1}, &Always, rows},
      {"tall", {33, 17}, &Always, padded},
      {"wide", {17, 33}, &Always},
      {"vector", {7}, &MostSteps},
      {"scalar", {}, &Always},
      {"cube", {3, 5, 7}, &Always},
      {"filter", {4, 3, 3, 3}, &Always, rows},
      {"large", {67, 61}, &Always, padded},
      {"tied", {9, 11}, &Always},
      {"never", {4, 4}, &Never, rows},
      {"some_ranks", {6, 10}, &OneSample},
      {"late", {8}, &LateSamples, rows},
      {"first_micro", {5, 9}, &FirstSample, padded},
      {"cut_wide", {12, 40}, &Always, columns},
      {"cut_tall", {40, 12}, &Always, rows},
      {"wide_rows", {12, 20}, &Always, rows},
      {"tall_columns", {20, 12}, &MostSteps, columns},
      {"sections_wide", {8, 24}, &Always, Shard{.dim = 1, .sections = 3}},
      {"sections_tall", {24, 8}, &Always, Shard{.dim = 0, .sections = 3}},
      {"frozen", {5, 6}, &Always},
  };
  return params;
}

class FedModel : public nn::Module {
 public:
  FedModel() {
    for (const FedParam& param : FedParams()) {
      RegisterParameter(param.name, param.shape, nn::Init::Normal(0, 0.5))
          ->set_requires_grad(std::string(param.name) != "frozen");
    }
  }
  // Where a plugin may have parameters whole for the occasion.
  Tensor Forward(const Tensor&) override { return loss_(); }
  void set_loss(std::function<Tensor()> loss) { loss_ = std::move(loss); }

 private:
  std::function<Tensor()> loss_;
};

// Nearly normal: the sum of four uniform bytes, standard deviation 148, in [-510, 510].
double Bell(uint32_t bits) {
  return static_cast<double>((bits & 255) + (bits >> 8 & 255) + (bits >> 16 & 255) + (bits >> 24)) -
         510;
}

// Powers of two from 1/4 to 4, log-normal.
std::vector<double> Scales(const std::string& name, int64_t count) {
  std::vector<double> scales;
  const PhiloxKey key = MakeKey(21, name);
  for (int64_t i = 0; i < count; ++i) {
    const double normal = Bell(Philox(key, static_cast<uint64_t>(i))[0]) / 148;
    scales.push_back(std::exp2(std::clamp(std::round(normal), -2.0, 2.0)));
  }
  return scales;
}

}  // namespace

struct FedGradients::Table {
  // [parameter][step * kNumSamples + sample]: odd integers below 384, over 512, times the scale of
  // the place. Multiples of three: a third of a mean over ranks is exact, too.
  std::vector<std::vector<std::vector<float>>> values;
};

FedGradients::FedGradients() {
  auto table = std::make_unique<Table>();
  for (const FedParam& param : FedParams()) {
    const std::string name = param.name;
    const comm::MatrixView matrix = comm::Layout(param.shape).matrix();
    const std::vector<double> rows = Scales(name + ".rows", matrix.batch * matrix.rows);
    const std::vector<double> cols = Scales(name + ".cols", matrix.cols);
    const PhiloxKey key = MakeKey(22, name);
    const int64_t numel = param.shape.numel();
    std::vector<std::vector<float>> all;
    for (int64_t draw = 0; draw < kNumSteps * kNumSamples; ++draw) {
      std::vector<float> values;
      std::array<uint32_t, 4> bits{};
      for (int64_t i = 0; i < numel; ++i) {
        if (i % 4 == 0) bits = Philox(key, static_cast<uint64_t>(i), static_cast<uint64_t>(draw));
        const double n = std::round(Bell(bits[static_cast<size_t>(i % 4)]) / 8.2);
        values.push_back(
            static_cast<float>(3 * (2 * n + 1) / 512 * rows[static_cast<size_t>(i / matrix.cols)] *
                               cols[static_cast<size_t>(i % matrix.cols)]));
      }
      all.push_back(std::move(values));
    }
    table->values.push_back(std::move(all));
  }
  table_ = std::move(table);
}

FedGradients::~FedGradients() = default;

std::unique_ptr<nn::Module> FedGradients::MakeModel() const { return std::make_unique<FedModel>(); }

std::optional<nn::parallel::ParallelPlan> FedGradients::plan() const {
  nn::parallel::ParallelPlan plan{.name = "fed", .rules = {}};
  for (const FedParam& param : FedParams()) {
    if (!param.shard) continue;
    plan.rules.push_back({.pattern = param.name,
                          .style = nn::parallel::ParallelStyle::kParameter,
                          .sections = param.shard->sections,
                          .dim = param.shard->dim,
                          .pad = param.shard->pad});
  }
  return plan;
}

Tensor FedGradients::Loss(const TrainedModel& trained, const SampleRange& range) const {
  auto& model = dynamic_cast<FedModel&>(trained.model);
  model.set_loss([&] { return LossInForward(trained, range); });
  return model(Tensor::Zeros({}, DType::kF32, trained.context));
}

Tensor FedGradients::LossInForward(const TrainedModel& trained, const SampleRange& range) const {
  Tensor loss;
  const auto add = [&loss](const Tensor& term) {
    loss = loss.defined() ? autograd::Add(loss, term) : term;
  };
  for (size_t p = 0; p < FedParams().size(); ++p) {
    const FedParam& param = FedParams()[p];
    // The mean of num_samples() times the table, an integer multiple whatever `count` is.
    std::vector<float> mean(static_cast<size_t>(param.shape.numel()), 0);
    bool present = false;
    for (int64_t sample = range.first; sample < range.first + range.count; ++sample) {
      if (!param.present(range.step, sample)) continue;
      present = true;
      const std::vector<float>& values =
          table_->values[p][static_cast<size_t>(range.step * kNumSamples + sample)];
      for (size_t i = 0; i < mean.size(); ++i) mean[i] += values[i];
    }
    if (!present) continue;
    for (float& value : mean) value *= static_cast<float>(kNumSamples / range.count);
    const autograd::ParameterPtr parameter = trained.model.FindParameter(param.name);
    const Tensor weight = parameter->value();
    Tensor grad = Tensor::FromVector<float>(mean, param.shape, trained.context, weight.dtype());
    if (trained.part) grad = trained.part(*parameter, grad);
    add(autograd::Sum(autograd::Mul(weight, grad)));
    // A second use, as of a tied weight: the gradient comes in two parts.
    if (std::string(param.name) == "tied") add(autograd::Sum(autograd::Mul(weight, grad)));
  }
  return loss;
}

}  // namespace apogee::tools
