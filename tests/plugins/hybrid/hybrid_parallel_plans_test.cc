// SPDX-License-Identifier: Apache-2.0

// HybridParallelPlugin and what plans do not say: weights that a plan sees in part, sections,
// models derived from shipped ones, branches that not every copy takes, parameters between cut
// layers.
#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <map>

#include "apogee/autograd/functions/activation.h"
#include "apogee/autograd/functions/arithmetic.h"
#include "apogee/autograd/functions/norm.h"
#include "apogee/autograd/functions/shape.h"
#include "apogee/nn/attention.h"
#include "apogee/nn/convolution.h"
#include "apogee/nn/parallel/functions.h"
#include "apogee/optim/adam/adam.h"
#include "apogee/plugins/hybrid_parallel.h"
#include "apogee/plugins/single_rank.h"
#include "apogee/tensor/cpu/cpu_context.h"
#include "apogee/tests/plugins/hybrid/hybrid_refusals.h"
#include "apogee/tests/plugins/hybrid/hybrid_short_run.h"
#include "apogee/tests/support/exactness.h"
#include "apogee/tests/support/run_ranks.h"

namespace apogee {
namespace hybrid_parallel_plans_test {

using nn::parallel::ParallelPlan;
using nn::parallel::ParallelStyle;
using nn::parallel::SequenceMode;
using ::testing::AllOf;
using testing::ExpectBoostRefused;
using testing::ExpectEqualRuns;
using ::testing::HasSubstr;
using testing::HybridTask;
using testing::Initialized;
using testing::RunRanks;
using testing::ShortGpt2;
using testing::ShortTask;
using testing::Train;
using testing::Weights;
using testing::WeightsOf;
using testing::WorstUpdateError;

// Boosts a GPT-2 along a plan of these rules.
template <typename Matcher>
void ExpectRefused(const std::vector<nn::parallel::PlanRule>& rules, const Matcher& matcher) {
  ExpectBoostRefused(
      2, {.tp_size = 2, .plan = {{.name = "mine", .rules = rules}}},
      [] { return std::make_unique<nn::Gpt2>(ShortGpt2(8)); }, matcher);
}

// Half the vocabulary's logits would come out of a head that runs whole on a table that is cut.
TEST(HybridParallelPlansTest, ATiedWeightThatAPlanSeesInPart) {
  ExpectRefused({{.pattern = "transformer.wte", .style = ParallelStyle::kVocabulary}},
                AllOf(HasSubstr("\"transformer.wte\" (vocabulary)"),
                      HasSubstr("transformer.wte.weight is the weight of lm_head, too, which no "
                                "rule names")));
  ExpectRefused({{.pattern = "lm_head", .style = ParallelStyle::kVocabulary}},
                HasSubstr("transformer.wte.weight is the weight of transformer.wte, too"));
}

// The features of what is gathered or split are in order, those of sections are not.
TEST(HybridParallelPlansTest, SectionsThatAStyleWouldMixUp) {
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
  Probabilities() : Gpt2(ShortGpt2(8)) {}
  Tensor Forward(const Tensor& tokens) override {
    return autograd::Scale(autograd::Softmax(Gpt2::Forward(tokens)), 4.0);
  }
};

TEST(HybridParallelPlansTest, AModelDerivedFromAShippedOne) {
  const HybridTask task = ShortTask([] { return std::make_unique<Probabilities>(); });
  ExpectEqualRuns(task, 2, {.tp_size = 2});
}

// A block of attention on words of which one is padding.
class Padded : public nn::Module {
 public:
  Padded()
      : table_(Register("table", std::make_shared<nn::Embedding>(8, 8, nn::Init::Normal(0, 1), 5))),
        qkv_(Register("qkv", std::make_shared<nn::Linear>(8, 24))),
        core_(Register("core", std::make_shared<nn::AttentionCore>(4))),
        out_(Register("out", std::make_shared<nn::Linear>(8, 8))),
        head_(Register("head", std::make_shared<nn::Linear>(8, 8))) {}
  Tensor Forward(const Tensor& tokens) override {
    const Tensor x = (*table_)(tokens);
    return (*head_)(autograd::Add(x, (*out_)((*core_)((*qkv_)(x)))));
  }

