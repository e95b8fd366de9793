// SPDX-License-Identifier: Apache-2.0

// Whatever happens to a file of a checkpoint is found when it is opened or read, and the error
// names the file, and where data differ the tensor and its bytes.
//
// APOGEE_CORRUPTIONS: how many random damages; scripts/corruption.sh runs more than ctest does.
#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <cstdio>

#include "apogee/checkpoint/checkpoint_reader.h"
#include "apogee/checkpoint/checkpoint_writer.h"
#include "apogee/checkpoint/format/tensor_file.h"
#include "apogee/core/rng.h"
#include "apogee/tensor/cpu/cpu_context.h"
#include "apogee/tests/support/files/damage.h"
#include "apogee/tests/support/files/temp_dir.h"
#include "apogee/tests/support/run_ranks.h"

namespace apogee::checkpoint {
namespace corruption_test {

using apogee::testing::Damage;
using apogee::testing::DamageCount;
using apogee::testing::DamageDice;
using apogee::testing::ReadFile;
using apogee::testing::RunRanks;
using apogee::testing::TempDir;
using ::testing::AnyOf;
using ::testing::HasSubstr;

// One tensor per shape, of random bytes, cut over two ranks by rows.
void Save(const std::string& path, const std::vector<Shape>& shapes) {
  RunRanks(2, [&](comm::World& world) {
    CheckpointContents contents{.attributes = {{"step", "7"}}, .parts = {}};
    for (const Shape& shape : shapes) {
      const std::string name = internal::Concat("w", contents.parts.size());
      const int64_t half = shape.numel() / 2;
      const Tensor part = Tensor::Zeros({half}, DType::kF32, CpuContext());
      const PhiloxKey key = MakeKey(4, name);
      for (int64_t i = 0; i < half; ++i) {
        const auto place = static_cast<uint64_t>(world.rank() * half + i);
        part.data<float>()[i] = static_cast<float>(Philox(key, place)[0]);
      }
      const Layout layout(shape, {.segments = {{world.rank() * half, half}}});
      contents.parts.push_back({name, part, layout});
    }
    ASSERT_EQ(SaveCheckpoint({RealFileSystem(), path}, contents, world.group()), absl::OkStatus());
  });
}

// Reads everything, as a run that resumes does.
absl::Status ReadAll(const std::string& path) {
  APOGEE_ASSIGN_OR_RETURN(const auto reader, CheckpointReader::Open(RealFileSystem(), path));
  for (const auto& [name, tensor] : reader.manifest().tensors) {
    const Tensor to = Tensor::Zeros(Shape(tensor.shape), *TensorDType(tensor.dtype), CpuContext());
    APOGEE_RETURN_IF_ERROR(reader.Read(name, Layout(to.shape()), to));
  }
  return absl::OkStatus();
}

absl::Status VerifyAll(const std::string& path) {
  APOGEE_ASSIGN_OR_RETURN(const auto reader, CheckpointReader::Open(RealFileSystem(), path));
  return reader.Verify();
}

// What is wrong with how a damage was reported, or "".
std::string Complaint(const absl::Status& status, const std::string& file, const Damage& damage,
                      int64_t data_start) {
  if (status.ok()) return "not found";
  if (Message(status).find(file) == std::string::npos) return "the file is not named";
  if (damage.keeps_size && damage.first_byte >= data_start &&
      (Message(status).find("tensor \"w") == std::string::npos ||
       Message(status).find("bytes [") == std::string::npos)) {
    return "tensor and bytes are not named";
  }
  return "";
}

TEST(CorruptionTest, RandomDamageOfTheRanksFiles) {
  const TempDir dir;
  const std::string path = dir / "c";
  Save(path, {{300, 200}, {64}, {2, 7, 5}, {1000}});
  ASSERT_EQ(VerifyAll(path), absl::OkStatus());
  ASSERT_EQ(ReadAll(path), absl::OkStatus());
  DamageDice dice(11);
  std::map<std::string, int> kinds;
  for (int i = 0; i < DamageCount(1000); ++i) {
    const std::string name = "c/rank-0000" + std::to_string(i % 2) + ".safetensors";
    const std::string file = dir / name, before = ReadFile(file);
    const auto opened = OpenTensorFile::Open(*RealFileSystem(), file);
    ASSERT_TRUE(opened.ok());
    std::string bytes = before;
    const Damage damage = dice.Apply(bytes);
    ++kinds[damage.kind];
    dir.Write(name, bytes);
    for (const absl::Status& status : {VerifyAll(path), ReadAll(path)}) {
      const std::string complaint = Complaint(status, file, damage, opened->data_start);
      EXPECT_EQ(complaint, "") << damage.what << " in " << name << ": " << status;
    }
    dir.Write(name, before);
    if (HasFailure()) break;
  }
  EXPECT_EQ(kinds.size(), 5u);
  EXPECT_EQ(VerifyAll(path), absl::OkStatus());
}

class ManifestCorruptionTest : public ::testing::Test {
 protected:
  ManifestCorruptionTest() { Save(path_, {{4, 3}, {6}}); }
  // "" or what is wrong.
  std::string Found(const std::string& text) const {
    const absl::Status status = ParseManifest(text, file_).status();
    if (status.ok()) return "not found";
    return Message(status).find(file_) == std::string::npos ? "the file is not named" : "";
  }

  TempDir dir_;
  const std::string path_ = dir_ / "c", file_ = path_ + "/manifest.json";
};

TEST_F(ManifestCorruptionTest, EveryByteAsEveryOtherByte) {
  std::string text = ReadFile(file_);
  ASSERT_TRUE(ParseManifest(text, file_).ok());
  for (size_t i = 0; i < text.size(); ++i) {
    const char right = text[i];
    for (int other = 1; other < 256; ++other) {
      text[i] = static_cast<char>(right ^ other);
      ASSERT_EQ(Found(text), "") << "byte " << i << " as " << int{text[i]};
    }
    text[i] = right;
  }
  std::printf("%zu bytes, %zu texts\n", text.size(), text.size() * 255);
}

TEST_F(ManifestCorruptionTest, EveryLength) {
  const std::string text = ReadFile(file_);
  for (size_t length = 0; length < text.size(); ++length) {
    ASSERT_EQ(Found(text.substr(0, length)), "") << length;
  }
  for (const char more : {' ', '\n', '\0', '}', '0'}) EXPECT_EQ(Found(text + more), "");
  EXPECT_EQ(Found(text + text), "");
}

// The same through the file: a byte of each, and each length.
TEST_F(ManifestCorruptionTest, InTheFile) {
  const std::string text = ReadFile(file_);
  for (size_t i = 0; i < text.size(); ++i) {
    std::string changed = text;
    changed[i] = static_cast<char>(changed[i] ^ (1 << i % 8));
    for (const std::string& damaged : {changed, text.substr(0, i)}) {
      dir_.Write("c/manifest.json", damaged);
      const absl::Status status = VerifyAll(path_);
      ASSERT_FALSE(status.ok()) << i;
      ASSERT_THAT(Message(status), HasSubstr(file_));
    }
  }
}

}  // namespace corruption_test
}  // namespace apogee::checkpoint
