// SPDX-License-Identifier: Apache-2.0

// Models that are not complete, or not as their plan says.
#include <algorithm>
#include <memory>
#include <tuple>

#include "apogee/apogee.h"
#include "misuse_cases.h"

namespace outside {
namespace {

namespace nn = apogee::nn;
namespace optim = apogee::optim;
using apogee::Boosted;
using apogee::Booster;
using apogee::Tensor;
using nn::parallel::ParallelPlan;

void Boost(apogee::Plugin& plugin, nn::Module& model) {
  optim::AdamW optimizer(model.Parameters(), {});
  Booster booster(plugin);
  std::ignore = booster.boost(model, optimizer, {.criterion = nn::CrossEntropyLoss()});
}

// One step under tensor parallelism with a plan of the case's own.
void TrainWithPlan(RankSetup& rank, const ModelConfig& config, const ParallelPlan& plan,
                   int tp_size = 2) {
  LanguageModel model(config);
  model.Initialize(rank.context(), {.seed = 1});
  apogee::HybridParallelPlugin plugin(rank.world, {}, {.tp_size = tp_size, .plan = plan});
  optim::AdamW optimizer(model.Parameters(), {});
  Booster booster(plugin);
  const Boosted boosted = booster.boost(model, optimizer, {.criterion = nn::CrossEntropyLoss()});
  rank.data_rank = plugin.data_rank();
  rank.Train(booster, boosted, 1);
}

ParallelPlan PlanWithout(const ModelConfig& config, const std::string& pattern) {
  ParallelPlan plan = PlanFor(config);
  std::erase_if(plan.rules, [&](const auto& rule) { return rule.pattern == pattern; });
  return plan;
}

void NotInitialized(RankSetup& rank) {
  LanguageModel model(rank.config);
  Boost(rank.plugin->plugin(), model);
}

void DropoutWithoutRule(RankSetup& rank) {
  ModelConfig config = rank.config;
  config.dropout = 0.1;
  TrainWithPlan(rank, config, PlanWithout(config, "*.mlp.drop"));
}

void ColumnsWithoutRows(RankSetup& rank) {
  TrainWithPlan(rank, rank.config, PlanWithout(rank.config, "*.mlp.down"));
}

void RuleOfNoModule(RankSetup& rank) {
  ParallelPlan plan = PlanFor(rank.config);
  plan.rules.push_back({.pattern = "*.typo", .style = nn::parallel::ParallelStyle::kColumn});
  TrainWithPlan(rank, rank.config, plan);
}

void HeadsThatDoNotDivide(RankSetup& rank) {
  ModelConfig config = rank.config;
  config.heads = 2;
  TrainWithPlan(rank, config, PlanFor(config), 4);
}

void RanksThatDoNotDivide(RankSetup& rank) {
  TrainWithPlan(rank, rank.config, PlanFor(rank.config), 3);
}

void WithoutPlan(RankSetup& rank) {
  apogee::HybridParallelPlugin plugin(rank.world, {}, {.tp_size = 2});
  Boost(plugin, *rank.model);
}

// A tied weight whose owner nobody registers.
class OrphanHead : public nn::Module {
 public:
  OrphanHead()
      : table_(std::make_shared<nn::Embedding>(61, 8)),
        head_(Register("head", std::make_shared<nn::Linear>(table_->weight()))) {}
  Tensor Forward(const Tensor& x) override { return (*head_)((*table_)(x)); }

 private:
  std::shared_ptr<nn::Embedding> table_;
  std::shared_ptr<nn::Linear> head_;
};

void TiedToNobody(RankSetup& rank) {
  OrphanHead model;
  model.Initialize(rank.context());
  model(rank.Batch().inputs);
}

// A second child under a name that is taken.
class TwoOfOneName : public nn::Module {
 public:
  TwoOfOneName() {
    Register("a", std::make_shared<nn::Linear>(8, 8));
    Register("a", std::make_shared<nn::Linear>(8, 8));
  }
  Tensor Forward(const Tensor& x) override { return x; }
};

void OneNameTwice(RankSetup& /*rank*/) { TwoOfOneName model; }

// Of what the optimizer and the plugin would never hear.
void RegisterAfterBoost(RankSetup& rank) {
  nn::Container model;
  model.Register("first", std::make_shared<nn::Linear>(8, 8));
  model.Initialize(rank.context());
  Boost(rank.plugin->plugin(), model);
  model.Register("late", std::make_shared<nn::Linear>(8, 8));
}

// A floating input that no layer casts to the dtype of the weights under the plugin.
void WrongInputDtype(RankSetup& rank) {
  nn::Mlp model({.sizes = {8, 16, 4}});
  model.Initialize(rank.context());
  optim::AdamW optimizer(model.Parameters(), {});
  NamedPlugin plugin("ddp", rank.world, {.precision = apogee::Precision::kBf16});
  Booster booster(plugin.plugin());
  std::ignore = booster.boost(model, optimizer);
  model(Tensor::Full({2, 8}, apogee::DType::kF64, 0.1, rank.context()));
}

}  // namespace

std::vector<MisuseCase> ModelMistakes() {
  return {{"not_initialized", "ddp", "Initialize", &NotInitialized},
          {"dropout_without_rule", "single", "kDropout", &DropoutWithoutRule},
          {"columns_without_rows", "single", "contracted dims differ", &ColumnsWithoutRows},
          {"rule_of_no_module", "single", "*.typo", &RuleOfNoModule},
          {"heads_that_do_not_divide", "single", "heads", &HeadsThatDoNotDivide},
          {"ranks_that_do_not_divide", "single", "tp_size", &RanksThatDoNotDivide},
          {"without_plan", "single", "plan", &WithoutPlan},
          {"tied_to_nobody", "single", "Register the module", &TiedToNobody},
          {"one_name_twice", "single", "another name", &OneNameTwice},
          {"register_after_boost", "ddp", "before the optimizer is made", &RegisterAfterBoost},
          {"wrong_input_dtype", "single", "Cast", &WrongInputDtype}};
}

}  // namespace outside
