// HybridParallelPlugin on the edges: weights that a plan sees in part, models that were cut before,
// parts that are padding only, gradients that are missing or not finite on some ranks only.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "apogee/autograd/functions/activation.h"
#include "apogee/autograd/functions/arithmetic.h"
#include "apogee/autograd/functions/loss.h"
#include "apogee/autograd/functions/norm.h"
#include "apogee/autograd/functions/shape.h"
#include "apogee/booster/booster.h"
#include "apogee/nn/parallel/functions.h"
#include "apogee/optim/adam.h"
#include "apogee/optim/grad_clip.h"
#include "apogee/optim/registry.h"
#include "apogee/plugins/hybrid_parallel.h"
#include "apogee/plugins/single_rank.h"
#include "apogee/tensor/cpu/cpu_context.h"
#include "apogee/tests/plugins/hybrid_refusals.h"
#include "apogee/tests/support/exactness.h"
#include "apogee/tests/support/run_ranks.h"
#include "apogee/tests/support/says.h"

namespace apogee {
namespace {

using nn::parallel::ParallelPlan;
using nn::parallel::ParallelStyle;
using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::RunRanks;
using testing::Says;
using testing::Weights;
using testing::WeightsOf;
using testing::WorstUpdateError;

constexpr int64_t kBatch = 8, kTokens = 4, kSteps = 5;

Tensor Ids(int64_t vocab, int64_t step, int64_t first, int64_t count, int64_t shift,
           const ContextPtr& context) {
  std::vector<int64_t> values;
  for (int64_t sample = first; sample < first + count; ++sample) {
    for (int64_t t = shift; t < kTokens + shift; ++t) {
      const auto place = static_cast<uint64_t>((step * kBatch + sample) * 16 + t);
      values.push_back(
          static_cast<int64_t>(Philox(MakeKey(5, "ids"), place)[0] % static_cast<uint64_t>(vocab)));
    }
  }
  return Tensor::FromVector<int64_t>(values, {count, kTokens}, context);
}

struct Task {
  std::function<std::unique_ptr<nn::Module>()> make;
  int64_t vocab = 8;
  Criterion criterion = nn::CrossEntropyLoss();
  std::string optimizer = "adamw";
  optim::OptionMap options = {{"lr", "0.01"}};
  double max_norm = 0.5;
};

std::unique_ptr<nn::Module> Initialized(const Task& task, const ContextPtr& context) {
  std::unique_ptr<nn::Module> model = task.make();
  model->Initialize(context, {.seed = 3, .dtype = DType::kF64});
  for (const auto& p : model->Parameters()) {
    if (p->name().ends_with("c_attn.bias")) p->set_requires_grad(false);
  }
  return model;
}

// Trains with a plugin, this rank's part of each batch, and returns whole weights.
Weights Train(const Task& task, nn::Module& model, optim::Optimizer& optimizer, Plugin& plugin,
              int data_rank, int data_size, const ContextPtr& context) {
  Booster booster(plugin);
  Boosted boosted = booster.boost(model, optimizer, task.criterion);
  const int64_t count = kBatch / data_size, first = data_rank * count;
  for (int64_t step = 0; step < kSteps; ++step) {
    booster.backward(
        boosted.criterion(boosted.model(Ids(task.vocab, step, first, count, 0, context)),
                          Ids(task.vocab, step, first, count, 1, context)),
        boosted.optimizer);
    boosted.optimizer.step();
    boosted.optimizer.zero_grad();
  }
  Weights weights;
  const auto* hybrid = dynamic_cast<const HybridParallelPlugin*>(&plugin);
  for (const auto& p : model.Parameters()) {
    weights[p->name()] =
        (hybrid != nullptr ? hybrid->WholeValue(*p) : p->data()).ToVector<double>();
  }
  return weights;
}

void ExpectEqualRuns(const Task& task, int num_ranks, HybridParallelOptions options) {
  if (testing::TooManyRanks(num_ranks)) GTEST_SKIP() << "needs " << num_ranks << " processes";
  options.precision = "f64";
  options.max_norm = task.max_norm;
  const ContextPtr context = CpuContext();
  const auto model = Initialized(task, context);
  const Weights start = WeightsOf(*model);
  const auto optimizer =
      ValueOrThrow(optim::MakeOptimizer(task.optimizer, model->Parameters(), task.options));
  SingleRankPlugin single({.precision = "f64", .max_norm = task.max_norm});
  const Weights want = Train(task, *model, *optimizer, single, 0, 1, context);
  std::vector<Weights> results(static_cast<size_t>(num_ranks));
  RunRanks(num_ranks, [&](comm::World& world) {
    const auto model = Initialized(task, world.context());
    const auto optimizer =
        ValueOrThrow(optim::MakeOptimizer(task.optimizer, model->Parameters(), task.options));
    HybridParallelPlugin plugin(world, options);
    results[static_cast<size_t>(world.rank())] = Train(
        task, *model, *optimizer, plugin, plugin.data_rank(), plugin.data_size(), world.context());
  });
  testing::ShareByRank(results);
  for (const Weights& other : results) EXPECT_EQ(other, results[0]) << "ranks differ";
  ASSERT_EQ(results[0].size(), want.size());
  const auto worst = WorstUpdateError(start, want, results[0]);
  EXPECT_LE(worst.error, 1e-9) << worst.name << ", " << num_ranks << " ranks, tp "
                               << options.tp_size << ", zero " << options.zero_stage << ", "
                               << task.optimizer;
}

nn::Gpt2Config Gpt2Of(int64_t vocab, bool tied = true) {
  return {.vocab_size = vocab,
          .n_positions = kTokens,
          .n_embd = 16,
          .n_layer = 1,
          .n_head = 4,
          .tie_word_embeddings = tied};
}

// Boosts a GPT-2 along a plan of these rules.
template <typename Matcher>
void ExpectRefused(const std::vector<nn::parallel::PlanRule>& rules, const Matcher& matcher) {
  testing::ExpectBoostRefused(
      2, {.tp_size = 2, .plan = {{.name = "mine", .rules = rules}}},
      [] { return std::make_unique<nn::Gpt2>(Gpt2Of(8)); }, matcher);
}

// Half the vocabulary's logits would come out of a head that runs whole on a table that is cut.
TEST(HybridParallelEdgeTest, ATiedWeightThatAPlanSeesInPart) {
  ExpectRefused({{.pattern = "transformer.wte", .style = ParallelStyle::kVocabulary}},
                AllOf(HasSubstr("\"transformer.wte\" (vocabulary)"),
                      HasSubstr("transformer.wte.weight is the weight of lm_head, too, which no "
                                "rule names")));
  ExpectRefused({{.pattern = "lm_head", .style = ParallelStyle::kVocabulary}},
                HasSubstr("transformer.wte.weight is the weight of transformer.wte, too"));
}

// The features of what is gathered or split are in order, those of sections are not.
TEST(HybridParallelEdgeTest, SectionsThatAStyleWouldMixUp) {
  const auto sections = [](const char* pattern, ParallelStyle style) {
    return std::vector<nn::parallel::PlanRule>{{.pattern = pattern, .style = style, .sections = 2}};
  };
  ExpectRefused(sections("*.c_fc", ParallelStyle::kColumnGather),
                HasSubstr("\"*.c_fc\" (column_gather): sections is 2, this style has one"));
  ExpectRefused(sections("*.mlp.c_proj", ParallelStyle::kRowSplit),
                HasSubstr("(row_split): sections is 2, this style has one"));
  ExpectRefused(sections("lm_head", ParallelStyle::kVocabulary),
                HasSubstr("(vocabulary): sections is 2, this style has one"));
  ExpectRefused(sections("*.drop", ParallelStyle::kDropout),
                HasSubstr("(dropout): sections is 2, this style has one"));
}

// Its output is not the head's: the criterion needs it whole.
class Probabilities : public nn::Gpt2 {
 public:
  Probabilities() : Gpt2(Gpt2Of(8)) {}
  Tensor Forward(const Tensor& tokens) override {
    return autograd::Scale(autograd::Softmax(Gpt2::Forward(tokens)), 4.0);
  }
};

TEST(HybridParallelEdgeTest, AModelDerivedFromAShippedOne) {
  const Task task{.make = [] { return std::make_unique<Probabilities>(); }};
  ExpectEqualRuns(task, 2, {.tp_size = 2});
}

TEST(HybridParallelEdgeTest, AModelThatWasCutBefore) {
  RunRanks(2, [](comm::World& world) {
    nn::Gpt2 model(Gpt2Of(8));
    model.Initialize(world.context(), {.seed = 1});
    optim::AdamW optimizer(model.Parameters(), {}), earlier(model.Parameters(), {});
    HybridParallelPlugin plugin(world, {.tp_size = 2});
    Booster(plugin).boost(model, optimizer);
    const Weights before = WeightsOf(model);
    EXPECT_THAT([&] { optim::AdamW(model.Parameters(), {}); },
                Says(AllOf(HasSubstr("transformer.wte.weight"), HasSubstr("has been cut"),
                           HasSubstr("before boost"))));
    const auto refuses = [&](Plugin&& other) {
      EXPECT_THAT([&] { Booster(other).boost(model, earlier); },
                  Says(AllOf(HasSubstr("transformer.wte.weight"), HasSubstr("boosted once"))));
      EXPECT_EQ(WeightsOf(model), before);
    };
    refuses(HybridParallelPlugin(world, {.tp_size = 2}));
    refuses(HybridParallelPlugin(world, {.tp_size = 1}));
    refuses(HybridParallelPlugin(world, {.tp_size = 1, .zero_stage = 1}));
    refuses(DdpPlugin(world.group()));
    refuses(LowLevelZeroPlugin(world.group()));
  });
}

// A rank's own norm would be another one on every rank, and so would the factor.
TEST(HybridParallelEdgeTest, ANormOfPartsIsRefused) {
  RunRanks(2, [](comm::World& world) {
    nn::Gpt2 model(Gpt2Of(8));
    model.Initialize(world.context(), {.seed = 1});
    optim::AdamW optimizer(model.Parameters(), {});
    HybridParallelPlugin plugin(world, {.tp_size = 2});
    Booster booster(plugin);
    Boosted boosted = booster.boost(model, optimizer, nn::CrossEntropyLoss());
    const Tensor ids = Ids(8, 0, 0, 2, 0, world.context());
    booster.backward(boosted.criterion(boosted.model(ids), ids), optimizer);
    const auto refused =
        Says(AllOf(HasSubstr("transformer.wte.weight"), HasSubstr("part"), HasSubstr("max_norm")));
    EXPECT_THAT([&] { optim::ClipGradNorm(model.Parameters(), {.max_norm = 1}); }, refused);
    EXPECT_THAT([&] { optim::GradNorm(model.Parameters()); }, refused);
    // Element by element, parts are no different.
    EXPECT_NO_THROW(optim::ClipGradValue(model.Parameters(), 1e-3));
  });
}

// 5 words on 4 ranks: two each, so that the last rank has padding only.
TEST(HybridParallelEdgeTest, ARankWithPaddingOnly) {
  for (const bool tied : {true, false}) {
    Task task{.make = [=] { return std::make_unique<nn::Gpt2>(Gpt2Of(5, tied)); }, .vocab = 5};
    for (const int zero : {0, 1, 2, 3})
      ExpectEqualRuns(task, 4, {.tp_size = 4, .zero_stage = zero});
    ExpectEqualRuns(task, 8, {.tp_size = 4, .zero_stage = 2});
  }
  for (const std::string optimizer : {"lamb", "adafactor", "came", "adamw8bit"}) {
    Task task{.make = [=] { return std::make_unique<nn::Gpt2>(Gpt2Of(5)); },
              .vocab = 5,
              .optimizer = optimizer};
    if (optimizer == "adamw8bit") task.options["min_8bit_size"] = "0";
    if (optimizer == "adafactor") task.options["relative_step"] = "false";
    for (const int zero : {0, 2, 3}) ExpectEqualRuns(task, 8, {.tp_size = 4, .zero_stage = zero});
  }
}

// Matrices of 16 have a rank of 4; 8-bit blocks end within rows and parts.
TEST(HybridParallelEdgeTest, EveryOptimizerOnParts) {
  for (const std::string& name : optim::OptimizerNames()) {
    const optim::OptionMap defaults = ValueOrThrow(optim::OptimizerDefaults(name));
    optim::OptionMap options;
    const auto set = [&](const char* key, const char* value) {
      if (defaults.contains(key)) options[key] = value;
    };
    if (!defaults.contains("relative_step")) set("lr", "0.005");
    set("weight_decay", "0.05");
    set("rank", "4");
    set("update_proj_gap", "2");
    set("min_8bit_size", "0");
    set("block_size", "64");
    const Task task{.make = [] { return std::make_unique<nn::Gpt2>(Gpt2Of(7)); },
                    .vocab = 7,
                    .optimizer = name,
                    .options = options,
                    .max_norm = name == "zero_one_adam" ? 0 : 0.5};  // which it refuses
    for (const int zero : {0, 1, 2, 3}) {
      if (zero > 0 && optim::TakesLocalGradients(name)) continue;
      ExpectEqualRuns(task, 2, {.tp_size = 2, .zero_stage = zero});
      ExpectEqualRuns(task, 8, {.tp_size = 4, .zero_stage = zero});
    }
  }
}

// Targets that do not count, inside and outside of the vocabulary.
TEST(HybridParallelEdgeTest, IgnoredTargets) {
  for (const int64_t ignored : {3, -100}) {
    Task task{.make = [] { return std::make_unique<nn::Gpt2>(Gpt2Of(7)); },
              .vocab = 7,
              .criterion = nn::CrossEntropyLoss{.ignore_index = ignored}};
    ExpectEqualRuns(task, 2, {.tp_size = 2});
    ExpectEqualRuns(task, 4, {.tp_size = 4, .zero_stage = 1});
  }
  RunRanks(2, [](comm::World& world) {
    nn::Gpt2 model(Gpt2Of(7));
    model.Initialize(world.context(), {.seed = 1});
    optim::AdamW optimizer(model.Parameters(), {});
    HybridParallelPlugin plugin(world, {.tp_size = 2});
    Booster booster(plugin);
    Boosted boosted = booster.boost(model, optimizer, nn::CrossEntropyLoss());
    const Tensor ids = Ids(7, 0, 0, 2, 0, world.context());
    const Tensor none = Tensor::Full({2, kTokens}, DType::kI64, -100, world.context());
    const Tensor logits = boosted.model(ids);
    // No target at all: whatever one rank says.
    const double want =
        nn::CrossEntropyLoss()(Tensor::Zeros({2, kTokens, 7}, DType::kF32, world.context()), none)
            .Item();
    EXPECT_EQ(std::isnan(boosted.criterion(logits, none).Item()), std::isnan(want));
    const Tensor narrow = Tensor::Zeros({2, kTokens, 3}, DType::kF32, world.context());
    EXPECT_THAT([&] { boosted.criterion(narrow, ids); },
                Says(AllOf(HasSubstr("[2, 4, 3]"), HasSubstr("neither whole, 7 words"),
                           HasSubstr("4 words of this rank"))));
    const Tensor outside = Tensor::Full({2, kTokens}, DType::kI64, 7, world.context());
    EXPECT_THAT([&] { boosted.criterion(logits, outside); }, Says(HasSubstr("7")));
  });
}

// Layers of one's own: sections through a pair, words in columns, a branch that not every sample
// takes.
class Branches : public nn::Module {
 public:
  Branches()
      : table_(Register("table", std::make_shared<nn::Embedding>(8, 12))),
        up_(Register("up", std::make_shared<nn::Linear>(
                               12, 24, nn::LinearOptions{.activation = Activation::kSilu}))),
        down_(Register("down", std::make_shared<nn::Linear>(
                                   24, 12, nn::LinearOptions{.layout = nn::WeightLayout::kInOut}))),
        rare_(Register("rare", std::make_shared<nn::Linear>(12, 12))),
        head_(Register("head", std::make_shared<nn::Linear>(
                                   12, 8, nn::LinearOptions{.layout = nn::WeightLayout::kInOut}))) {
  }
  Tensor Forward(const Tensor& tokens) override {
    Tensor x = (*table_)(tokens);
    x = autograd::Add(x, (*down_)((*up_)(x)));
    if (take_branch) x = autograd::Add(x, (*rare_)(x));
    return (*head_)(x);
  }
  bool take_branch = true;

