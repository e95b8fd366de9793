// SPDX-License-Identifier: Apache-2.0

// Full names are the path from the root, regardless of the order of registration; what two modules
// register is there once; names that would be one are refused.
#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include "apogee/nn/layers.h"
#include "apogee/tensor/cpu/cpu_context.h"
#include "apogee/tests/support/message_of.h"

namespace apogee::nn {
namespace module_names_test {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::MessageOf;

std::shared_ptr<Linear> Layer() { return std::make_shared<Linear>(3, 3); }

std::vector<std::string> ParameterNames(const Module& model) {
  std::vector<std::string> names;
  for (const ParameterPtr& parameter : model.Parameters()) names.push_back(parameter->name());
  return names;
}

std::vector<std::string> ModuleNames(Module& model) {
  std::vector<std::string> names;
  for (const auto& [name, module] : model.NamedModules()) names.push_back(name);
  return names;
}

// blocks.{0, 1}.fc, and whether parents are registered before their children.
class Blocks : public Container {
 public:
  explicit Blocks(bool parents_first) {
    const auto blocks = std::make_shared<Container>();
    if (parents_first) Register("blocks", blocks);
    for (const std::string name : {"0", "1"}) {
      const auto block = std::make_shared<Container>();
      if (parents_first) blocks->Register(name, block);
      layers.push_back(block->Register("fc", Layer()));
      if (!parents_first) blocks->Register(name, block);
    }
    if (!parents_first) Register("blocks", blocks);
  }
  std::vector<std::shared_ptr<Linear>> layers;
};

TEST(ModuleNamesTest, ArePathsWhateverTheOrderOfRegistration) {
  Blocks down(true), up(false);
  EXPECT_THAT(ParameterNames(down), ElementsAre("blocks.0.fc.weight", "blocks.0.fc.bias",
                                                "blocks.1.fc.weight", "blocks.1.fc.bias"));
  EXPECT_EQ(ParameterNames(down), ParameterNames(up));
  EXPECT_EQ(ModuleNames(down), ModuleNames(up));
  EXPECT_EQ(down.layers[1]->full_name(), "blocks.1.fc");
  EXPECT_EQ(down.full_name(), "");
  EXPECT_NE(down.FindParameter("blocks.1.fc.bias"), nullptr);
  down.Initialize(CpuContext(), {.seed = 1});
  up.Initialize(CpuContext(), {.seed = 1});
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(down.Parameters()[i]->data().ToVector<float>(),
              up.Parameters()[i]->data().ToVector<float>());
  }
  EXPECT_NE(down.layers[0]->weight()->data().ToVector<float>(),
            down.layers[1]->weight()->data().ToVector<float>());
}

TEST(ModuleNamesTest, ParametersDeclaredLateHaveThemToo) {
  class Late : public Container {
   public:
    using Module::RegisterParameter;
  };
  Container model;
  const auto late = model.Register("late", std::make_shared<Late>());
  late->RegisterParameter("scale", {2}, Init::Constant(1));
  EXPECT_THAT(ParameterNames(model), ElementsAre("late.scale"));
  EXPECT_THAT(MessageOf([&] { late->RegisterParameter("scale", {2}, Init::Constant(1)); }),
              HasSubstr("module \"late\" has a parameter \"scale\" already"));
}

TEST(ModuleNamesTest, TheRandomStateIsTheRoots) {
  Blocks down(true);
  for (Module* module : down.Modules()) EXPECT_EQ(&module->generator(), &down.generator());
}

TEST(ModuleNamesTest, WhatIsRegisteredTwiceIsThereOnceUnderItsFirstName) {
  const auto layer = Layer();
  Container twice;
  twice.Register("a", layer);
  twice.Register("b", layer);
  EXPECT_THAT(ParameterNames(twice), ElementsAre("a.weight", "a.bias"));
  EXPECT_THAT(ModuleNames(twice), ElementsAre("", "a"));
  EXPECT_EQ(twice.num_parameters(), 12);
  // Under two parents, of which the second comes first in the tree.
  const auto shared = std::make_shared<Container>();
  shared->Register("fc", Layer());
  const auto first = std::make_shared<Container>(), second = std::make_shared<Container>();
  first->Register("mine", shared);
  second->Register("other", shared);
  Container model;
  model.Register("second", second);
  model.Register("first", first);
  EXPECT_THAT(ParameterNames(model), ElementsAre("first.mine.fc.weight", "first.mine.fc.bias"));
  EXPECT_THAT(ModuleNames(model),
              ElementsAre("", "second", "first.mine", "first.mine.fc", "first"));
  // Below a module that does not contain the first registration.
  EXPECT_THAT(ModuleNames(*second), ElementsAre("", "other", "other.fc"));
}

TEST(ModuleNamesTest, AChildOutlivesItsFirstParent) {
  const auto layer = Layer();
  { Container().Register("gone", layer); }
  EXPECT_EQ(layer->full_name(), "");
  Container model;
  model.Register("here", layer);
  EXPECT_THAT(ParameterNames(model), ElementsAre("here.weight", "here.bias"));
}

TEST(ModuleNamesTest, TwoOfOneNameAreRefused) {
  Container model;
  const auto a = model.Register("a", std::make_shared<Container>());
  a->Register("b", Layer());
  EXPECT_THAT(MessageOf([&] { a->Register("b", Layer()); }),
              HasSubstr("module \"a\" has a child \"b\" already"));
  model.Register("a.b", Layer());
  for (const bool lazily : {false, true}) {
    EXPECT_THAT(MessageOf([&] {
                  lazily ? model.InitializeLazily(CpuContext()) : model.Initialize(CpuContext());
                }),
                AllOf(HasSubstr("two parameters have the full name \"a.b.weight\""),
                      HasSubstr("register one of them under another name")));
  }
}

TEST(ModuleNamesTest, AModuleInItselfIsRefused) {
  const auto outer = std::make_shared<Container>(), inner = std::make_shared<Container>();
  outer->Register("inner", inner);
  EXPECT_THAT(MessageOf([&] { inner->Register("outer", outer); }),
              HasSubstr("module \"inner\" cannot have the child \"outer\", which contains it"));
}

TEST(ModuleNamesTest, NothingIsRegisteredInAClosedTree) {
  const auto model = std::make_shared<Blocks>(true);
  model->Initialize(CpuContext());
  const auto late = std::make_shared<Container>();
  model->Register("late", late);
  model->CloseTree();
  EXPECT_THAT(MessageOf([&] { late->Register("fc", Layer()); }),
              HasSubstr("module \"late\" gets the child \"fc\" after boost"));
  Container around;
  EXPECT_THAT(MessageOf([&] { around.Register("model", model); }),
              HasSubstr("child \"model\" has been boosted; make the module around it before"));
}

TEST(ModuleNamesTest, AValueOfAModuleThatNobodyRegisters) {
  const auto table = std::make_shared<Embedding>(5, 3);
  Container model;
  const auto head = model.Register("head", std::make_shared<Linear>(table->weight()));
  model.Initialize(CpuContext());
  EXPECT_TRUE(model.Parameters().empty());
  EXPECT_THAT(MessageOf([&] { table->weight()->value(); }),
              HasSubstr("belongs to no module of the model's tree: Register the module that "
                        "declares it (a tied weight's owner)"));
}

}  // namespace module_names_test
}  // namespace apogee::nn
