// SPDX-License-Identifier: Apache-2.0

// Folders of models with experts, in the three layouts of names, and damaged ones.
#include <gmock/gmock.h>

#include "apogee/checkpoint/hf/hf_weights.h"
#include "apogee/tests/booster/pretrained/folders.h"
#include "apogee/tests/support/message_of.h"
#include "apogee/tests/support/run_ranks.h"

namespace apogee::pretrained {
namespace experts_test {

using apogee::testing::RunRanks;
using apogee::testing::TempDir;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

// 3 experts [8, 16].
constexpr const char* kMixtral = "model.layers.1.block_sparse_moe.";
constexpr const char* kQwen = "model.layers.1.mlp.";

std::string Renamed(const std::string& name, const std::string& from, const std::string& to) {
  const size_t at = name.find(from);
  return at == std::string::npos ? name : Replaced(name, from, to);
}

// As Qwen calls the tensors.
void NameAsQwen(Tensors& tensors) {
  Tensors named;
  for (const auto& [name, tensor] : tensors) {
    std::string other = Renamed(name, "block_sparse_moe", "mlp");
    other = Renamed(Renamed(Renamed(other, ".w1.", ".gate_proj."), ".w3.", ".up_proj."), ".w2.",
                    ".down_proj.");
    named[other] = tensor;
  }
  tensors = named;
}

// All experts of a layer in two tensors, by hand.
void Fuse(Tensors& tensors) {
  NameAsQwen(tensors);
  for (const std::string layer : {"model.layers.0.mlp.", "model.layers.1.mlp."}) {
    FileTensor gate_up{{3, 16, 16}, {}}, down{{3, 16, 8}, {}};
    for (const std::string e : {"0", "1", "2"}) {
      const auto take = [&](const std::string& matrix, FileTensor& to) {
        const auto found = tensors.find(layer + "experts." + e + "." + matrix + ".weight");
        to.values.insert(to.values.end(), found->second.values.begin(), found->second.values.end());
        tensors.erase(found);
      };
      take("gate_proj", gate_up);
      take("up_proj", gate_up);
      take("down_proj", down);
    }
    tensors[layer + "experts.gate_up_proj"] = gate_up;
    tensors[layer + "experts.down_proj"] = down;
  }
}

class ExpertsTest : public ::testing::Test {
 protected:
  std::string Message(const std::function<void(Tensors&)>& edit) {
    const std::string folder = SaveFolder(dir_ / std::to_string(turn_++), config_);
    EditTensors(folder, edit);
    const auto loaded = LoadPretrained(folder, CpuContext(), {.notice = Ignore});
    return apogee::Message(loaded.status());
  }

  const TempDir dir_;
  const std::string config_ = TinyConfig("mixtral");
  int turn_ = 0;
};

TEST_F(ExpertsTest, AllLayoutsOfNamesAreRead) {
  const Values want = ValuesOf(*RandomModel(config_).module);
  EXPECT_EQ(want.at(std::string(kMixtral) + "experts.2.w3.weight").size(), 8 * 16u);
  const std::string folder = SaveFolder(dir_ / "own", config_);
  for (const auto& edit :
       {std::function<void(Tensors&)>([](Tensors&) {}), std::function<void(Tensors&)>(NameAsQwen),
        std::function<void(Tensors&)>(Fuse)}) {
    const std::string copy = SaveFolder(dir_ / ("copy" + std::to_string(turn_++)), config_);
    EditTensors(copy, edit);
    for (const bool lazy : {false, true}) {
      const auto hf = LoadPretrained(copy, CpuContext(), {.lazy = lazy, .notice = Ignore});
      ASSERT_TRUE(hf.ok()) << hf.status();
      EXPECT_EQ(ValuesOf(*hf->module), want);
    }
  }
}

// Ranks that hold parts of the experts write what one rank writes by hand.
TEST_F(ExpertsTest, FusedFilesFromAnyLayout) {
  const std::string by_hand = SaveFolder(dir_ / "hand", config_);
  EditTensors(by_hand, Fuse);
  const Tensors want = ReadTensors(by_hand + "/model.safetensors");
  for (const int world : {1, 2, 3}) {
    const std::string folder = dir_ / ("world" + std::to_string(world));
    RunRanks(world, [&](comm::World& world) {
      const nn::HfModel hf = RandomModel(config_);
      std::vector<checkpoint::TensorPart> parts;
      for (const auto& parameter : hf.module->Parameters()) {
        // Every rank has some rows of each matrix.
        const int64_t n = parameter->shape().numel();
        const int64_t begin = n * world.rank() / world.size();
        const int64_t end = n * (world.rank() + 1) / world.size();
        parts.push_back({parameter->name(),
                         parameter->data().View({n}).Slice(0, begin, end - begin).Clone(),
                         Layout(parameter->shape(), {.segments = {{begin, end - begin}}})});
      }
      OkOrThrow(checkpoint::SaveModelWeights({checkpoint::RealFileSystem(), folder}, parts,
                                             {.fuse_experts = true}, world.group()));
    });
    const Tensors got = ReadTensors(folder + "/model.safetensors");
    ASSERT_EQ(got.size(), want.size());
    for (const auto& [name, tensor] : want) {
      ASSERT_TRUE(got.contains(name)) << name;
      EXPECT_EQ(got.at(name).shape, tensor.shape) << name;
      EXPECT_EQ(got.at(name).values, tensor.values) << name;
    }
  }
}

TEST_F(ExpertsTest, WhatDoesNotFitIsNamed) {
  EXPECT_THAT(Message([](Tensors& t) { t.erase(std::string(kMixtral) + "experts.1.w2.weight"); }),
              AllOf(HasSubstr("missing"), HasSubstr("layers.1.block_sparse_moe.experts.1.w2")));
  // One expert too many.
  EXPECT_THAT(Message([](Tensors& t) {
                t[std::string(kMixtral) + "experts.3.w2.weight"] =
                    t.at(std::string(kMixtral) + "experts.2.w2.weight");
              }),
              AllOf(HasSubstr("unexpected"), HasSubstr("experts.3.w2")));
  // Fused tensors of two experts for a model of three.
  EXPECT_THAT(Message([](Tensors& t) {
                Fuse(t);
                FileTensor& down = t.at(std::string(kQwen) + "experts.down_proj");
                down.shape[0] = 2;
                down.values.resize(2 * 16 * 8);
              }),
              HasSubstr("layers.1.block_sparse_moe.experts.2.w2"));
}

TEST_F(ExpertsTest, HalfALayoutIsRefused) {
  EXPECT_THAT(Message([](Tensors& t) {
                auto node = t.extract(std::string(kMixtral) + "gate.weight");
                node.key() = std::string(kQwen) + "gate.weight";
                t.insert(std::move(node));
              }),
              AllOf(HasSubstr("has both \""), HasSubstr("block_sparse_moe"),
                    HasSubstr("all experts of a model have names of one kind")));
  EXPECT_THAT(Message([](Tensors& t) {
                const Tensors plain = t;
                Fuse(t);
                Tensors named = plain;
                NameAsQwen(named);
                const std::string twice = std::string(kQwen) + "experts.0.down_proj.weight";
                t[twice] = named.at(twice);
              }),
              HasSubstr("and a fused tensor with the same expert"));
}

}  // namespace experts_test
}  // namespace apogee::pretrained