 private:
  std::shared_ptr<nn::Embedding> table_;
  std::shared_ptr<nn::Linear> up_, down_, rare_, head_;
};

ParallelPlan BranchesPlan() {
  using enum ParallelStyle;
  return {.name = "branches",
          .rules = {{.pattern = "up", .style = kColumn, .sections = 3},
                    {.pattern = "down", .style = kRow, .sections = 3},
                    {.pattern = "rare", .style = kRowSplit},
                    {.pattern = "head", .style = kVocabulary}},
          .output_module = "head"};
}

TEST(HybridParallelEdgeTest, SectionsThroughAPairAndWordsInColumns) {
  const Task task{.make = [] { return std::make_unique<Branches>(); }};
  for (const int zero : {0, 2, 3}) {
    ExpectEqualRuns(task, 2, {.tp_size = 2, .zero_stage = zero, .plan = BranchesPlan()});
    ExpectEqualRuns(task, 8, {.tp_size = 4, .zero_stage = zero, .plan = BranchesPlan()});
  }
}

// One copy of the model takes a branch, the other does not: its gradient counts as zero there.
TEST(HybridParallelEdgeTest, AGradientOnSomeCopiesOnly) {
  const Task task{.make = [] { return std::make_unique<Branches>(); }};
  std::map<int, Weights> results;
  for (const int tp : {1, 2}) {
    for (const int zero : {0, 2}) {
      std::vector<Weights> of_rank(static_cast<size_t>(2 * tp));
      RunRanks(2 * tp, [&](comm::World& world) {
        const auto model = Initialized(task, world.context());
        optim::AdamW optimizer(model->Parameters(), {});
        HybridParallelPlugin plugin(world, {.tp_size = tp,
                                            .zero_stage = zero,
                                            .precision = "f64",
                                            .plan = BranchesPlan(),
                                            .bucket_bytes = 300});
        static_cast<Branches&>(*model).take_branch = plugin.data_rank() == 1;
        of_rank[static_cast<size_t>(world.rank())] =
            Train(task, *model, optimizer, plugin, plugin.data_rank(), 2, world.context());
      });
      testing::ShareByRank(of_rank);
      for (const Weights& other : of_rank) EXPECT_EQ(other, of_rank[0]);
      const Weights& first = results.emplace(0, of_rank[0]).first->second;
      EXPECT_LE(
          WorstUpdateError(WeightsOf(*Initialized(task, CpuContext())), first, of_rank[0]).error,
          1e-9);
    }
  }
}

// A norm of heads: each rank normalises its own, and has a part of the weight's gradient.
class HeadNorm : public nn::Module {
 public:
  HeadNorm()
      : table_(Register("table", std::make_shared<nn::Embedding>(8, 12))),
        up_(Register("up", std::make_shared<nn::Linear>(12, 16))),
        norm_(RegisterParameter("norm", {4}, nn::Init::Constant(1))),
        down_(Register("down", std::make_shared<nn::Linear>(16, 8))) {}
  Tensor Forward(const Tensor& tokens) override {
    const Tensor h = (*up_)((*table_)(tokens));
    const Shape heads{h.size(0), h.size(1), h.size(2) / 4, 4};
    const Tensor weight = nn::parallel::CopyToGroup(norm_->value(), group);
    const Tensor normal = autograd::RmsNorm(autograd::View(h, heads), weight, 1e-6);
    return (*down_)(autograd::View(normal, h.shape()));
  }
  comm::GroupPtr group = nullptr;  // that sums up the parts

