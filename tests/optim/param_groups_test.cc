// SPDX-License-Identifier: Apache-2.0

#include <gmock/gmock.h>

#include "apogee/optim/adam/adam.h"
#include "apogee/optim/optimizer.h"
#include "apogee/tensor/cpu/cpu_context.h"
#include "apogee/tests/support/says.h"

namespace apogee {
namespace param_groups_test {

using optim::AdamWOptions;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::Says;

std::vector<autograd::ParameterPtr> Parameters() {
  std::vector<autograd::ParameterPtr> parameters;
  const auto add = [&](const std::string& name, const Shape& shape) {
    parameters.push_back(std::make_shared<autograd::Parameter>(
        name, Tensor::Full(shape, DType::kF64, 1, CpuContext())));
  };
  add("embed.weight", {5, 4});
  add("block.fc.weight", {4, 4});
  add("block.fc.bias", {4});
  add("norm.weight", {4});
  return parameters;
}

std::vector<std::string> NamesOf(const optim::ParamGroup<AdamWOptions>& group) {
  std::vector<std::string> names;
  for (const auto& parameter : group.params) names.push_back(parameter->name());
  return names;
}

TEST(ParamGroupsTest, NormsAndBiasesDoNotDecay) {
  const auto parameters = Parameters();
  const AdamWOptions options{.lr = 0.5, .weight_decay = 0.1};
  const auto groups = optim::DecayGroups(parameters, options);
  ASSERT_EQ(groups.size(), 2u);
  EXPECT_THAT(NamesOf(groups[0]), ElementsAre("embed.weight", "block.fc.weight"));
  EXPECT_THAT(NamesOf(groups[1]), ElementsAre("block.fc.bias", "norm.weight"));
  EXPECT_EQ(groups[0].options.weight_decay, 0.1);
  EXPECT_EQ(groups[1].options.weight_decay, 0);
  EXPECT_EQ(groups[1].options.lr, 0.5);

  // With gradients of zero only the decay moves a weight: by lr * decay.
  optim::AdamW optimizer(optim::DecayGroups(parameters, options));
  for (const auto& parameter : parameters) {
    parameter->set_grad(Tensor::Zeros(parameter->shape(), DType::kF64, CpuContext()));
  }
  optimizer.step();
  EXPECT_NEAR(parameters[0]->data().ToVector<double>()[0], 0.95, 1e-15);
  EXPECT_EQ(parameters[3]->data().ToVector<double>()[0], 1);
}

TEST(ParamGroupsTest, ByNameTheFirstPatternCounts) {
  const auto groups = optim::GroupsByName(
      Parameters(), AdamWOptions{.lr = 1},
      {{"*.bias", {.lr = 2}}, {"block.*", {.lr = 3}}, {"norm.?eight", {.lr = 4}}});
  ASSERT_EQ(groups.size(), 4u);
  EXPECT_THAT(NamesOf(groups[0]), ElementsAre("block.fc.bias"));
  EXPECT_THAT(NamesOf(groups[1]), ElementsAre("block.fc.weight"));
  EXPECT_THAT(NamesOf(groups[2]), ElementsAre("norm.weight"));
  EXPECT_THAT(NamesOf(groups[3]), ElementsAre("embed.weight"));
  EXPECT_EQ(groups[1].options.lr, 3);
  EXPECT_EQ(groups[3].options.lr, 1);
}

TEST(ParamGroupsTest, APatternWithoutParametersIsAMistake) {
  EXPECT_THAT(
      [] {
        optim::GroupsByName(Parameters(), AdamWOptions{}, {{"*.gamma", {.lr = 2}}});
      },
      Says(AllOf(HasSubstr("no parameter for the pattern \"*.gamma\""), HasSubstr("spelling"))));
  // All of its parameters are taken.
  EXPECT_THAT(
      [] {
        optim::GroupsByName(Parameters(), AdamWOptions{}, {{"*", {}}, {"norm.*", {}}});
      },
      Says(HasSubstr("no parameter for the pattern \"norm.*\"")));
}

}  // namespace param_groups_test
}  // namespace apogee
