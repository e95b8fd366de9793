// SPDX-License-Identifier: Apache-2.0

// HybridParallelPlugin and models with recurrent layers, whose units a plan divides.
#include <gtest/gtest.h>

#include "apogee/nn/recurrent.h"
#include "apogee/tests/plugins/hybrid/hybrid_refusals.h"
#include "apogee/tests/plugins/hybrid/hybrid_short_run.h"

namespace apogee {
namespace hybrid_recurrent_test {

using nn::parallel::ParallelPlan;
using nn::parallel::ParallelStyle;
using testing::ExpectBoostRefused;
using testing::ExpectEqualRuns;
using ::testing::HasSubstr;
using testing::ShortTask;

class Tagger : public nn::Module {
 public:
  Tagger()
      : table_(Register("table", std::make_shared<nn::Embedding>(8, 6))),
        lower_(
            Register("lower", std::make_shared<nn::Lstm>(
                                  6, 12, nn::RecurrentOptions{.num_layers = 2, .dropout = 0.2}))),
        upper_(Register("upper", std::make_shared<nn::Gru>(12, 12))),
        head_(Register("head", std::make_shared<nn::Linear>(12, 8))) {}
  Tensor Forward(const Tensor& tokens) override {
    return (*head_)((*upper_)((*lower_)((*table_)(tokens))));
  }

 private:
  std::shared_ptr<nn::Embedding> table_;
  std::shared_ptr<nn::Lstm> lower_;
  std::shared_ptr<nn::Gru> upper_;
  std::shared_ptr<nn::Linear> head_;
};

ParallelPlan TaggerPlan() {
  using enum ParallelStyle;
  return {.name = "tagger",
          .rules = {{.pattern = "lower", .style = kColumnGather},
                    {.pattern = "upper", .style = kColumn},
                    {.pattern = "head", .style = kRow}}};
}

TEST(HybridRecurrentTest, EqualsOneRank) {
  const testing::HybridTask task = ShortTask([] { return std::make_unique<Tagger>(); });
  for (const int stage : {0, 2, 3}) {
    ExpectEqualRuns(task, 4, {.tp_size = 2, .stage = stage, .plan = TaggerPlan()});
  }
  ExpectEqualRuns(task, 3, {.tp_size = 3, .plan = TaggerPlan()});
}

TEST(HybridRecurrentTest, UnitsThatRanksCannotDivide) {
  ExpectBoostRefused(
      5, {.tp_size = 5, .plan = TaggerPlan()}, [] { return std::make_unique<Tagger>(); },
      HasSubstr("tp 5 does not divide the 12 units of upper"));
}

}  // namespace hybrid_recurrent_test
}  // namespace apogee
