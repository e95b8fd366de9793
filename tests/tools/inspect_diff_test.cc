// SPDX-License-Identifier: Apache-2.0

// apogee inspect and apogee diff: what they show, what they find, and their exit codes.
#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <limits>

#include "apogee/checkpoint/checkpoint_writer.h"
#include "apogee/checkpoint/hf/hf_weights.h"
#include "apogee/tensor/cpu/cpu_context.h"
#include "apogee/tests/support/files/safetensors_file.h"
#include "apogee/tests/support/files/temp_dir.h"
#include "apogee/tests/support/run_ranks.h"
#include "apogee/tests/support/tool_command.h"

namespace apogee::tools {
namespace inspect_diff_test {

using apogee::testing::Command;
using apogee::testing::CommandResult;
using apogee::testing::ReadFile;
using apogee::testing::RunRanks;
using apogee::testing::TempDir;
using checkpoint::RealFileSystem;
using checkpoint::TensorPart;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

// A matrix of 2 rows that two ranks hold one of each, and a vector that both hold.
void SaveOnTwoRanks(const std::string& path, float last = 4) {
  RunRanks(2, [&](comm::World& world) {
    const bool first = world.rank() == 0;
    const auto row = first ? std::vector<float>{1, 2} : std::vector<float>{3, last};
    const std::vector<TensorPart> parts = {
        {"model/w", Tensor::FromVector<float>(row, {2}, world.context()),
         Layout(Shape{2, 2}, {.segments = {{first ? 0 : 2, 2}}})},
        {"model/b", Tensor::FromVector<double>({5, 6, 7}, {3}, world.context()), Layout(Shape{3})}};
    ASSERT_TRUE(checkpoint::SaveCheckpoint({RealFileSystem(), path},
                                           {.attributes = {{"step", "7"}}, .parts = parts},
                                           world.group())
                    .ok());
  });
}

void Flip(const std::string& path, size_t from_end) {
  std::string bytes = ReadFile(path);
  ASSERT_GT(bytes.size(), from_end);
  bytes[bytes.size() - from_end] ^= 1;
  WriteBytes(path, bytes);
}

TEST(InspectTest, Checkpoint) {
  const TempDir folder;
  SaveOnTwoRanks(folder / "c");
  const CommandResult result = Command("inspect --verify " + folder / "c");
  EXPECT_EQ(result.code, 0);
  EXPECT_THAT(result.out, AllOf(HasSubstr("tensor   dtype  shape   bytes  where\n"),
                                HasSubstr("model/w  F32    [2, 2]     16  2 slices in 2 files\n"),
                                HasSubstr("model/b  F64    [3]        24  rank-0000"),
                                HasSubstr("step = 7\n"), HasSubstr("2 tensors, 40 bytes (40 B)\n"),
                                HasSubstr("every byte has its digest\n")));
}

TEST(InspectTest, DamageIsNamed) {
  const TempDir folder;
  SaveOnTwoRanks(folder / "c");
  Flip(folder / "c/rank-00001.safetensors", 1);
  EXPECT_EQ(Command("inspect " + folder / "c").code, 0);  // nothing but headers was read
  CommandResult result = Command("inspect --verify " + folder / "c");
  EXPECT_EQ(result.code, 1);
  EXPECT_THAT(result.out, AllOf(HasSubstr("rank-00001.safetensors"), HasSubstr("tensor \"model/"),
                                HasSubstr("bytes [")));
  std::filesystem::remove(folder / "c/rank-00001.safetensors");
  result = Command("inspect " + folder / "c");
  EXPECT_EQ(result.code, 1);
  EXPECT_THAT(result.out, HasSubstr("rank-00001.safetensors: cannot open"));
  Flip(folder / "c/manifest.json", 30);
  EXPECT_EQ(Command("inspect " + folder / "c").code, 1);
}

TEST(InspectTest, FilesAndWeights) {
  const TempDir folder;
  SafetensorsFile file;
  file.Meta("format", "pt");
  file.Add<float>("wte", "F32", {2, 1}, {1, 2});
  file.Add<uint8_t>("mask\x7f", "BOOL", {2}, {1, 0});
  file.Add<uint8_t>("small", "F8_E4M3", {2}, {1, 0});
  file.Write(folder / "model.safetensors");
  for (const std::string& path : {folder / "model.safetensors", folder.path()}) {
    const CommandResult result = Command("inspect --verify " + path);
    EXPECT_EQ(result.code, 0) << result.out;
    EXPECT_THAT(result.out, AllOf(HasSubstr("wte     F32      [2, 1]      8  model.safetensors\n"),
                                  HasSubstr("mask?   BOOL     [2]         2  model.safetensors\n"),
                                  HasSubstr("small   F8_E4M3  [2]         2  model.safetensors\n"),
                                  HasSubstr("3 tensors, 12 bytes"), HasSubstr("no digests")));
  }
  EXPECT_THAT(Command("inspect " + folder / "model.safetensors").out, HasSubstr("format = pt\n"));
  WriteBytes(folder / "model.safetensors", file.Bytes().substr(0, 60));
  const CommandResult cut = Command("inspect " + folder / "model.safetensors");
  EXPECT_EQ(cut.code, 1);
  EXPECT_THAT(cut.out, HasSubstr("model.safetensors: byte 0"));
}

TEST(InspectTest, AnAdapterShowsItsOptions) {
  const TempDir folder;
  SafetensorsFile file;
  file.Add<uint8_t>("base_model.model.q.lora_A.weight", "U8", {2}, {1, 2});
  WriteBytes(folder / "adapter_model.safetensors", file.Bytes());
  WriteBytes(folder / "adapter_config.json",
             R"({"r": 4, "lora_alpha": 6, "target_modules": ["q"]})");
  const CommandResult shown = Command("inspect " + folder.path());
  EXPECT_EQ(shown.code, 0) << shown.out;
  EXPECT_THAT(shown.out,
              AllOf(HasSubstr("base_model.model.q.lora_A.weight"), HasSubstr("rank = 4\n"),
                    HasSubstr("alpha = 6\n"), HasSubstr("targets = q\n")));
}

TEST(InspectTest, WrongUse) {
  const TempDir folder;
  EXPECT_EQ(Command("inspect").code, 2);
  EXPECT_EQ(Command("inspect --unknown x").code, 2);
  EXPECT_EQ(Command("inspect " + folder / "none").code, 2);
  const CommandResult empty = Command("inspect " + folder.path());
  EXPECT_EQ(empty.code, 2);
  EXPECT_THAT(empty.out, HasSubstr("has none of manifest.json, model.safetensors"));
}

// Names of a file of anybody, in errors too.
TEST(InspectTest, NoNameCommandsTheTerminal) {
  const TempDir folder;
  SafetensorsFile file;
  file.Add<float>("\\u001b[31m\xc2\x9b", "F32", {3}, {1, 2});
  file.Write(folder / "a.safetensors");
  for (const std::string command : {"inspect ", "diff "}) {
    const std::string path = folder / "a.safetensors";
    const std::string out = Command(command + path + (command == "diff " ? " " + path : "")).out;
    EXPECT_EQ(out.find('\x1b'), std::string::npos) << out;
  }
  EXPECT_THAT(Command("inspect " + folder / "a.safetensors").out,
              HasSubstr("tensor \"?[31m??\" needs 12 bytes"));
}

TEST(DiffTest, Checkpoints) {
  const TempDir folder;
  SaveOnTwoRanks(folder / "a");
  SaveOnTwoRanks(folder / "b");
  SaveOnTwoRanks(folder / "c", 4.5);
  CommandResult result = Command("diff " + folder / "a" + " " + folder / "b");
  EXPECT_EQ(result.code, 0);
  EXPECT_EQ(result.out, "2 equal, 0 different, 0 missing\n");
  result = Command("diff " + folder / "a" + " " + folder / "c");
  EXPECT_EQ(result.code, 1);
  EXPECT_EQ(result.out, "model/w  max abs 0.5, relative 0.125\n1 equal, 1 different, 0 missing\n");
  Flip(folder / "c/rank-00001.safetensors", 1);
  result = Command("diff " + folder / "a" + " " + folder / "c");
  EXPECT_EQ(result.code, 2);
  EXPECT_THAT(result.out, HasSubstr("their digest differs"));
}

TEST(DiffTest, EveryKindOfDifference) {
  const TempDir folder;
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  SafetensorsFile a, b;
  a.Add<float>("a_shape", "F32", {2}, {1, 2});
  b.Add<float>("a_shape", "F32", {2, 1}, {1, 2});
  a.Add<float>("b_dtype", "F32", {1}, {3});
  b.Add<double>("b_dtype", "F64", {1}, {3});
  a.Add<float>("c_nan", "F32", {2}, {kNan, 1});
  b.Add<float>("c_nan", "F32", {2}, {2, 1});
  a.Add<float>("d_same_nan", "F32", {1}, {kNan});
  b.Add<float>("d_same_nan", "F32", {1}, {kNan});
  a.Add<float>("e_sign", "F32", {1}, {0.0f});
  b.Add<float>("e_sign", "F32", {1}, {-0.0f});
  a.Add<uint8_t>("f_bool", "BOOL", {2}, {0, 1});
  b.Add<uint8_t>("f_bool", "BOOL", {2}, {1, 1});
  a.Add<uint8_t>("f_f8", "F8_E4M3", {2}, {0x38, 0x81});  // 1 and -2^-9
  b.Add<uint8_t>("f_f8", "F8_E4M3", {2}, {0x40, 0x81});
  a.Add<float>("g_a", "F32", {1}, {1});
  b.Add<float>("h_b", "F32", {1}, {1});
  a.Write(folder / "a");
  b.Write(folder / "b");
  const CommandResult result = Command("diff " + folder / "a" + " " + folder / "b");
  EXPECT_EQ(result.code, 1);
  EXPECT_EQ(result.out,
            "a_shape  shape [2] and [2, 1]\n"
            "b_dtype  F32 and F64: max abs 0, relative 0\n"
            "c_nan  max abs nan, relative nan\n"
            "e_sign  max abs 0, relative 0\n"
            "f_bool  max abs 1, relative 1\n"
            "f_f8  max abs 1, relative 1\n"
            "g_a  only in " +
                folder / "a" +
                "\n"
                "h_b  only in " +
                folder / "b" +
                "\n"
                "1 equal, 6 different, 2 missing\n");
  EXPECT_THAT(
      Command("diff --limit 1 " + folder / "a" + " " + folder / "b").out,
      AllOf(HasSubstr("a_shape"), Not(HasSubstr("b_dtype")), HasSubstr("... and 7 more\n")));
}

TEST(DiffTest, WrongUse) {
  const TempDir folder;
  EXPECT_EQ(Command("diff").code, 2);
  EXPECT_EQ(Command("diff " + folder / "none" + " " + folder / "none").code, 2);
}

}  // namespace inspect_diff_test
}  // namespace apogee::tools
