// SPDX-License-Identifier: Apache-2.0

// apogee verify on recorded Hugging Face models: it passes what is right, and everything that is
// recorded counts. The test records a tiny model itself, so it says nothing about the model.
#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <map>

#include "apogee/autograd/engine.h"
#include "apogee/core/rng.h"
#include "apogee/nn/losses.h"
#include "apogee/nn/models/hf_model.h"
#include "apogee/optim/adam/adam.h"
#include "apogee/tensor/cpu/cpu_context.h"
#include "apogee/tests/support/files/safetensors_file.h"
#include "apogee/tests/support/files/temp_dir.h"
#include "apogee/tests/support/tool_command.h"

namespace apogee::tools {
namespace verify_hf_test {

using apogee::testing::Command;
using apogee::testing::CommandResult;
using apogee::testing::TempDir;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr const char* kConfig = R"({"model_type": "qwen2", "vocab_size": 11, "hidden_size": 8,
  "intermediate_size": 12, "num_hidden_layers": 1, "num_attention_heads": 2, "rope_theta": 100,
  "num_key_value_heads": 1, "max_position_embeddings": 8, "pad_token_id": null})";
constexpr int64_t kSteps = 2;
const Shape kBatch{2, 5};

struct Entry {
  std::vector<int64_t> shape;
  std::vector<double> values;
};
using Entries = std::map<std::string, Entry>;

std::vector<int64_t> Sizes(const Shape& shape) {
  std::vector<int64_t> sizes;
  for (int dim = 0; dim < shape.rank(); ++dim) sizes.push_back(shape[dim]);
  return sizes;
}

class VerifyHfTest : public ::testing::Test {
 protected:
  VerifyHfTest() {
    nn::HfModel hf = ValueOrThrow(nn::MakeHfModel(kConfig, "c", [](const std::string&) {}));
    hf.module->Initialize(CpuContext(), {.seed = 1, .dtype = DType::kF64});
    SafetensorsFile weights;
    for (const auto& parameter : hf.module->Parameters()) {
      const PhiloxKey key = MakeKey(7, parameter->name());
      double* values = parameter->data().data<double>();
      for (int64_t i = 0; i < parameter->shape().numel(); ++i) {
        values[i] = static_cast<float>(ToUniform(Philox(key, static_cast<uint64_t>(i))[0]) - 0.5);
      }
      const std::vector<double> wide = parameter->data().ToVector<double>();
      weights.Add<float>(parameter->name(), "F32", Sizes(parameter->shape()),
                         std::vector<float>(wide.begin(), wide.end()));
    }
    dir_.Write("m/config.json", kConfig);
    weights.Write(dir_ / "m/model.safetensors");
    Record(hf);
  }

  void Record(const nn::HfModel& hf) {
    const Tensor tokens = Tensor::FromVector(tokens_, kBatch, CpuContext());
    // What the library shifts itself.
    std::vector<int64_t> shifted;
    for (size_t i = 0; i < labels_.size(); ++i) {
      shifted.push_back((i + 1) % 5 == 0 ? -100 : labels_[i + 1]);
    }
    const Tensor targets = Tensor::FromVector(shifted, kBatch, CpuContext());
    optim::AdamW optimizer(hf.module->Parameters(), {.lr = 1e-3, .weight_decay = 0.1});
    Entry& curve = entries_["ref64/loss_curve"];
    curve.shape = {kSteps + 1};
    for (int64_t step = 0; step <= kSteps; ++step) {
      const Tensor logits = (*hf.module)(tokens);
      const Tensor loss = nn::CrossEntropyLoss()(logits, targets);
      curve.values.push_back(loss.Item());
      if (step == 0) {
        entries_["ref64/logits"] = {{2, 5, 11}, logits.Detach().ToVector<double>()};
        entries_["ref64/loss"] = {{1}, {loss.Item()}};
      }
      if (step == kSteps) break;
      autograd::Backward(loss);
      for (const auto& parameter : hf.module->Parameters()) {
        const std::vector<double> grad = parameter->grad().ToVector<double>();
        if (step > 0) continue;
        entries_["grad/" + parameter->name()] = {Sizes(parameter->shape()), grad};
        if (parameter->shape().rank() == 1) {
          entries_["ref64/grad/" + parameter->name()] = {Sizes(parameter->shape()), grad};
        } else {
          entries_["ref64/grad_probe/" + parameter->name()] = Probe(grad, parameter->shape());
        }
      }
      optimizer.step();
      optimizer.zero_grad();
    }
    for (const auto& parameter : hf.module->Parameters()) {
      entries_["final/" + parameter->name()] = {Sizes(parameter->shape()),
                                                parameter->data().ToVector<double>()};
    }
  }

