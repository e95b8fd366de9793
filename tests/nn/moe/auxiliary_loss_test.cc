// SPDX-License-Identifier: Apache-2.0

// Auxiliary losses against the formulas of docs/moe.md, and gradients by finite differences.
#include <gmock/gmock.h>

#include <cmath>

#include "apogee/autograd/engine.h"
#include "apogee/autograd/functions/arithmetic.h"
#include "apogee/autograd/recompute.h"
#include "apogee/nn/moe/moe.h"
#include "apogee/tests/support/grad_check.h"
#include "apogee/tests/support/says.h"
#include "apogee/tests/support/test_context.h"

namespace apogee::nn {
namespace auxiliary_loss_test {

using testing::ExpectGradients;
using ::testing::HasSubstr;
using testing::RandomTensor;
using testing::Says;

constexpr int64_t kHidden = 5, kSequences = 2, kLength = 4, kExperts = 3, kTopK = 2;

// Two layers, one after the other.
class TwoLayers : public Module {
 public:
  explicit TwoLayers(MoeConfig config) {
    config.num_experts = kExperts;
    config.top_k = kTopK;
    config.intermediate_size = 4;
    const MoeOptions options{.init = Init::Normal(0, 0.8)};
    for (const char* name : {"a", "b"}) {
      layers.push_back(Register(name, std::make_shared<Moe>(kHidden, config, options)));
    }
  }
  Tensor Forward(const Tensor& x) override { return (*layers[1])((*layers[0])(x)); }

  std::vector<std::shared_ptr<Moe>> layers;
};

class AuxiliaryLossTest : public ::testing::Test {
 protected:
  Tensor Input() const { return RandomTensor({kSequences, kLength, kHidden}, "x", context_); }
  std::shared_ptr<TwoLayers> Make(const MoeConfig& config) {
    auto model = std::make_shared<TwoLayers>(config);
    model->Initialize(context_, {.seed = 8, .dtype = DType::kF64});
    return model;
  }
  // The loss by `formula`, which gets the records, and the gradient with respect to the input.
  void ExpectLossAndGradients(
      const MoeConfig& config,
      const std::function<double(const std::vector<Moe::Record>&)>& formula) {
    const auto model = Make(config);
    (*model)(Input());
    std::vector<Moe::Record> records;
    for (const auto& layer : model->layers) records.push_back(layer->record());
    const double want = formula(records);
    EXPECT_NEAR(AuxiliaryLoss(*model).Item(), want, 1e-13 * std::fabs(want));
    ExpectGradients({Input()}, [&](const std::vector<Tensor>& in) {
      (*model)(in[0]);
      return AuxiliaryLoss(*model);
    });
  }

