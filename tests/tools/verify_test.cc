// SPDX-License-Identifier: Apache-2.0

// apogee verify: passes what is right, fails what is wrong by a little, and says what it cannot
// read.
#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <array>
#include <cstdio>
#include <filesystem>
#include <string>

#include "apogee/tests/support/files/safetensors_file.h"

namespace apogee::tools {
namespace verify_test {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

struct Result {
  int code;
  std::string out;  // and errors
};

class VerifyTest : public ::testing::Test {
 protected:
  void SetUp() override {
    dir_ = ::testing::TempDir() + "verify_test_" +
           ::testing::UnitTest::GetInstance()->current_test_info()->name();
    fs::remove_all(dir_);
    fs::create_directories(dir_);
  }
  Result Run(const std::string& path, const std::string& flags = "") {
    const std::string command =
        std::string(APOGEE_COMMAND) + " verify " + flags + " '" + path + "' 2>&1";
    FILE* pipe = popen(command.c_str(), "r");
    EXPECT_NE(pipe, nullptr);
    Result result;
    std::array<char, 512> buffer;
    while (std::fgets(buffer.data(), static_cast<int>(buffer.size()), pipe) != nullptr) {
      result.out += buffer.data();
    }
    const int status = pclose(pipe);
    result.code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
    return result;
  }
  // Two steps of SGD with lr 0.5 on w = (1, -2) with gradients (1, 1) and absent; `off` spoils the
  // end.
  SafetensorsFile SgdCase(float off, const std::string& hyper = "{\"lr\": 0.5}") {
    SafetensorsFile file;
    file.Meta("format", "colossal-golden/1");
    file.Meta("optimizer", "sgd");
    file.Meta("conformance", conformance_);
    file.Meta("params", "[[\"w\", [2]]]");
    file.Meta("hyper", hyper);
    file.Meta("steps", "2");
    file.Meta("tolerance", "{\"atol\": 1e-6, \"rtol\": 1e-6, \"update_rel_l2\": 1e-5}");
    file.Add<float>("param/w/init", "F32", {2}, {1, -2});
    file.Add<float>("grad/w/1", "F32", {2}, {1, 1});
    file.Add<float>("param/w/1", "F32", {2}, {0.5, -2.5});
    file.Add<float>("param/w/2", "F32", {2}, {0.5f + off, -2.5});
    file.Add<double>("ref64/param/w/2", "F64", {2}, {0.5 + off, -2.5});
    return file;
  }
  std::string dir_;
  std::string conformance_ = "normative";
};

TEST_F(VerifyTest, RightAndWrong) {
  fs::create_directories(dir_ + "/sgd");
  SgdCase(0).Write(dir_ + "/sgd/right.safetensors");
  SgdCase(3e-5f).Write(dir_ + "/sgd/wrong.safetensors");
  const Result result = Run(dir_);
  EXPECT_EQ(result.code, 1);
  EXPECT_THAT(result.out, HasSubstr("PASS sgd/right  worst 0 of tolerance"));
  EXPECT_THAT(result.out, HasSubstr("FAIL sgd/wrong  worst"));
  EXPECT_THAT(result.out, HasSubstr("(param w, step 2)"));
  EXPECT_THAT(result.out, HasSubstr("1 passed, 1 failed\n"));
}

// An error that is small beside the weight but not beside the update.
TEST_F(VerifyTest, TheUpdateCounts) {
  SgdCase(1.2e-6f).Write(dir_ + "/small.safetensors");
  EXPECT_EQ(Run(dir_).code, 0);
  EXPECT_EQ(Run(dir_, "--dtype f64").code, 1);  // 1e-7 of the update against the float64 run
}

TEST_F(VerifyTest, OneFile) {
  SgdCase(0).Write(dir_ + "/right.safetensors");
  const Result result = Run(dir_ + "/right.safetensors", "--dtype f64");
  EXPECT_EQ(result.code, 0);
  EXPECT_THAT(result.out, HasSubstr("/right  worst 0"));
}

TEST_F(VerifyTest, DrivenByMetadata) {
  SgdCase(0, "{\"lr\": 0.25}").Write(dir_ + "/lr.safetensors");
  EXPECT_EQ(Run(dir_).code, 1);
  SgdCase(0, "{\"lr\": 0.25, \"lr_factor_per_step\": [2.0, 1.0]}").Write(dir_ + "/lr.safetensors");
  EXPECT_EQ(Run(dir_).code, 0);
  SgdCase(0, "{\"lr\": 0.5, \"speed\": 1}").Write(dir_ + "/lr.safetensors");
  EXPECT_THAT(Run(dir_).out, HasSubstr("unknown option \"speed\""));
}

TEST_F(VerifyTest, ConformanceAndFamilies) {
  conformance_ = "variant";
  SgdCase(1).Write(dir_ + "/variant.safetensors");
  conformance_ = "informational";
  SgdCase(1).Write(dir_ + "/informational.safetensors");
  Result result = Run(dir_);
  EXPECT_EQ(result.code, 0);
  EXPECT_THAT(result.out, HasSubstr("variant, not offered"));
  EXPECT_THAT(result.out, HasSubstr("0 passed, 0 failed"));
  SafetensorsFile unknown;
  unknown.Meta("format", "colossal-golden/1");
  unknown.Meta("optimizer", "newton");
  unknown.Write(dir_ + "/unknown.safetensors");
  result = Run(dir_);
  EXPECT_EQ(result.code, 1);
  EXPECT_THAT(result.out, HasSubstr("newton is not built yet"));
}

TEST_F(VerifyTest, TokenFiles) {
  const auto write = [&](const std::string& folder, const std::string& tokens) {
    fs::create_directories(dir_ + "/" + folder);
    WriteBytes(dir_ + "/" + folder + "/train.bin", std::string("\x05\x00\x07\x01", 4));
    WriteBytes(dir_ + "/" + folder + "/expected.json",
               R"({"format": "interop-dataset/1", "kind": "raw", "dtype": "u16", "tokens": )" +
                   tokens + "}");
  };
  write("right", "[5, 263]");
  write("wrong", "[5, 264]");
  write("more", "[5, 263, 1]");
  write("none", "5");
  const Result result = Run(dir_);
  EXPECT_EQ(result.code, 1);
  EXPECT_THAT(result.out, HasSubstr("/right  worst 0 of tolerance"));
  EXPECT_THAT(result.out, HasSubstr("/wrong  worst inf of tolerance (train.bin, ids)"));
  EXPECT_THAT(result.out, HasSubstr("/more  train.bin, ids: 2 elements, recorded 3"));
  EXPECT_THAT(result.out, HasSubstr("1 passed, 3 failed"));
}

TEST_F(VerifyTest, NothingToVerify) {
  EXPECT_EQ(Run(dir_ + "/missing").code, 2);
  EXPECT_THAT(Run(dir_ + "/missing").out, HasSubstr("No such file"));
  EXPECT_EQ(Run(dir_).code, 2);
  EXPECT_THAT(Run(dir_).out, HasSubstr("no .safetensors files"));
}

TEST_F(VerifyTest, WrongUse) {
  EXPECT_EQ(Run(dir_, "--dtype f16").code, 2);
  EXPECT_EQ(Run(dir_, "--unknown").code, 2);
}

TEST_F(VerifyTest, CorruptFilesFail) {
  WriteBytes(dir_ + "/cut.safetensors", SgdCase(0).Bytes().substr(0, 300));
  SafetensorsFile plain;
  plain.Add<float>("w", "F32", {1}, {1});
  plain.Write(dir_ + "/plain.safetensors");
  SafetensorsFile empty;
  empty.Meta("format", "colossal-golden/1");
  empty.Meta("optimizer", "sgd");
  empty.Write(dir_ + "/empty.safetensors");
  const Result result = Run(dir_);
  EXPECT_EQ(result.code, 1);
  EXPECT_THAT(result.out, HasSubstr("cut.safetensors: byte 0"));
  EXPECT_THAT(result.out, HasSubstr("not a recorded case"));
  EXPECT_THAT(result.out, HasSubstr("0 passed, 3 failed"));
}

}  // namespace verify_test
}  // namespace apogee::tools