 private:
  std::shared_ptr<nn::Embedding> table_;
  std::shared_ptr<nn::Linear> qkv_;
  std::shared_ptr<nn::AttentionCore> core_;
  std::shared_ptr<nn::Linear> out_, head_;
};

TEST(HybridParallelPlansTest, PaddingLearnsNothing) {
  const HybridTask task = ShortTask([] { return std::make_unique<Padded>(); });
  const ParallelPlan plan{
      .name = "padded",
      .rules = {{.pattern = "table", .style = ParallelStyle::kVocabulary},
                {.pattern = "qkv", .style = ParallelStyle::kColumn, .sections = 3},
                {.pattern = "core", .style = ParallelStyle::kAttention},
                {.pattern = "out", .style = ParallelStyle::kRow}}};
  ExpectEqualRuns(task, 2, {.tp_size = 2, .plan = plan});
  ExpectEqualRuns(task, 2, {.tp_size = 2, .sp_mode = SequenceMode::kSplitGather, .plan = plan});
}

// Words as channels of sequences.
class Convolutions : public nn::Module {
 public:
  Convolutions()
      : table_(Register("table", std::make_shared<nn::Embedding>(8, 6))),
        up_(Register("up", std::make_shared<nn::Conv1d>(6, 12, 3, nn::ConvOptions{.padding = 1}))),
        down_(Register("down",
                       std::make_shared<nn::Conv1d>(12, 6, 3, nn::ConvOptions{.padding = 1}))),
        head_(Register("head", std::make_shared<nn::Linear>(6, 8))) {}
  Tensor Forward(const Tensor& tokens) override {
    Tensor x = autograd::Transpose((*table_)(tokens), 1, 2);
    x = autograd::Add(x, (*down_)(autograd::MaxPool1d(autograd::Tanh((*up_)(x)), 1)));
    return (*head_)(autograd::Transpose(x, 1, 2));
  }

 private:
  std::shared_ptr<nn::Embedding> table_;
  std::shared_ptr<nn::Conv1d> up_, down_;
  std::shared_ptr<nn::Linear> head_;
};

TEST(HybridParallelPlansTest, Convolutions) {
  const HybridTask task = ShortTask([] { return std::make_unique<Convolutions>(); });
  const ParallelPlan plan{.name = "convolutions",
                          .rules = {{.pattern = "up", .style = ParallelStyle::kColumn},
                                    {.pattern = "down", .style = ParallelStyle::kRow}}};
  ExpectEqualRuns(task, 2, {.tp_size = 2, .plan = plan});
  ExpectEqualRuns(task, 3, {.tp_size = 3, .plan = plan});
  ExpectEqualRuns(task, 4, {.tp_size = 2, .stage = 2, .plan = plan});
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

TEST(HybridParallelPlansTest, SectionsThroughAPairAndWordsInColumns) {
  const HybridTask task = ShortTask([] { return std::make_unique<Branches>(); });
  for (const int zero : {0, 2, 3}) {
    ExpectEqualRuns(task, 2, {.tp_size = 2, .stage = zero, .plan = BranchesPlan()});
    ExpectEqualRuns(task, 8, {.tp_size = 4, .stage = zero, .plan = BranchesPlan()});
  }
}

// One copy of the model takes a branch, the other does not: its gradient counts as zero there.
TEST(HybridParallelPlansTest, AGradientOnSomeCopiesOnly) {
  const HybridTask task = ShortTask([] { return std::make_unique<Branches>(); });
  std::map<int, Weights> results;
  for (const int tp : {1, 2}) {
    for (const int zero : {0, 2}) {
      std::vector<Weights> of_rank(static_cast<size_t>(2 * tp));
      RunRanks(2 * tp, [&](comm::World& world) {
        const auto model = Initialized(task, world.context());
        optim::AdamW optimizer(model->Parameters(), {});
        HybridParallelPlugin plugin(world, {.precision = Precision::kF64, .bucket_bytes = 300},
                                    {.tp_size = tp, .stage = zero, .plan = BranchesPlan()});
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

TEST(HybridParallelPlansTest, AParameterWhereActivationsAreCut) {
  const ParallelPlan plan{.name = "head_norm",
                          .rules = {{.pattern = "up", .style = ParallelStyle::kColumn},
                                    {.pattern = "down", .style = ParallelStyle::kRow}}};
  const HybridTask task = ShortTask([] { return std::make_unique<HeadNorm>(); });
  const ContextPtr context = CpuContext();
  const auto plain = Initialized(task, context);
  const Weights start = WeightsOf(*plain);
  optim::AdamW plain_optimizer(plain->Parameters(), {});
  SingleRankPlugin single({.precision = Precision::kF64});
  const Weights want = Train(task, *plain, plain_optimizer, single, 0, 1, context);
  for (const int zero : {0, 1, 2, 3}) {
    RunRanks(4, [&](comm::World& world) {
      const HybridParallelOptions options{.tp_size = 2, .stage = zero, .plan = plan};
      for (const bool summed : {false, true}) {
        const auto model = Initialized(task, world.context());
        optim::AdamW optimizer(model->Parameters(), {});
        HybridParallelPlugin plugin(world, {.precision = Precision::kF64}, options);
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

}  // namespace hybrid_parallel_plans_test
}  // namespace apogee