 private:
  std::shared_ptr<nn::Embedding> table_;
  std::shared_ptr<nn::Linear> up_;
  autograd::ParameterPtr norm_;
  std::shared_ptr<nn::Linear> down_;
};

TEST(HybridParallelEdgeTest, AParameterWhereActivationsAreCut) {
  const ParallelPlan plan{.name = "head_norm",
                          .rules = {{.pattern = "up", .style = ParallelStyle::kColumn},
                                    {.pattern = "down", .style = ParallelStyle::kRow}}};
  const Task task{.make = [] { return std::make_unique<HeadNorm>(); }};
  const ContextPtr context = CpuContext();
  const auto plain = Initialized(task, context);
  const Weights start = WeightsOf(*plain);
  optim::AdamW plain_optimizer(plain->Parameters(), {});
  SingleRankPlugin single({.precision = "f64"});
  const Weights want = Train(task, *plain, plain_optimizer, single, 0, 1, context);
  for (const int zero : {0, 1, 2, 3}) {
    RunRanks(4, [&](comm::World& world) {
      const HybridParallelOptions options{
          .tp_size = 2, .zero_stage = zero, .precision = "f64", .plan = plan};
      for (const bool summed : {false, true}) {
        const auto model = Initialized(task, world.context());
        optim::AdamW optimizer(model->Parameters(), {});
        HybridParallelPlugin plugin(world, options);
        Weights got;
        const auto train = [&] {
          got = Train(task, *model, optimizer, plugin, plugin.data_rank(), 2, world.context());
        };
        if (summed) {
          static_cast<HeadNorm&>(*model).group = plugin.mesh().group(comm::Axis::kTp);
          train();
          EXPECT_LE(WorstUpdateError(start, want, got).error, 1e-9) << "zero " << zero;
        } else {
          std::string message;
          try {
            train();
          } catch (const Error& error) {
            message = error.what();
          }
          EXPECT_THAT(message,
                      AllOf(HasSubstr("every rank holds all of \"norm\", but their gradients"),
                            HasSubstr("CopyToGroup")));
        }
      }
    });
  }
}

// Ranks of one tp group that load by their rank in the world mix up their samples.
TEST(HybridParallelEdgeTest, RanksThatLoadDifferentData) {
  for (const int zero : {0, 2, 3}) {
    RunRanks(4, [&](comm::World& world) {
      const Task task{.make = [] { return std::make_unique<nn::Gpt2>(Gpt2Of(8)); }};
      const auto model = Initialized(task, world.context());
      optim::AdamW optimizer(model->Parameters(), {});
      HybridParallelPlugin plugin(world, {.tp_size = 2, .zero_stage = zero, .precision = "f64"});
      std::string message;
      try {
        Train(task, *model, optimizer, plugin, world.rank(), world.size(), world.context());
      } catch (const Error& error) {
        message = error.what();
      }
      EXPECT_THAT(message, AllOf(HasSubstr("different inputs"), HasSubstr("data_rank()")));
    });
  }
}

// A part that is not finite, on one rank: nobody steps.
TEST(HybridParallelEdgeTest, OneRankThatOverflowsHoldsAllBack) {
  for (const int zero : {0, 1, 2, 3}) {
    RunRanks(4, [&](comm::World& world) {
      nn::Gpt2 model(Gpt2Of(8));
      model.Initialize(world.context(), {.seed = 1});
      optim::AdamW optimizer(model.Parameters(), {});
      HybridParallelPlugin plugin(world, {.tp_size = 2, .zero_stage = zero, .precision = "fp16"});
      Booster booster(plugin);
      Boosted boosted = booster.boost(model, optimizer, nn::CrossEntropyLoss());
      const double scale = plugin.loss_scale();
      bool overflow = world.rank() == 3;
      model.FindParameter("transformer.h.0.mlp.c_fc.weight")
          ->AddGradHook([&](autograd::Parameter& parameter) {
            if (overflow) parameter.grad().Fill(std::numeric_limits<double>::infinity());
          });
      const Tensor ids = Ids(8, 0, 0, 2, 0, world.context());
      const auto train = [&] {
        booster.backward(boosted.criterion(boosted.model(ids), ids), optimizer);
        optimizer.step();
        optimizer.zero_grad();
      };
      train();
      EXPECT_TRUE(optimizer.last_step().skip) << "rank " << world.rank();
      EXPECT_EQ(plugin.loss_scale(), scale / 2) << "rank " << world.rank();
      overflow = false;
      train();
      EXPECT_FALSE(optimizer.last_step().skip) << "rank " << world.rank();
    });
  }
}

// After boost refused, a caller that goes on hears why, too.
TEST(HybridParallelEdgeTest, APluginWithoutAWorldThatFits) {
  RunRanks(3, [](comm::World& world) {
    HybridParallelPlugin plugin(world, {.tp_size = 2});
    const auto refused = Says(HasSubstr("tp_size 2 does not divide the world of 3 ranks"));
    EXPECT_THAT([&] { (void)plugin.NoSync(); }, refused);
    EXPECT_THAT([&] { plugin.loss_scale(); }, refused);
  });
}

// Layers keep what they need of the group; only steps need the plugin. (Of stage 3 every use of the
// model does.)
TEST(HybridParallelEdgeTest, AModelOutlivesItsPlugin) {
  for (const int zero : {0, 1, 2}) {
    RunRanks(4, [&](comm::World& world) {
      const Task task{.make = [] { return std::make_unique<nn::Gpt2>(Gpt2Of(7)); }, .vocab = 7};
      const auto train = [&](nn::Module& model, optim::Optimizer& optimizer) {
        HybridParallelPlugin plugin(world, {.tp_size = 2, .zero_stage = zero, .precision = "f64"});
        return Train(task, model, optimizer, plugin, plugin.data_rank(), 2, world.context());
      };
      const auto model = Initialized(task, world.context());
      optim::AdamW optimizer(model->Parameters(), {});
      const Weights whole = train(*model, optimizer);
      const auto plain = Initialized(task, world.context());
      for (const auto& p : plain->Parameters()) {
        p->set_value(Tensor::FromVector<double>(whole.at(p->name()), p->shape(), world.context()));
      }
      model->Train(false);
      const Tensor ids = Ids(7, 0, 0, 2, 0, world.context());
      const std::vector<double> got = (*model)(ids).ToVector<double>();
      const std::vector<double> want = (*plain)(ids).ToVector<double>();
      ASSERT_EQ(got.size(), want.size());
      for (size_t i = 0; i < got.size(); ++i) ASSERT_NEAR(got[i], want[i], 1e-12);
      EXPECT_THAT([&] { optimizer.step(); }, Says(HasSubstr("after its plugin was destroyed")));
    });
  }
}

// Two models train by turns, each with a plugin of its own.
TEST(HybridParallelEdgeTest, TwoModelsInOneWorld) {
  const Task task{.make = [] { return std::make_unique<nn::Gpt2>(Gpt2Of(7)); }, .vocab = 7};
  RunRanks(4, [&](comm::World& world) {
    const auto alone = Initialized(task, world.context());
    optim::AdamW alone_optimizer(alone->Parameters(), {});
    HybridParallelPlugin alone_plugin(world, {.tp_size = 2, .zero_stage = 2, .precision = "f64"});
    const Weights want = Train(task, *alone, alone_optimizer, alone_plugin,
                               alone_plugin.data_rank(), 2, world.context());
    const auto first = Initialized(task, world.context());
    const auto second = Initialized(task, world.context());
    optim::AdamW first_optimizer(first->Parameters(), {}),
        second_optimizer(second->Parameters(), {});
    HybridParallelPlugin first_plugin(world, {.tp_size = 2, .zero_stage = 2, .precision = "f64"});
    HybridParallelPlugin second_plugin(world, {.tp_size = 4, .precision = "f64"});
    Booster first_booster(first_plugin), second_booster(second_plugin);
    Boosted one = first_booster.boost(*first, first_optimizer, task.criterion);
    Boosted two = second_booster.boost(*second, second_optimizer, task.criterion);
    for (int64_t step = 0; step < kSteps; ++step) {
      const int64_t begin = first_plugin.data_rank() * 4;
      const auto ids = [&](int64_t from, int64_t count, int64_t shift) {
        return Ids(7, step, from, count, shift, world.context());
      };
      const Tensor first_loss = one.criterion(one.model(ids(begin, 4, 0)), ids(begin, 4, 1));
      const Tensor second_loss = two.criterion(two.model(ids(0, 8, 0)), ids(0, 8, 1));
      second_booster.backward(second_loss, second_optimizer);
      first_booster.backward(first_loss, first_optimizer);
      first_optimizer.step();
      second_optimizer.step();
      first_optimizer.zero_grad();
      second_optimizer.zero_grad();
    }
    const Weights start = WeightsOf(*Initialized(task, world.context()));
    for (const HybridParallelPlugin* plugin : {&first_plugin, &second_plugin}) {
      const nn::Module& model = plugin == &first_plugin ? *first : *second;
      Weights got;
      for (const auto& p : model.Parameters()) {
        got[p->name()] = plugin->WholeValue(*p).ToVector<double>();
      }
      EXPECT_LE(WorstUpdateError(start, want, got).error, 1e-9);
    }
  });
}

// What state_dict gives goes back in, and training from there gives the same weights.
TEST(HybridParallelEdgeTest, StatesGoBackIn) {
  for (const std::string name : {"adamw", "came"}) {
    for (const int zero : {0, 2, 3}) {
      RunRanks(4, [&](comm::World& world) {
        nn::Gpt2 model(Gpt2Of(7));
        model.Initialize(world.context(), {.seed = 1});
        const auto optimizer =
            ValueOrThrow(optim::MakeOptimizer(name, model.Parameters(), {{"lr", "0.01"}}));
        HybridParallelPlugin plugin(
            world, {.tp_size = 2, .zero_stage = zero, .precision = "bf16", .max_norm = 0.5});
        Booster booster(plugin);
        Boosted boosted = booster.boost(model, *optimizer, nn::CrossEntropyLoss());
        const auto train = [&](int64_t begin, int64_t end) {
          for (int64_t step = begin; step < end; ++step) {
            const int64_t first = plugin.data_rank() * 4;
            booster.backward(
                boosted.criterion(boosted.model(Ids(7, step, first, 4, 0, world.context())),
                                  Ids(7, step, first, 4, 1, world.context())),
                *optimizer);
            optimizer->step();
            optimizer->zero_grad();
          }
        };
        train(0, 2);
        optim::StateDict saved = optimizer->state_dict();
        for (auto& [parameter, state] : saved.params) {
          for (auto& [state_name, entry] : state.states) entry.value = entry.value.Clone();
        }
        std::map<std::string, Tensor> values;
        for (const auto& p : model.Parameters()) values[p->name()] = p->data().Clone();
        train(2, 4);
        const Weights want = WeightsOf(model);
        for (const auto& p : model.Parameters()) p->data().CopyFrom(values[p->name()]);
        const absl::Status status = optimizer->load_state_dict(saved);
        EXPECT_TRUE(status.ok()) << status;
        train(2, 4);
        EXPECT_EQ(WeightsOf(model), want) << name << " zero " << zero;
      });
    }
  }
}

}  // namespace
}  // namespace apogee