  static Entry Probe(const std::vector<double>& grad, const Shape& shape) {
    const auto rows = static_cast<size_t>(shape[0]), columns = static_cast<size_t>(shape[1]);
    std::vector<double> probe(rows + columns);
    for (size_t i = 0; i < rows; ++i) {
      for (size_t j = 0; j < columns; ++j) {
        probe[i] += grad[i * columns + j] / static_cast<double>(j + 1);
        probe[rows + j] += grad[i * columns + j] / static_cast<double>(i + 1);
      }
    }
    return {{static_cast<int64_t>(probe.size())}, probe};
  }

  void WriteExpected(const Entries& entries) const {
    SafetensorsFile file;
    std::string of_parameters;
    for (const auto& [name, entry] : entries_) {
      if (!name.starts_with("final/")) continue;
      of_parameters += (of_parameters.empty() ? "\"" : ", \"") + name.substr(6) +
                       "\": {\"grad_atol\": 2e-6, \"final_atol\": 2e-4}";
    }
    file.Meta("format", "interop-hf/1");
    file.Meta("tolerance",
              "{\"logits_atol\": 1e-4, \"loss_atol\": 1e-5, \"loss_curve_atol\": 1e-5, "
              "\"per_param\": {" +
                  of_parameters + "}}");
    file.Meta("optimizer",
              "{\"name\": \"torch.optim.AdamW\", \"lr\": 1e-3, \"betas\": [0.9, 0.999], "
              "\"eps\": 1e-8, \"weight_decay\": 0.1, \"steps\": 2}");
    // Biases of keys: softmax does not see them.
    file.Meta("final_loose",
              "{\"model.layers.0.self_attn.k_proj.bias\": {\"ranges\": [[0, 4]], \"atol\": 0.01}}");
    for (const auto& [name, entry] : entries) {
      if (name.starts_with("grad/") || name.starts_with("final/")) {
        file.Add<float>(name, "F32", entry.shape,
                        std::vector<float>(entry.values.begin(), entry.values.end()));
      } else {
        file.Add<double>(name, "F64", entry.shape, entry.values);
      }
    }
    file.Add<int64_t>("input_ids", "I64", {2, 5}, tokens_);
    file.Add<int64_t>("labels", "I64", {2, 5}, labels_);
    file.Write(dir_ / "m/expected.safetensors");
  }

  CommandResult Verify(const std::string& flags = "") const {
    return Command("verify " + flags + " '" + dir_.path() + "'");
  }

  const TempDir dir_;
  const std::vector<int64_t> tokens_ = {3, 1, 4, 1, 5, 9, 2, 6, 10, 0};
  const std::vector<int64_t> labels_ = {3, 1, -100, 1, 5, 9, 2, 6, 10, 0};
  Entries entries_;
};

TEST_F(VerifyHfTest, PassesWhatIsRight) {
  WriteExpected(entries_);
  for (const char* flags : {"", "--dtype f64"}) {
    const CommandResult result = Verify(flags);
    EXPECT_EQ(result.code, 0) << result.out;
    EXPECT_THAT(result.out, AllOf(HasSubstr("/m  worst"), HasSubstr("1 passed, 0 failed")));
  }
  // The folder alone.
  const CommandResult alone = Command("verify --dtype f64 '" + (dir_ / "m") + "'");
  EXPECT_EQ(alone.code, 0) << alone.out;
  EXPECT_THAT(alone.out, HasSubstr("1 passed, 0 failed"));
}

