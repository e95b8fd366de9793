// SPDX-License-Identifier: Apache-2.0

// TraceModules: a span per module call, forward and backward, nested as the modules are; the same
// bits as without.
#include "apogee/nn/trace_modules.h"

#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <functional>

#include "apogee/autograd/engine.h"
#include "apogee/nn/losses.h"
#include "apogee/nn/models/llama.h"
#include "apogee/nn/models/mlp.h"
#include "apogee/tensor/cpu/cpu_context.h"
#include "apogee/tests/support/files/trace_file.h"

namespace apogee::nn {
namespace trace_modules_test {

using ::apogee::testing::Nanoseconds;
using ::apogee::testing::TraceFile;
using ::testing::Contains;
using ::testing::ElementsAre;

class TraceModulesTest : public ::testing::Test {
 protected:
  TraceModulesTest()
      : model_({.vocab_size = 17,
                .hidden_size = 16,
                .intermediate_size = 20,
                .num_hidden_layers = 2,
                .num_attention_heads = 4,
                .num_key_value_heads = 2,
                .max_position_embeddings = 8}) {
    model_.Initialize(context_, {.seed = 1});
  }
  // A step's gradients.
  std::vector<std::vector<float>> Run() {
    const Tensor tokens =
        Tensor::FromVector<int64_t>({1, 5, 16, 0, 3, 3, 2, 9, 11, 4}, {2, 5}, context_);
    autograd::Backward(CrossEntropyLoss()(model_(tokens), tokens));
    std::vector<std::vector<float>> gradients;
    for (const ParameterPtr& parameter : model_.Parameters()) {
      gradients.push_back(parameter->grad().ToVector<float>());
      parameter->zero_grad();
    }
    return gradients;
  }
  static std::vector<std::string> Names(const TraceFile& file, const std::string& category) {
    std::vector<std::string> names;
    for (const auto& span : file.Spans(0, "compute")) {
      if (span.at("cat") == category) names.push_back(span.at("name"));
    }
    return names;
  }

  ContextPtr context_ = CpuContext();
  Llama model_;
  Trace trace_;
};

TEST_F(TraceModulesTest, EveryModuleOnceEachWay) {
  const auto want = Run();
  TraceModules(model_, trace_.Lane(0, "compute"));
  EXPECT_EQ(Run(), want) << "the same bits";
  const TraceFile file = TraceFile::Of(trace_);
  EXPECT_THAT(file.Lanes(0), ElementsAre("compute")) << "all spans nest";
  std::vector<std::string> modules;
  for (const auto& [name, module] : model_.NamedModules()) {
    // These two only hold others, and this one is asked for parts of what it does.
    if (name == "model" || name == "model.layers" || name.ends_with(".core")) continue;
    modules.push_back(name.empty() ? "whole model" : name);
  }
  ASSERT_GT(modules.size(), 20u);
  for (const std::string category : {"forward", "backward"}) {
    EXPECT_THAT(Names(file, category), ::testing::UnorderedElementsAreArray(modules)) << category;
  }
}

TEST_F(TraceModulesTest, BackwardRunsFromTheLastLayerToTheFirst) {
  TraceModules(model_, trace_.Lane(0, "compute"));
  Run();
  std::map<std::string, int64_t> begin, end;
  for (const auto& span : TraceFile::Of(trace_).Spans(0, "compute")) {
    if (span.at("cat") != "backward") continue;
    begin[span.at("name")] = Nanoseconds(span.at("ts"));
    end[span.at("name")] = begin[span.at("name")] + Nanoseconds(span.at("dur"));
  }
  const std::string layer0 = "model.layers.0", layer1 = "model.layers.1";
  EXPECT_LE(end.at(layer1), begin.at(layer0));
  EXPECT_GT(end.at(layer0), begin.at(layer0));
  EXPECT_LE(begin.at(layer1), begin.at(layer1 + ".mlp"));
  EXPECT_LE(end.at(layer1 + ".mlp"), begin.at(layer1 + ".self_attn"));
  EXPECT_LE(end.at(layer1 + ".self_attn"), end.at(layer1));
  // The outputs of these are the outputs of modules in them.
  EXPECT_LE(begin.at("whole model"), begin.at("lm_head"));
  EXPECT_GE(end.at("whole model"), end.at(layer0));
  EXPECT_GE(end.at(layer1 + ".mlp"), end.at(layer1 + ".mlp.up_proj"));
}

TEST_F(TraceModulesTest, AnExceptionLeavesNoSpanOpen) {
  TraceModules(model_, trace_.Lane(0, "compute"));
  const Tensor too_long = Tensor::Zeros({1, 100}, DType::kI64, context_);
  EXPECT_ANY_THROW(model_(too_long));
  Run();
  const TraceFile file = TraceFile::Of(trace_);
  EXPECT_THAT(file.Lanes(0), ElementsAre("compute"));
  // Both calls of the model, one behind the other.
  std::vector<std::pair<int64_t, int64_t>> calls;
  for (const auto& span : file.Spans(0, "compute")) {
    if (span.at("cat") != "forward" || span.at("name") != "whole model") continue;
    calls.emplace_back(Nanoseconds(span.at("ts")), Nanoseconds(span.at("dur")));
  }
  ASSERT_EQ(calls.size(), 2u);
  EXPECT_LE(calls[0].first + calls[0].second, calls[1].first);
}

TEST_F(TraceModulesTest, WithoutALaneNothingHappens) {
  const auto plain = Run();
  TraceModules(model_, nullptr);
  EXPECT_EQ(Run(), plain) << "the same bits";
}

}  // namespace trace_modules_test
}  // namespace apogee::nn
