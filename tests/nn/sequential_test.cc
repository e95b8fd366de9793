// SPDX-License-Identifier: Apache-2.0

// Sequential, ModuleList, Function and Summary.
#include <gmock/gmock.h>

#include "apogee/autograd/functions/activation.h"
#include "apogee/nn/chain.h"
#include "apogee/nn/configured.h"
#include "apogee/nn/layers.h"
#include "apogee/tensor/cpu/cpu_context.h"
#include "apogee/tests/support/says.h"

namespace apogee {
namespace sequential_test {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::Says;

std::vector<std::string> NamesOf(const nn::Module& module) {
  std::vector<std::string> names;
  for (const nn::ParameterPtr& parameter : module.Parameters()) names.push_back(parameter->name());
  return names;
}

TEST(SequentialTest, RunsItsModulesInOrder) {
  const auto first = std::make_shared<nn::Linear>(4, 6), last = std::make_shared<nn::Linear>(6, 2);
  nn::Sequential model({first, nn::Function(autograd::Tanh), last});
  EXPECT_THAT(NamesOf(model), ElementsAre("0.weight", "0.bias", "2.weight", "2.bias"));
  EXPECT_EQ(model.Pieces().size(), 3u);
  model.Initialize(CpuContext(), {.seed = 3});
  const Tensor x = Tensor::FromVector<float>({1, -2, 3, 0.5}, {1, 4}, CpuContext());
  EXPECT_EQ(model(x).ToVector<double>(), (*last)(autograd::Tanh((*first)(x))).ToVector<double>());
}

TEST(SequentialTest, NamesOfItsOwnBelowAParent) {
  class Model : public nn::Module {
   public:
    Model()
        : body_(Register("body", std::make_shared<nn::Sequential>(
                                     std::vector<std::pair<std::string, std::shared_ptr<Module>>>{
                                         {"in", std::make_shared<nn::Linear>(3, 3)},
                                         {"out", std::make_shared<nn::Linear>(3, 3)}}))) {}
    Tensor Forward(const Tensor& x) override { return (*body_)(x); }

   private:
    std::shared_ptr<nn::Sequential> body_;
  };
  EXPECT_THAT(NamesOf(Model()),
              ElementsAre("body.in.weight", "body.in.bias", "body.out.weight", "body.out.bias"));
}

TEST(SequentialTest, WhatCannotRunIsRefused) {
  using Modules = std::vector<std::shared_ptr<nn::Module>>;
  EXPECT_THAT([] { nn::Sequential model{Modules{}}; }, Says(HasSubstr("at least one module")));
  EXPECT_THAT([] { nn::Sequential model{Modules{nullptr}}; },
              Says(HasSubstr("child \"0\" is null")));
  EXPECT_THAT([] { nn::Function(nullptr); }, Says(HasSubstr("the function is null")));
}

TEST(ModuleListTest, HoldsModulesOfOneType) {
  class Model : public nn::Module {
   public:
    Model() : layers_(Register("layers", std::make_shared<nn::ModuleList<nn::Linear>>())) {
      for (int i = 0; i < 3; ++i) layers_->Add(std::make_shared<nn::Linear>(2, 2));
    }
    Tensor Forward(const Tensor& x) override {
      Tensor y = x;
      for (const auto& layer : *layers_) y = (*layer)(y);
      return y;
    }
    std::shared_ptr<nn::ModuleList<nn::Linear>> layers_;
  };
  Model model;
  EXPECT_EQ(NamesOf(model).back(), "layers.2.bias");
  model.Initialize(CpuContext());
  const Tensor x = Tensor::FromVector<float>({1, 2}, {1, 2}, CpuContext());
  const nn::ModuleList<nn::Linear>& layers = *model.layers_;
  EXPECT_EQ(layers.size(), 3u);
  EXPECT_EQ(model(x).ToVector<double>(), layers[2](layers[1](layers[0](x))).ToVector<double>());
  EXPECT_THAT([&] { (*model.layers_)(x); },
              Says(HasSubstr("module list \"layers\": call its modules")));
}

TEST(SummaryTest, HasNamesShapesAndCounts) {
  nn::Sequential model({std::make_shared<nn::Linear>(64, 256)});
  EXPECT_THAT(nn::Summary(model), HasSubstr("0.weight   [256, 64]  -      16,384\n"));
  model.Initialize(CpuContext());
  model.Parameters()[1]->set_requires_grad(false);
  EXPECT_EQ(nn::Summary(model),
            "parameter        shape      dtype   count\n"
            "0.weight         [256, 64]  f32    16,384\n"
            "0.bias (frozen)  [256]      f32       256\n"
            "2 parameters, 16,640 elements, 65.0 KiB; frozen: 1\n");
  const auto half = [](const nn::Parameter& parameter) {
    return Layout(parameter.shape(),
                  {.segments = {{0, parameter.shape().numel() / 2}}, .num_replicas = 2});
  };
  EXPECT_THAT(nn::Summary(model, half), HasSubstr("16,384  8,192 of 16,384, 2 ranks\n"));
  EXPECT_THAT(nn::Summary(model, half), HasSubstr("; this rank: 8,320 elements\n"));
}

TEST(SummaryTest, HasBuffersBehindTheParameters) {
  nn::BatchNorm norm(4);
  EXPECT_EQ(nn::Summary(norm),
            "parameter              shape  dtype  count\n"
            "weight                 [4]    -          4\n"
            "bias                   [4]    -          4\n"
            "running_mean (buffer)  [4]    -          4\n"
            "running_var (buffer)   [4]    -          4\n"
            "2 parameters, 8 elements\n");
}

}  // namespace sequential_test
}  // namespace apogee