TEST_F(VerifyHfTest, EverythingThatIsRecordedCounts) {
  struct Spoiled {
    const char *entry, *told;
    double by, by_f64;  // 0: only one of the dtypes compares it
  };
  const std::vector<Spoiled> cases = {
      {"ref64/logits", "(logits)", 5e-4, 1e-10},
      {"ref64/loss", "(loss)", 5e-5, 1e-10},
      {"ref64/loss_curve", "(loss after step 2)", 5e-5, 1e-10},
      {"grad/model.layers.0.mlp.up_proj.weight", "(grad/model.layers.0.mlp.up_proj.weight)", 1e-4,
       1e-4},
      {"ref64/grad/model.norm.weight", "(ref64/grad/model.norm.weight)", 0, 1e-7},
      {"ref64/grad_probe/lm_head.weight", "(ref64/grad_probe/lm_head.weight)", 0, 1e-7},
      {"final/model.layers.0.mlp.up_proj.weight", "(final/model.layers.0.mlp.up_proj.weight)", 1e-3,
       1e-5},
      {"final/model.layers.0.self_attn.k_proj.bias", "without exact gradients", 0.1, 0.1}};
  for (const Spoiled& spoiled : cases) {
    for (const bool f64 : {false, true}) {
      const double by = f64 ? spoiled.by_f64 : spoiled.by;
      Entries entries = entries_;
      entries.at(spoiled.entry).values.back() += by == 0 ? 1 : by;
      WriteExpected(entries);
      const CommandResult result = Verify(f64 ? "--dtype f64" : "");
      EXPECT_EQ(result.code, by == 0 ? 0 : 1) << spoiled.entry << ": " << result.out;
      if (by != 0) EXPECT_THAT(result.out, HasSubstr(spoiled.told));
    }
  }
}

TEST_F(VerifyHfTest, EveryParameterMustBeRecorded) {
  for (const std::string entry : {"grad/lm_head.weight", "final/lm_head.weight"}) {
    Entries entries = entries_;
    entries.erase(entry);
    WriteExpected(entries);
    EXPECT_THAT(Verify().out, AllOf(HasSubstr("FAIL"), HasSubstr(entry + " is not recorded")));
  }
  Entries entries = entries_;
  entries["grad/model.layers.1.mlp.up_proj.weight"] = {{1}, {0}};
  WriteExpected(entries);
  EXPECT_THAT(Verify().out, HasSubstr("the model has 15 of the 16 parameters with recorded"));
}

// The same model in the words of an older version of the library.
TEST_F(VerifyHfTest, TheOlderConfigCounts) {
  WriteExpected(entries_);
  const std::string config = kConfig, theta = "\"rope_theta\": 100";
  const size_t at = config.find(theta);
  for (const char* number : {"100.0", "50.0"}) {
    std::string legacy = config;
    legacy.replace(at, theta.size(),
                   std::string("\"rope_parameters\": {\"rope_type\": \"default\", "
                               "\"rope_theta\": ") +
                       number + "}");
    dir_.Write("m/config.legacy.json", legacy);
    const CommandResult result = Verify();
    const bool same = std::string(number) == "100.0";
    EXPECT_EQ(result.code, same ? 0 : 1) << result.out;
    if (!same) EXPECT_THAT(result.out, HasSubstr("(logits, config.legacy.json)"));
  }
}

TEST_F(VerifyHfTest, AFamilyThatIsNotOfferedFailsByName) {
  WriteExpected(entries_);
  dir_.Write("m/config.json", R"({"model_type": "deepseek_v3"})");
  const CommandResult result = Verify();
  EXPECT_EQ(result.code, 1);
  EXPECT_THAT(result.out, AllOf(HasSubstr("/m  model type deepseek_v3 is not offered"),
                                HasSubstr("0 passed, 1 failed")));
}

// Weights that do not fit are a failure of this case, with its reason.
TEST_F(VerifyHfTest, WeightsThatDoNotFit) {
  WriteExpected(entries_);
  SafetensorsFile weights;
  weights.Add<float>("lm_head.weight", "F32", {1}, {0});
  weights.Write(dir_ / "m/model.safetensors");
  const CommandResult result = Verify();
  EXPECT_EQ(result.code, 1);
  EXPECT_THAT(result.out, HasSubstr("the weights do not fit this model"));
}

}  // namespace verify_hf_test
}  // namespace apogee::tools
