// SPDX-License-Identifier: Apache-2.0

// Attention as model families have it, over ranks: fused q, k and v of grouped queries, norms of
// heads, windows, scales, logits that are capped. Training equals that of one rank.
#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include "apogee/autograd/functions/arithmetic.h"
#include "apogee/autograd/functions/shape.h"
#include "apogee/nn/attention.h"
#include "apogee/nn/layers.h"
#include "apogee/tests/plugins/hybrid/hybrid_refusals.h"
#include "apogee/tests/plugins/hybrid/hybrid_short_run.h"

namespace apogee {
namespace hybrid_attention_test {

using nn::parallel::ParallelPlan;
using nn::parallel::PlanRule;
using nn::parallel::SequenceMode;
using ::testing::AllOf;
using testing::ExpectBoostRefused;
using testing::ExpectEqualRuns;
using ::testing::HasSubstr;
using testing::HybridTask;
using testing::ShortTask;
using enum nn::parallel::ParallelStyle;

constexpr int64_t kVocab = 11, kHeads = 8, kKeyHeads = 4, kHeadDim = 4, kWidth = kHeads * kHeadDim;

enum class Norm { kNone, kHeads, kLayerOfHeads, kColumns };

struct Setup {
  bool fused = false;
  Norm norm = Norm::kNone;
  nn::AttentionCoreOptions core = {.head_dim = kHeadDim, .scale = 0.4, .window = 3};
};

class Attention : public nn::Module {
 public:
  explicit Attention(const Setup& setup) : setup_(setup) {
    // Without positions the gradient of a key's bias is zero except for rounding, which optimizers
    // blow up.
    const nn::LinearOptions options{.bias = !setup.fused};
    const auto linear = [&](const char* name, int64_t in, int64_t out) {
      return Register(name, std::make_shared<nn::Linear>(in, out, options));
    };
    if (setup.fused) {
      qkv_ = linear("qkv", kWidth, (kHeads + 2 * kKeyHeads) * kHeadDim);
    } else {
      q_ = linear("q", kWidth, kWidth);
      k_ = linear("k", kWidth, kKeyHeads * kHeadDim);
      v_ = linear("v", kWidth, kKeyHeads * kHeadDim);
    }
    out_ = linear("out", kWidth, kWidth);
    q_norm_ = MakeNorm("q_norm", kHeads);
    k_norm_ = MakeNorm("k_norm", kKeyHeads);
    core_ = Register("core", std::make_shared<nn::AttentionCore>(setup.core));
  }

  Tensor Forward(const Tensor& x) override {
    Tensor y;
    if (setup_.fused) {
      y = (*core_)((*qkv_)(x));
    } else {
      const nn::RotarySettings rotary{.theta = 100};
      const Tensor q = core_->Rotated(Normal(q_norm_, (*q_)(x)), rotary);
      const Tensor k = core_->Rotated(Normal(k_norm_, (*k_)(x)), rotary);
      const Tensor out = core_->Attend(q, k, core_->Heads((*v_)(x)));
      y = autograd::View(out, {out.size(0), out.size(1), out.size(2) * kHeadDim});
    }
    return (*out_)(y);
  }

 private:
  std::shared_ptr<Module> MakeNorm(const char* name, int64_t heads) {
    if (setup_.norm == Norm::kNone) return nullptr;
    std::shared_ptr<Module> norm;
    if (setup_.norm == Norm::kHeads) norm = std::make_shared<nn::RmsNorm>(kHeadDim, 1e-3);
    if (setup_.norm == Norm::kLayerOfHeads) norm = std::make_shared<nn::LayerNorm>(kHeadDim, 1e-3);
    if (setup_.norm == Norm::kColumns) norm = std::make_shared<nn::RmsNorm>(heads * kHeadDim, 1e-3);
    return Register(name, norm);
  }
  Tensor Normal(const std::shared_ptr<Module>& norm, const Tensor& x) const {
    if (norm == nullptr) return core_->Heads(x);
    return setup_.norm == Norm::kColumns ? core_->Heads((*norm)(x)) : (*norm)(core_->Heads(x));
  }