  const ContextPtr context_ = TestContext();
};

// E * sum_i counts_i / (tokens * divisor) * (mean over the tokens [begin, end) of the scores).
double Balance(const Moe::Record& record, int64_t begin, int64_t end, double divisor) {
  const std::vector<double> scores = record.scores.Detach().ToVector<double>();
  const double tokens = static_cast<double>(end - begin);
  double sum = 0;
  for (int64_t e = 0; e < kExperts; ++e) {
    double count = 0, mean = 0;
    for (int64_t t = begin; t < end; ++t) {
      double all = 0;  // sigmoid scores count as shares
      for (int64_t other = 0; other < kExperts; ++other) {
        all += scores[static_cast<size_t>(t * kExperts + other)];
      }
      mean += scores[static_cast<size_t>(t * kExperts + e)] / all / tokens;
      for (int64_t j = 0; j < kTopK; ++j) {
        count += record.chosen[static_cast<size_t>(t * kTopK + j)] == e ? 1 : 0;
      }
    }
    sum += count / (tokens * divisor) * mean;
  }
  return kExperts * sum;
}

TEST_F(AuxiliaryLossTest, MicroBatch) {
  for (const RouterScore score : {RouterScore::kSoftmax, RouterScore::kSigmoid}) {
    ExpectLossAndGradients(
        {.score = score, .balance = BalanceLoss::kMicroBatch, .balance_coefficient = 0.3},
        [](const std::vector<Moe::Record>& records) {
          const int64_t tokens = kSequences * kLength;
          return 0.3 *
                 (Balance(records[0], 0, tokens, kTopK) + Balance(records[1], 0, tokens, kTopK));
        });
  }
}

TEST_F(AuxiliaryLossTest, Sequence) {
  ExpectLossAndGradients({.balance = BalanceLoss::kSequence, .balance_coefficient = 0.7},
                         [](const std::vector<Moe::Record>& records) {
                           double sum = 0;
                           for (const Moe::Record& record : records) {
                             for (int64_t s = 0; s < kSequences; ++s) {
                               sum += Balance(record, s * kLength, (s + 1) * kLength, kTopK) /
                                      kSequences;
                             }
                           }
                           return 0.7 * sum;
                         });
}

// As transformers' load_balancing_loss_func: all layers are one set of tokens, and the counts are
// not divided by top_k.
TEST_F(AuxiliaryLossTest, HfLayers) {
  ExpectLossAndGradients(
      {.balance = BalanceLoss::kHfLayers, .balance_coefficient = 2},
      [](const std::vector<Moe::Record>& records) {
        Moe::Record all = records[0];
        const auto a = records[0].scores.Detach().ToVector<double>();
        auto both = a;
        const auto b = records[1].scores.Detach().ToVector<double>();
        both.insert(both.end(), b.begin(), b.end());
        const int64_t tokens = 2 * kSequences * kLength;
        all.scores =
            Tensor::FromVector<double>(both, {tokens, kExperts}, records[0].scores.context());
        all.chosen.insert(all.chosen.end(), records[1].chosen.begin(), records[1].chosen.end());
        return 2 * Balance(all, 0, tokens, 1);
      });
}

TEST_F(AuxiliaryLossTest, ZLoss) {
  ExpectLossAndGradients({.z_coefficient = 0.1}, [](const std::vector<Moe::Record>& records) {
    double sum = 0;
    for (const Moe::Record& record : records) {
      const std::vector<double> logits = record.logits.Detach().ToVector<double>();
      for (size_t t = 0; t < logits.size(); t += kExperts) {
        double exps = 0;
        for (size_t e = 0; e < kExperts; ++e) exps += std::exp(logits[t + e]);
        sum += std::pow(std::log(exps), 2) / (kSequences * kLength);
      }
    }
    return 0.1 * sum;
  });
}

// A recomputed layer gives its record once, and the gate the same gradient.
TEST_F(AuxiliaryLossTest, Recompute) {
  const MoeConfig config{.balance = BalanceLoss::kMicroBatch, .balance_coefficient = 0.5};
  const auto plain = Make(config), again = Make(config);
  const auto run = [&](Module& model, const Tensor& y) {
    autograd::Backward(autograd::Add(autograd::Sum(y), AuxiliaryLoss(model)));
    return model.FindParameter("a.gate.weight")->grad().ToVector<double>();
  };
  const Tensor x = Input();
  const auto want = run(*plain, (*plain)(x));
  EXPECT_EQ(run(*again, autograd::Recompute([&](const Tensor& in) { return (*again)(in); }, x)),
            want);
}

TEST_F(AuxiliaryLossTest, ModelsWithoutOne) {
  const auto model = Make({});
  (*model)(Input());
  EXPECT_EQ(AuxiliaryLoss(*model).Item(), 0);
  EXPECT_FALSE(model->layers[0]->record().scores.defined()) << "nobody needs them";
}

TEST_F(AuxiliaryLossTest, Misuse) {
  const auto model = Make({.z_coefficient = 1});
  EXPECT_THAT([&] { AuxiliaryLoss(*model); },
              Says(HasSubstr("\"a\" has had no forward since the last call")));
}

}  // namespace auxiliary_loss_test
}  // namespace apogee::nn
