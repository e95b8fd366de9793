// SPDX-License-Identifier: Apache-2.0

// TrainingOptions::f32_residual and keep_f32: what they compute, and what they refuse.
#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "apogee/booster/booster.h"
#include "apogee/nn/losses.h"
#include "apogee/nn/models/gpt2.h"
#include "apogee/nn/models/llama.h"
#include "apogee/optim/momentum/sgd.h"
#include "apogee/plugins/hybrid_parallel.h"
#include "apogee/plugins/single_rank.h"
#include "apogee/tests/support/run_ranks.h"
#include "apogee/tests/support/says.h"

namespace apogee {
namespace precision_test {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using testing::RunRanks;
using testing::Says;

constexpr int64_t kVocab = 33, kTokens = 12, kSamples = 6;

std::unique_ptr<nn::Module> MakeModel(bool llama) {
  if (llama) {
    return std::make_unique<nn::Llama>(nn::LlamaConfig{.vocab_size = kVocab,
                                                       .hidden_size = 48,
                                                       .intermediate_size = 80,
                                                       .num_hidden_layers = 4,
                                                       .num_attention_heads = 4,
                                                       .num_key_value_heads = 2,
                                                       .max_position_embeddings = kTokens});
  }
  return std::make_unique<nn::Gpt2>(nn::Gpt2Config{
      .vocab_size = kVocab, .n_positions = kTokens, .n_embd = 48, .n_layer = 4, .n_head = 4});
}

using Weights = std::map<std::string, std::vector<double>>;

constexpr double kElsewhere = std::numeric_limits<double>::quiet_NaN();

// Trains six steps on this rank's samples. Returns the changes of the weights, or of their masters;
// kElsewhere for the elements that another rank has.
Weights Train(Plugin& plugin, const ContextPtr& context, bool llama) {
  const std::unique_ptr<nn::Module> model = MakeModel(llama);
  model->Initialize(context, {.seed = 5});
  Weights change;
  for (const auto& p : model->Parameters()) change[p->name()] = p->data().ToVector<double>();
  optim::Sgd optimizer(model->Parameters(), {.lr = 0.1, .momentum = 0.9});
  Booster booster(plugin);
  Boosted boosted = booster.boost(*model, optimizer, {.criterion = nn::CrossEntropyLoss()});
  const int64_t count = kSamples / plugin.data_size(), first = plugin.data_rank() * count;
  for (int64_t step = 0; step < 6; ++step) {
    std::vector<int64_t> inputs, targets;
    for (int64_t i = first * kTokens; i < (first + count) * kTokens; ++i) {
      inputs.push_back((i * i + 7 * step) % kVocab);
      targets.push_back((i * i + 7 * step + 1 + i % 2) % kVocab);
    }
    booster.execute_pipeline({Tensor::FromVector<int64_t>(inputs, {count, kTokens}, context),
                              Tensor::FromVector<int64_t>(targets, {count, kTokens}, context)},
                             boosted.model, boosted.criterion, &boosted.optimizer);
    boosted.optimizer.step();
    boosted.optimizer.zero_grad();
  }
  for (optim::ParamView& view : optimizer.views()) {
    std::vector<double>& start = change[view.name()];
    const std::vector<double> end = view.master().ToVector<double>();
    std::vector<double> moved(start.size(), kElsewhere);
    size_t at = 0;
    for (const Segment& segment : view.layout().segments()) {
      for (int64_t i = segment.begin; i < segment.begin + segment.length; ++i) {
        moved[static_cast<size_t>(i)] = end[at++] - start[static_cast<size_t>(i)];
      }
    }
    start = moved;
  }
  return change;
}

Weights TrainAlone(const TrainingOptions& training, bool llama) {
  SingleRankPlugin plugin(training);
  return Train(plugin, CpuContext(), llama);
}

// Of the elements that `got` has.
double Distance(const Weights& got, const Weights& want) {
  double difference = 0, all = 0;
  for (const auto& [name, values] : want) {
    for (size_t i = 0; i < values.size(); ++i) {
      if (std::isnan(got.at(name)[i])) continue;
      difference += std::pow(got.at(name)[i] - values[i], 2);
      all += values[i] * values[i];
    }
  }
  return std::sqrt(difference / all);
}

TEST(PrecisionTest, AnF32ResidualStreamIsCloserToF64) {
  for (const bool llama : {false, true}) {
    const Weights want = TrainAlone({.precision = Precision::kF64}, llama);
    const double wide = Distance(TrainAlone({.precision = Precision::kBf16}, llama), want);
    const double narrow =
        Distance(TrainAlone({.precision = Precision::kBf16, .f32_residual = false}, llama), want);
    std::printf("distance from f64, llama %d: %.3e, with a bf16 stream %.3e\n", llama, wide,
                narrow);
    EXPECT_GT(wide, 1e-4) << llama;  // it is still bf16
    EXPECT_LT(wide, 0.9 * narrow) << llama;
  }
}

TEST(PrecisionTest, TheStreamIsF32AndProductsAreBf16) {
  for (const bool f32 : {true, false}) {
    nn::Gpt2 model({.vocab_size = 5, .n_positions = 4, .n_embd = 8, .n_layer = 1, .n_head = 2});
    model.Initialize(CpuContext(), {.seed = 1});
    optim::Sgd optimizer(model.Parameters(), {});
    SingleRankPlugin plugin({.precision = Precision::kBf16, .f32_residual = f32});
    Booster booster(plugin);
    Boosted boosted = booster.boost(model, optimizer);
    std::map<std::string, DType> inputs;
    std::vector<Subscription> hooks;
    for (const auto& [name, module] : model.NamedModules()) {
      hooks.emplace_back(module->AddPreForwardHook(
          [&inputs, name = name](nn::Module&, const Tensor& x) { inputs[name] = x.dtype(); }));
    }
    const Tensor logits = boosted.model(Tensor::FromVector<int64_t>({1, 2}, {1, 2}, CpuContext()));
    const DType stream = f32 ? DType::kF32 : DType::kBF16;
    EXPECT_EQ(inputs.at("transformer.h.0"), stream);
    EXPECT_EQ(inputs.at("transformer.h.0.ln_2"), stream);
    EXPECT_EQ(inputs.at("transformer.ln_f"), stream);
    EXPECT_EQ(inputs.at("transformer.h.0.attn.c_attn"), DType::kBF16);
    EXPECT_EQ(inputs.at("transformer.h.0.mlp.c_fc"), DType::kBF16);
    EXPECT_EQ(inputs.at("lm_head"), DType::kBF16);
    EXPECT_EQ(logits.dtype(), DType::kBF16);
  }
}

// If every module is kept, nothing is left of bf16.
TEST(PrecisionTest, AModelKeptInF32TrainsAsInF32) {
  for (const bool llama : {false, true}) {
    EXPECT_EQ(TrainAlone({.precision = Precision::kBf16, .keep_f32 = {"*"}}, llama),
              TrainAlone({.precision = Precision::kF32}, llama));
  }
}

TEST(PrecisionTest, RanksTrainAsOneRank) {
  using nn::parallel::SequenceMode;
  const std::map<std::string, HybridParallelOptions> layouts = {
      {"ddp", {.stage = 0}},
      {"zero2", {.stage = 2}},
      {"gemini", {.stage = 3}},
      {"tp", {.tp_size = 2}},
      {"pp", {.pp_size = 2, .num_microbatches = 2}},
      {"zbv", {.pp_size = 2, .schedule = pipeline::ScheduleKind::kZbv, .num_microbatches = 2}},
      {"split_gather", {.tp_size = 2, .sp_mode = SequenceMode::kSplitGather}},
      {"all_to_all", {.sp_size = 2, .sp_mode = SequenceMode::kAllToAll}},
      {"ring_attn", {.sp_size = 2, .sp_mode = SequenceMode::kRingAttention}}};
  const std::vector<std::string> keep = {"*_layernorm", "model.embed_tokens", "*.o_proj"};
  const TrainingOptions training{.precision = Precision::kBf16, .keep_f32 = keep};
  const Weights want = TrainAlone(training, true);
  const double error = Distance(want, TrainAlone({.precision = Precision::kF64}, true));
  for (const auto& [name, options] : layouts) {
    RunRanks(2, [&, name = name, options = options](comm::World& world) {
      HybridParallelPlugin plugin(world, training, options);
      EXPECT_LT(Distance(Train(plugin, world.context(), true), want), error) << name;
    });
  }
}

TEST(PrecisionTest, KeptParametersAreF32UnderEveryLayout) {
  for (const int stage : {0, 1, 2, 3}) {
    RunRanks(2, [&](comm::World& world) {
      const std::unique_ptr<nn::Module> model = MakeModel(false);
      model->Initialize(world.context(), {.seed = 5});
      optim::Sgd optimizer(model->Parameters(), {});
      HybridParallelPlugin plugin(
          world, {.precision = Precision::kBf16, .keep_f32 = {"*.ln_?", "transformer.h.1.mlp"}},
          {.stage = stage});
      Booster booster(plugin);
      Boosted boosted = booster.boost(*model, optimizer);
      for (const auto& parameter : model->Parameters()) {
        const bool kept = parameter->name().find(".ln_") != std::string::npos ||
                          parameter->name().find("h.1.mlp") != std::string::npos;
        EXPECT_EQ(parameter->dtype(), kept ? DType::kF32 : DType::kBF16) << parameter->name();
        EXPECT_EQ(parameter->grad_dtype(), DType::kF32) << parameter->name();
      }
      for (const optim::ParamView& view : optimizer.views()) {
        EXPECT_EQ(view.needs_master(), view.dtype() == DType::kBF16) << view.name();
      }
    });
  }
}

TEST(PrecisionTest, LayersCastF32InputsAndRefuseF64) {
  nn::Linear layer(3, 2);
  layer.Initialize(CpuContext(), {.seed = 1});
  optim::Sgd optimizer(layer.Parameters(), {});
  SingleRankPlugin plugin({.precision = Precision::kBf16});
  Booster booster(plugin);
  Boosted boosted = booster.boost(layer, optimizer);
  const Tensor x = Tensor::Full({4, 3}, DType::kF32, 1, CpuContext());
  EXPECT_EQ(boosted.model(x).ToVector<double>(),
            boosted.model(x.To(DType::kBF16)).ToVector<double>());
  EXPECT_THAT([&] { boosted.model(x.To(DType::kF64)); },
              Says(AllOf(HasSubstr("f64 and bf16"), HasSubstr("autograd::Cast"))));
}

TEST(PrecisionTest, APatternWithoutModulesIsRefusedByName) {
  const auto boost = [](const std::vector<std::string>& keep, Precision precision) {
    const std::unique_ptr<nn::Module> model = MakeModel(false);
    model->Initialize(CpuContext(), {.seed = 5});
    optim::Sgd optimizer(model->Parameters(), {});
    SingleRankPlugin plugin({.precision = precision, .keep_f32 = keep});
    Booster booster(plugin);
    Boosted boosted = booster.boost(*model, optimizer);
    for (const auto& parameter : model->Parameters()) {
      EXPECT_EQ(parameter->dtype(), DTypeOf(precision)) << parameter->name();
    }
  };
  EXPECT_THAT(
      [&] {
        boost({"*.ln_1", "*.norm", "h.?.mlp"}, Precision::kBf16);
      },
      Says(AllOf(HasSubstr("keep_f32"), HasSubstr("\"*.norm\""), HasSubstr("\"h.?.mlp\""),
                 Not(HasSubstr("\"*.ln_1\"")), HasSubstr("transformer.wte"))));
  // Tied to transformer.wte.
  EXPECT_THAT([&] { boost({"lm_head"}, Precision::kBf16); },
              Says(AllOf(HasSubstr("\"lm_head\""), HasSubstr("tied"))));
  EXPECT_THAT([&] { boost({"nothing"}, Precision::kF64); }, Says(HasSubstr("\"nothing\"")));
  boost({"*.ln_1"}, Precision::kF64);  // no effect
}

}  // namespace precision_test
}  // namespace apogee
