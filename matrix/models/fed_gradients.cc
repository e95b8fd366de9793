// SPDX-License-Identifier: Apache-2.0

#include "apogee/matrix/models/fed_gradients.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "apogee/autograd/functions/arithmetic.h"
#include "apogee/autograd/functions/linear.h"
#include "apogee/autograd/functions/shape.h"
#include "apogee/core/rng.h"
#include "apogee/layout/layout.h"
#include "apogee/nn/chain.h"
#include "apogee/nn/parallel/shard.h"

namespace apogee::matrix {
namespace {

constexpr int64_t kNumSamples = 36;
// The number of pieces that a pipeline can divide.
constexpr size_t kNumPieces = 8;

bool Always(int64_t /*step*/, int64_t /*sample*/) { return true; }
bool Never(int64_t /*step*/, int64_t /*sample*/) { return false; }
// Absent everywhere in every fifth step.
bool MostSteps(int64_t step, int64_t /*sample*/) { return step % 5 != 4; }
// One rank has it, then no rank, then another rank.
bool OneSample(int64_t step, int64_t sample) {
  return (step % 3 == 0 && sample == 0) || (step % 3 == 2 && sample == 25);
}
// The second half of the ranks has it (on one rank: of the micro-steps), from the third step on.
bool LateSamples(int64_t step, int64_t sample) {
  return step % 4 >= 2 && sample >= kNumSamples / 2;
}
// Only the first micro-step has it; under no_sync that is one without synchronisation.
bool FirstSample(int64_t step, int64_t sample) { return step % 2 == 0 && sample == 0; }

struct FedParam {
  const char* name;
  Shape shape;
  bool (*present)(int64_t step, int64_t sample);
  // Under tensor parallelism; nothing: whole on every rank.
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

// Approximately normal: the sum of four uniform bytes, standard deviation 148, in [-510, 510].
double Bell(uint32_t bits) {
  return static_cast<double>((bits & 255) + (bits >> 8 & 255) + (bits >> 16 & 255) + (bits >> 24)) -
         510;
}

// Powers of two from 1/4 to 4, distributed log-normally.
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
  // [parameter][step * kNumSamples + sample][element]: 3 times an odd integer below 128, divided by
  // 512, times the scale of the element. As multiples of three, means over three ranks are exact,
  // too.
  std::vector<std::vector<std::vector<float>>> values;
};

FedGradients::FedGradients() {
  auto table = std::make_unique<Table>();
  for (const FedParam& param : FedParams()) {
    const std::string name = param.name;
    const MatrixView matrix = Layout(param.shape).matrix();
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

// A chain of terms. The tensor between two pieces is [samples, 2]: the sample's number (of all
// steps) and its loss so far.
class FedGradients::Model : public nn::Chain {
 public:
  explicit Model(const Table& table) : table_(table) {
    for (const FedParam& param : FedParams()) {
      parameters_.push_back(RegisterParameter(param.name, param.shape, nn::Init::Normal(0, 0.5)));
      parameters_.back()->set_requires_grad(std::string(param.name) != "frozen");
    }
  }
  void set_part(const PartFunction& part) { part_ = part; }

 protected:
  std::vector<nn::Piece> MakePieces() override {
    std::vector<std::vector<size_t>> terms(kNumPieces);
    for (size_t p = 0; p < parameters_.size(); ++p) {
      terms[p % kNumPieces].push_back(p);
      // A second use, like a tied weight: the gradient has two contributions.
      if (parameters_[p]->name() == "tied") terms[kNumPieces - 1 - p % kNumPieces].push_back(p);
    }
    std::vector<nn::Piece> pieces;
    for (size_t i = 0; i < kNumPieces; ++i) {
      std::vector<nn::ParameterPtr> used;
      for (const size_t p : terms[i]) used.push_back(parameters_[p]);
      pieces.push_back({.name = "terms." + std::to_string(i),
                        .tied = std::move(used),
                        .cost = 1,
                        .forward = [this, own = terms[i]](const Tensor& x) {
                          Tensor y =
                              IsFloat(x.dtype()) ? x : Begin(x, parameters_[own[0]]->dtype());
                          for (const size_t p : own) y = AddTerm(y, p);
                          return y;
                        }});
    }
    return pieces;
  }

 private:
  static Tensor Begin(const Tensor& samples, DType dtype) {
    std::vector<double> values;
    for (const int64_t sample : samples.ToVector<int64_t>()) {
      values.push_back(static_cast<double>(sample));
      values.push_back(0);
    }
    return Tensor::FromVector<double>(values, {samples.numel(), 2}, samples.context(), dtype);
  }

  // Adds the term of parameter `p` for the samples that have a gradient of it. If none has, the
  // gradient stays absent.
  Tensor AddTerm(const Tensor& x, size_t p) const {
    const FedParam& param = FedParams()[p];
    const std::vector<double> numbers = x.Detach().ToVector<double>();
    std::vector<Tensor> rows;
    bool present = false;
    for (size_t i = 0; i < numbers.size(); i += 2) {
      const auto number = static_cast<int64_t>(numbers[i]);
      const bool has = param.present(number / kNumSamples, number % kNumSamples);
      present = present || has;
      const std::vector<float>& values = table_.values[p][static_cast<size_t>(number)];
      const std::vector<float> row = has ? values : std::vector<float>(values.size(), 0);
      const Tensor grad = Tensor::FromVector<float>(row, param.shape, x.context(), x.dtype());
      rows.push_back(part_ ? part_(*parameters_[p], grad) : grad);
    }
    if (!present) return x;
    const int64_t count = x.size(0), numel = rows[0].numel();
    const Tensor table = Tensor::Empty({count, numel}, x.dtype(), x.context());
    for (int64_t i = 0; i < count; ++i) {
      table.Slice(0, i, 1).CopyFrom(rows[static_cast<size_t>(i)].Contiguous().View({1, numel}));
    }
    const Tensor term =
        autograd::MatMul(table, autograd::View(parameters_[p]->value(), {numel, 1}));
    const Tensor to_loss = Tensor::FromVector<double>({0, 1}, {1, 2}, x.context(), x.dtype());
    return autograd::Add(x, autograd::MatMul(term, to_loss));
  }

  const Table& table_;
  std::vector<nn::ParameterPtr> parameters_;
  PartFunction part_;
};

std::unique_ptr<nn::Module> FedGradients::MakeModel() const {
  return std::make_unique<Model>(*table_);
}

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

// num_samples() times the mean: the gradient is an integer multiple of the table's values, for any
// number of samples.
Criterion FedGradients::criterion() const {
  return [](const Tensor& output, const Tensor& /*target*/) {
    const Tensor loss =
        Tensor::FromVector<double>({0, 1}, {2, 1}, output.context(), output.dtype());
    return autograd::Scale(autograd::Sum(autograd::MatMul(output, loss)),
                           static_cast<double>(kNumSamples) / static_cast<double>(output.size(0)));
  };
}

void FedGradients::Prepare(const TrainedModel& trained) const {
  dynamic_cast<Model&>(trained.model).set_part(trained.part);
}

data::Batch FedGradients::Batch(const ContextPtr& context, const SampleRange& range) const {
  std::vector<int64_t> samples;
  for (int64_t i = 0; i < range.count; ++i) {
    samples.push_back(range.step * kNumSamples + range.first + i);
  }
  const Tensor numbers = Tensor::FromVector<int64_t>(samples, {range.count}, context);
  return {numbers, numbers};
}

}  // namespace apogee::matrix