  Setup setup_;
  std::shared_ptr<nn::Linear> qkv_, q_, k_, v_, out_;
  std::shared_ptr<Module> q_norm_, k_norm_;
  std::shared_ptr<nn::AttentionCore> core_;
};

class Model : public nn::Module {
 public:
  explicit Model(const Setup& setup)
      : table_(Register("table", std::make_shared<nn::Embedding>(kVocab, kWidth))),
        attention_(Register("attention", std::make_shared<Attention>(setup))),
        norm_(Register("norm", std::make_shared<nn::RmsNorm>(kWidth))),
        head_bias_(RegisterParameter("head_bias", {kVocab}, nn::Init::Normal(0, 1))),
        head_(Register("head", std::make_shared<nn::Linear>(table_->weight(), head_bias_,
                                                            nn::LinearOptions{.soft_cap = 2.0}))) {}
  Tensor Forward(const Tensor& tokens) override {
    const Tensor x = (*table_)(tokens);
    return (*head_)((*norm_)(autograd::Add(x, (*attention_)(x))));
  }

 private:
  std::shared_ptr<nn::Embedding> table_;
  std::shared_ptr<Attention> attention_;
  std::shared_ptr<nn::RmsNorm> norm_;
  autograd::ParameterPtr head_bias_;
  std::shared_ptr<nn::Linear> head_;
};

HybridTask TaskOf(const Setup& setup) {
  return ShortTask([setup] { return std::make_unique<Model>(setup); }, kVocab);
}

ParallelPlan PlanOf(const Setup& setup) {
  ParallelPlan plan{.name = "attention", .rules = {}, .output_module = "head"};
  const auto heads = [](const char* name, nn::parallel::ParallelStyle style, int64_t units) {
    return PlanRule{.pattern = std::string("attention.") + name,
                    .style = style,
                    .units = units,
                    .unit_name = "heads"};
  };
  if (setup.fused) {
    plan.rules = {{.pattern = "attention.qkv",
                   .style = kColumn,
                   .unit_name = "heads",
                   .section_units = {kHeads, kKeyHeads, kKeyHeads}}};
  } else {
    plan.rules = {heads("q", kColumn, kHeads), heads("k", kColumn, kKeyHeads),
                  heads("v", kColumn, kKeyHeads)};
  }
  if (setup.norm != Norm::kNone) {
    const auto style = setup.norm == Norm::kColumns ? kColumnNorm : kHeadNorm;
    plan.rules.push_back(heads("q_norm", style, kHeads));
    plan.rules.push_back(heads("k_norm", style, kKeyHeads));
  }
  plan.rules.push_back(heads("core", kAttention, kKeyHeads));
  plan.rules.push_back(heads("out", kRow, kHeads));
  plan.rules.push_back({.pattern = "table", .style = kVocabulary});
  plan.rules.push_back({.pattern = "head", .style = kVocabulary});
  return plan;
}

// In every mode of tensor and sequence parallelism, with replicated and sharded parameters.
void ExpectEqualInAllModes(const Setup& setup) {
  const HybridTask task = TaskOf(setup);
  const ParallelPlan plan = PlanOf(setup);
  const auto run = [&](int ranks, HybridParallelOptions options) {
    SCOPED_TRACE(::testing::Message() << ranks << " ranks, tp " << options.tp_size << ", sp "
                                      << Name(options.sp_mode) << ", stage " << options.stage);
    options.plan = plan;
    ExpectEqualRuns(task, ranks, options);
  };
  run(2, {.tp_size = 2});
  run(4, {.tp_size = 4, .stage = 1});
  run(4, {.tp_size = 2, .stage = 2});
  run(4, {.tp_size = 2, .stage = 3});
  run(2, {.tp_size = 2, .sp_mode = SequenceMode::kSplitGather});
  run(4, {.tp_size = 2, .sp_mode = SequenceMode::kSplitGather, .stage = 2});
  run(4, {.tp_size = 2, .sp_mode = SequenceMode::kSplitGather, .stage = 3});
  run(4, {.tp_size = 2, .sp_size = 2, .sp_mode = SequenceMode::kAllToAll, .stage = 1});
  run(2, {.sp_size = 2, .sp_mode = SequenceMode::kAllToAll});
  if (!setup.core.causal) return;
  run(4, {.tp_size = 2, .sp_size = 2, .sp_mode = SequenceMode::kRingAttention, .stage = 2});
  run(2, {.sp_size = 2, .sp_mode = SequenceMode::kRingAttention});
}

TEST(HybridAttentionTest, HeadNorms) { ExpectEqualInAllModes({.norm = Norm::kHeads}); }
TEST(HybridAttentionTest, LayerNormsOfHeads) {
  ExpectEqualInAllModes({.norm = Norm::kLayerOfHeads});
}
TEST(HybridAttentionTest, ColumnNorms) { ExpectEqualInAllModes({.norm = Norm::kColumns}); }

Setup Fused() {
  return {.fused = true,
          .core = {.head_dim = kHeadDim, .scale = 0.4, .window = 3, .queries_per_key = 2}};
}

TEST(HybridAttentionTest, FusedGroupedQueries) { ExpectEqualInAllModes(Fused()); }

TEST(HybridAttentionTest, BothDirections) {
  ExpectEqualInAllModes({.core = {.head_dim = kHeadDim, .causal = false}});
}

// Statistics of rows and columns, bases and blocks of a matrix that is cut in unequal sections.
TEST(HybridAttentionTest, OptimizersOfUnequalSections) {
  for (const char* optimizer :
       {"adafactor", "came", "scaled_adam", "lamb", "galore_adamw", "adamw8bit"}) {
    SCOPED_TRACE(optimizer);
    HybridTask task = TaskOf(Fused());
    task.optimizer = optimizer;
    if (task.optimizer == "adafactor") task.options["relative_step"] = "false";
    if (task.optimizer == "galore_adamw") task.options = {{"lr", "0.01"}, {"rank", "2"}};
    if (task.optimizer == "adamw8bit") task.options = {{"lr", "0.01"}, {"min_8bit_size", "0"}};
    for (const int stage : {0, 2}) {
      ExpectEqualRuns(task, 4, {.tp_size = 2, .stage = stage, .plan = PlanOf(Fused())});
    }
  }
}

template <typename Matcher>
void ExpectRefused(const HybridParallelOptions& options, const Setup& setup,
                   const std::function<void(ParallelPlan&)>& change, const Matcher& matcher) {
  HybridParallelOptions with_plan = options;
  with_plan.plan = PlanOf(setup);
  change(*with_plan.plan);
  ExpectBoostRefused(
      options.tp_size * options.sp_size, with_plan, [&] { return std::make_unique<Model>(setup); },
      matcher);
}

TEST(HybridAttentionTest, RingsNeedCausalAttention) {
  ExpectRefused(
      {.sp_size = 2, .sp_mode = SequenceMode::kRingAttention},
      {.core = {.head_dim = kHeadDim, .causal = false}}, [](ParallelPlan&) {},
      HasSubstr("attention.core is not causal, which sp_mode ring_attn needs; use "
                "all_to_all or split_gather"));
}

TEST(HybridAttentionTest, PlansThatDoNotFit) {
  const HybridParallelOptions two{.tp_size = 2};
  ExpectRefused(
      {.tp_size = 3}, Fused(), [](ParallelPlan&) {},
      HasSubstr("rule \"attention.qkv\" (column): tp 3 does not divide its sections of "
                "8, 4, 4 heads"));
  ExpectRefused(
      two, Fused(),
      [](ParallelPlan& plan) {
        plan.rules[0].section_units = {8, 4, 5};
      },
      AllOf(HasSubstr("tp 2 does not divide its sections of 8, 4, 5 heads"),
            HasSubstr("dim 0 of 64 does not consist of 8, 4, 5 equal units")));
  ExpectRefused(
      two, Fused(), [](ParallelPlan& plan) { plan.rules[0].units = 8; },
      HasSubstr("section_units 8, 4, 4 stand in place of sections (1) and units (8); leave these "
                "out"));
  ExpectRefused(
      two, Fused(), [](ParallelPlan& plan) { plan.rules[0].style = kColumnGather; },
      HasSubstr("(column_gather): section_units are 8, 4, 4, this style has one section"));
  ExpectRefused(
      two, {.norm = Norm::kLayerOfHeads},
      [](ParallelPlan& plan) { plan.rules[3].style = kColumnNorm; },
      HasSubstr("(column_norm): attention.q_norm is not an nn::RmsNorm"));
  ExpectRefused(
      two, {.norm = Norm::kHeads},
      [](ParallelPlan& plan) { plan.rules.push_back({.pattern = "table", .style = kHeadNorm}); },
      HasSubstr("(head_norm): rule \"table\" names table, too"));
  ExpectRefused(
      two, {.norm = Norm::kHeads},
      [](ParallelPlan& plan) {
        plan.rules.push_back({.pattern = "attention", .style = kHeadNorm});
      },
      HasSubstr("(head_norm): attention is not an nn::RmsNorm or nn::LayerNorm"));
}

}  // namespace hybrid_attention_test
}  // namespace apogee
