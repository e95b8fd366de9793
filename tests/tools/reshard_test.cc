// SPDX-License-Identifier: Apache-2.0

// apogee reshard: what it makes, its exit codes, and how much memory it takes.
#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include <filesystem>

#include "apogee/checkpoint/checkpoint_writer.h"
#include "apogee/tensor/cpu/cpu_context.h"
#include "apogee/tests/support/files/safetensors_file.h"
#include "apogee/tests/support/files/temp_dir.h"
#include "apogee/tests/support/tool_command.h"

namespace apogee::tools {
namespace reshard_test {

using apogee::testing::Command;
using apogee::testing::CommandResult;
using apogee::testing::ReadFile;
using apogee::testing::TempDir;
using checkpoint::RealFileSystem;
using checkpoint::TensorPart;
using ::testing::AllOf;
using ::testing::HasSubstr;

class ReshardCommandTest : public ::testing::Test {
 protected:
  ReshardCommandTest() {
    const std::vector<TensorPart> parts = {
        {"model/w", Tensor::FromVector<float>({1, 2, 3, 4, 5, 6}, {6}, CpuContext()),
         Layout(Shape{2, 3})},
        {"optimizer/w/m", Tensor::FromVector<float>({9, 8}, {2}, CpuContext()), Layout(Shape{2})}};
    EXPECT_TRUE(checkpoint::SaveCheckpoint({RealFileSystem(), in_},
                                           {.attributes = {{"step", "7"}}, .parts = parts}, nullptr)
                    .ok());
  }

  TempDir folder_;
  const std::string in_ = folder_ / "in", out_ = folder_ / "out";
};

TEST_F(ReshardCommandTest, CutsTheSameTensors) {
  CommandResult result = Command("reshard --files 3 " + in_ + " " + out_);
  EXPECT_EQ(result.code, 0) << result.out;
  EXPECT_EQ(result.out, "");
  result = Command("diff " + in_ + " " + out_);
  EXPECT_EQ(result.code, 0);
  EXPECT_EQ(result.out, "2 equal, 0 different, 0 missing\n");
  result = Command("inspect --verify " + out_);
  EXPECT_EQ(result.code, 0);
  EXPECT_THAT(result.out, AllOf(HasSubstr("3 slices in 3 files"), HasSubstr("step = 7\n")));
}

TEST_F(ReshardCommandTest, ExportsWeights) {
  WriteBytes(folder_ / "config.json", "{\"model_type\": \"x\"}");
  const CommandResult result = Command("reshard --weights --size-per-shard-mb 1 --config " +
                                       folder_ / "config.json" + " " + in_ + " " + out_);
  EXPECT_EQ(result.code, 0) << result.out;
  EXPECT_EQ(ReadFile(out_ + "/config.json"), "{\"model_type\": \"x\"}");
  EXPECT_THAT(Command("inspect " + out_).out,
              AllOf(HasSubstr("w       F32    [2, 3]     24  model.safetensors\n"),
                    HasSubstr("1 tensors, 24 bytes")));
  const int status =
      std::system(("${PYTHON:-python3} " APOGEE_CHECK_SAFETENSORS " " + out_).c_str());
  ASSERT_TRUE(WIFEXITED(status));
  if (WEXITSTATUS(status) == 77) GTEST_SKIP() << "Python's safetensors is not installed";
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

TEST_F(ReshardCommandTest, ExitCodes) {
  const std::string both = in_ + " " + out_;
  for (const std::string& arguments :
       {std::string("reshard"), "reshard " + in_, "reshard --files 0 " + both,
        "reshard --files x " + both, "reshard --files 2 --weights " + both,
        "reshard --size-per-shard-mb 3 " + both, "reshard --config x " + both,
        "reshard --weights --config " + folder_ / "none " + both,
        "reshard " + folder_ / "none " + out_, "reshard " + in_ + " " + in_}) {
    EXPECT_EQ(Command(arguments).code, 2) << arguments;
  }
  EXPECT_THAT(Command("reshard " + in_ + " " + in_).out, HasSubstr("nothing is overwritten"));
  const std::string file = in_ + "/rank-00000.safetensors";
  std::string bytes = ReadFile(file);
  bytes.back() ^= 1;
  WriteBytes(file, bytes);
  const CommandResult damaged = Command("reshard " + both);
  EXPECT_EQ(damaged.code, 1);
  EXPECT_THAT(damaged.out, AllOf(HasSubstr(file), HasSubstr("tensor \""), HasSubstr("bytes [")));
  std::filesystem::remove(file);
  EXPECT_EQ(Command("reshard " + both).code, 1);
  EXPECT_FALSE(std::filesystem::exists(out_));
}

// A tensor of 128 MiB goes through in far less.
TEST_F(ReshardCommandTest, LargeTensorsTakeLittleMemory) {
  constexpr int64_t kElements = int64_t{32} << 20;
  const TensorPart large{"model/large", Tensor::Full({kElements}, DType::kF32, 1, CpuContext()),
                         Layout(Shape{kElements})};
  ASSERT_TRUE(
      checkpoint::SaveCheckpoint({RealFileSystem(), folder_ / "large"}, {.parts = {large}}, nullptr)
          .ok());
  rusage before{}, after{};
  ASSERT_EQ(Command("--help").code, 0);
  getrusage(RUSAGE_CHILDREN, &before);
  ASSERT_EQ(Command("reshard --files 2 " + folder_ / "large" + " " + out_).code, 0);
  getrusage(RUSAGE_CHILDREN, &after);
  EXPECT_LT(after.ru_maxrss - before.ru_maxrss, 16 << 10) << "KiB";
}

}  // namespace reshard_test
}  // namespace apogee::tools
