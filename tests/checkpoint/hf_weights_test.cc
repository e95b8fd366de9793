// SPDX-License-Identifier: Apache-2.0

// Hugging Face weights: what ranks hold between them becomes whole tensors in files, and comes back
// under any layout; files that break a rule are refused.
#include "apogee/checkpoint/hf/hf_weights.h"

#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <numeric>

#include "apogee/checkpoint/format/safetensors_reader.h"
#include "apogee/checkpoint/hf/hf_config_dtype.h"
#include "apogee/checkpoint/hf/hf_index.h"
#include "apogee/tensor/cpu/cpu_context.h"
#include "apogee/tests/checkpoint/tensor_parts.h"
#include "apogee/tests/support/files/safetensors_file.h"
#include "apogee/tests/support/files/temp_dir.h"
#include "apogee/tests/support/run_ranks.h"

namespace apogee::checkpoint {
namespace hf_weights_test {

using apogee::testing::ReadFile;
using apogee::testing::RunRanks;
using apogee::testing::TempDir;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(HfWeightsTest, PartsBecomeOneTensorAndComeBack) {
  for (const int ranks : {1, 2, 3}) {
    const TempDir folder;
    const std::string path = folder / "out";
    RunRanks(ranks, [&](comm::World& world) {
      const TensorPart cut = Columns(world.rank(), ranks, true);
      const TensorPart same = Whole("same", {1, 2, 3});
      ASSERT_EQ(SaveModelWeights({RealFileSystem(), path}, {same, cut},
                                 {.config_json = "{\"model_type\": \"x\"}\n"}, world.group()),
                absl::OkStatus());
    });
    EXPECT_THAT(*RealFileSystem()->List(folder.path()), ElementsAre("out"));
    EXPECT_THAT(*RealFileSystem()->List(path), ElementsAre("config.json", "model.safetensors"));
    EXPECT_EQ(ReadFile(path + "/config.json"), "{\"model_type\": \"x\"}\n");
    const auto file = SafetensorsReader::Open(path + "/model.safetensors");
    ASSERT_TRUE(file.ok()) << file.status();
    EXPECT_EQ(file->metadata().at("format"), "pt");
    EXPECT_EQ(file->entries().at("cut").shape, (std::vector<int64_t>{4, 3 * ranks}));
    EXPECT_EQ(file->Load("cut", CpuContext())->ToVector<float>(), Counting(12 * ranks));

    RunRanks(ranks, [&](comm::World& world) {
      // Reversed, and rounded: small whole numbers lose nothing.
      const int rank = ranks - 1 - world.rank();
      const TensorPart got = Columns(rank, ranks, false, DType::kBF16);
      const TensorPart same = Whole("same", {0, 0, 0}, DType::kF64);
      const auto report =
          LoadModelWeights({RealFileSystem(), path}, {got, same}, {}, world.group());
      ASSERT_TRUE(report.ok()) << report.status();
      EXPECT_EQ(got.value.ToVector<float>(), Columns(rank, ranks, true).value.ToVector<float>());
      EXPECT_EQ(same.value.ToVector<float>(), (std::vector<float>{1, 2, 3}));
    });
  }
}

TEST(HfWeightsTest, LargeTensorsGoThroughTheWindow) {
  const TempDir folder;
  const std::vector<float> values = Counting((1 << 20) + 5);  // 4 MiB of 1 MiB windows
  ASSERT_EQ(SaveModelWeights({RealFileSystem(), folder / "out"}, {Whole("w", values)}, {}, nullptr),
            absl::OkStatus());
  const Layout back(Shape{static_cast<int64_t>(values.size())},
                    {.segments = {{1 << 19, (1 << 19) + 5}, {0, 1 << 18}}});
  const TensorPart got{"w", Vector(std::vector<float>(values.size(), -1)), back};
  ASSERT_TRUE(LoadModelWeights({RealFileSystem(), folder / "out"}, {got}, {}, nullptr).ok());
  const std::vector<float> read = got.value.ToVector<float>();
  size_t at = 0;
  for (const Segment& segment : back.segments()) {
    for (int64_t i = 0; i < segment.length; ++i) {
      ASSERT_EQ(read[at++], values[static_cast<size_t>(segment.begin + i)]);
    }
  }
  EXPECT_EQ(read[at], -1);
}

TEST(HfWeightsTest, SeveralFilesBySize) {
  const TempDir folder;
  const std::string path = folder / "out";
  constexpr int64_t kElements = 100'000;  // two fit into a MiB, three do not
  std::vector<TensorPart> parts;
  for (const char* name : {"e", "a", "c", "b", "d"}) {
    parts.push_back(Whole(name, Counting(kElements, static_cast<float>(name[0]))));
  }
  RunRanks(2, [&](comm::World& world) {
    ASSERT_EQ(
        SaveModelWeights({RealFileSystem(), path}, parts, {.size_per_shard_mb = 1}, world.group()),
        absl::OkStatus());
  });
  EXPECT_THAT(*RealFileSystem()->List(path),
              ElementsAre("model-00001-of-00003.safetensors", "model-00002-of-00003.safetensors",
                          "model-00003-of-00003.safetensors", "model.safetensors.index.json"));
  const std::string json = ReadFile(path + "/model.safetensors.index.json");
  EXPECT_THAT(json, HasSubstr("\"total_size\": 2000000\n"));
  const auto index = ParseHfIndex(json, "index");
  ASSERT_TRUE(index.ok()) << index.status();
  EXPECT_EQ(index->weight_map.at("a"), "model-00001-of-00003.safetensors");
  EXPECT_EQ(index->weight_map.at("d"), "model-00002-of-00003.safetensors");
  EXPECT_EQ(index->weight_map.at("e"), "model-00003-of-00003.safetensors");
  std::vector<TensorPart> back;
  for (const TensorPart& part : parts) {
    back.push_back(Whole(part.name, std::vector<float>(kElements, 0)));
  }
  ASSERT_TRUE(LoadModelWeights({RealFileSystem(), path}, back, {}, nullptr).ok());
  for (size_t i = 0; i < parts.size(); ++i) {
    EXPECT_EQ(back[i].value.ToVector<float>(), parts[i].value.ToVector<float>());
  }
}

// A tensor of these bits, which it also writes to `saved` as they are.
template <typename T>
TensorPart OfBits(const std::string& saved, const std::string& name, const std::string& dtype_name,
                  DType dtype, const std::vector<T>& bits) {
  const std::string bytes(reinterpret_cast<const char*>(bits.data()), bits.size() * sizeof(T));
  WriteBytes(saved + "/" + name + "." + dtype_name, bytes);
  const Shape shape{static_cast<int64_t>(bits.size()) / 2, 2};
  const Tensor tensor = Tensor::Empty(shape, dtype, CpuContext());
  std::memcpy(tensor.raw(), bytes.data(), bytes.size());
  return {name, tensor, Layout(shape)};
}

// With the library that everybody else reads them with, as NumPy arrays and PyTorch tensors, where
// Python has these. Every 16-bit number; of the wider ones NaNs with payloads, infinities, -0,
// numbers near 0, and 1.3 MB, so that several files are needed.
TEST(HfWeightsTest, PythonReadsThem) {
  const TempDir folder;
  const std::string saved = folder / "saved";
  std::filesystem::create_directory(saved);
  std::vector<uint16_t> halves(1 << 16);
  std::iota(halves.begin(), halves.end(), uint16_t{0});
  std::vector<uint32_t> words = {0x7fc00001, 0xffffffff, 0x7f800001, 0x7f800000, 0x80000000, 1};
  std::vector<uint64_t> longs = {0x7ff8000000000001, ~uint64_t{0},      0x7ff0000000000001,
                                 0xfff0000000000000, uint64_t{1} << 63, 1};
  for (uint32_t i = 0; i < 300'000; ++i) words.push_back(i * 2654435761u);
  for (uint64_t i = 0; i < 10'000; ++i) longs.push_back(i * 0x9e3779b97f4a7c15u);
  const std::vector<TensorPart> parts = {OfBits(saved, "a", "F16", DType::kF16, halves),
                                         OfBits(saved, "b", "BF16", DType::kBF16, halves),
                                         OfBits(saved, "c", "F32", DType::kF32, words),
                                         OfBits(saved, "d", "F64", DType::kF64, longs)};
  for (const int64_t mb : {1, 5}) {
    const std::string path = folder / std::to_string(mb);
    ASSERT_TRUE(
        SaveModelWeights({RealFileSystem(), path}, parts, {.size_per_shard_mb = mb}, nullptr).ok());
    EXPECT_EQ(std::filesystem::exists(path + "/model.safetensors.index.json"), mb == 1);
    const auto check = [&path, &saved] {
      const std::string both = path + " --bytes " + saved;
      const int status =
          std::system(("${PYTHON:-python3} " APOGEE_CHECK_SAFETENSORS " " + both).c_str());
      return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
    };
    const int code = check();
    if (code == 77) GTEST_SKIP() << "Python's safetensors is not installed";
    EXPECT_EQ(code, 0);
    if (mb == 1) continue;
    std::string other = ReadFile(saved + "/b.BF16");
    other[1000] ^= 1;
    WriteBytes(saved + "/b.BF16", other);
    EXPECT_EQ(check(), 1) << "a bit that was not saved like that";
  }
}

TEST(HfWeightsTest, TiedWeightsOnce) {
  const TempDir folder;
  const TensorPart table = Whole("wte", {1, 2, 3});
  const TensorPart head{"lm_head", table.value, table.layout};
  ASSERT_TRUE(
      SaveModelWeights({RealFileSystem(), folder / "out"}, {table, head}, {}, nullptr).ok());
  EXPECT_EQ(SafetensorsReader::Open(folder / "out/model.safetensors")->entries().size(), 1u);
  table.value.Fill(0);
  ASSERT_TRUE(
      LoadModelWeights({RealFileSystem(), folder / "out"}, {table, head}, {}, nullptr).ok());
  EXPECT_EQ(head.value.ToVector<float>(), (std::vector<float>{1, 2, 3}));
}

TEST(HfWeightsTest, NothingIsOverwrittenAndNothingLeftBehind) {
  const TempDir folder;
  RunRanks(2, [&](comm::World& world) {
    const auto save = [&](const std::string& path, const std::vector<TensorPart>& parts,
                          int64_t mb = 1) {
      return SaveModelWeights({RealFileSystem(), path}, parts, {.size_per_shard_mb = mb},
                              world.group());
    };
    ASSERT_TRUE(save(folder / "out/", {Whole("w", {1})}).ok());
    EXPECT_TRUE(absl::IsAlreadyExists(save(folder / "out", {Whole("w", {1})})));
    EXPECT_TRUE(absl::IsNotFound(save(folder / "none/out", {Whole("w", {1})})));
    EXPECT_THAT(Message(save(folder / "o", {Whole("w", {1})}, 0)), HasSubstr("got 0"));
    EXPECT_THAT(Message(save(folder / "o", {})), HasSubstr("no tensors"));
    EXPECT_THAT(Message(save(folder / "o", {Columns(0, 2, true)})),
                HasSubstr("element 3 of tensor \"cut\" of 24 is held by no rank"));
  });
  EXPECT_THAT(*RealFileSystem()->List(folder.path()), ElementsAre("out"));
}

TEST(HfWeightsTest, StrictListsEverythingThatDoesNotFit) {
  const TempDir folder;
  ASSERT_TRUE(SaveModelWeights({RealFileSystem(), folder / "out"},
                               {Whole("a", {1}),
                                Whole("b", {1, 2}),
                                Whole("x", {3}),
                                {"codes", Vector({1}, DType::kU8), Layout(Shape{1})}},
                               {}, nullptr)
                  .ok());
  std::vector<TensorPart> targets = {Whole("a", {9}), Whole("b", {9, 9, 9}), Whole("c", {9}),
                                     Whole("codes", {9})};
  const auto load = [&](bool strict) {
    return LoadModelWeights({RealFileSystem(), folder / "out"}, targets, {.strict = strict},
                            nullptr);
  };
  const std::string message = Message(load(true).status());
  EXPECT_THAT(message, AllOf(HasSubstr("missing \"c\""), HasSubstr("unexpected \"x\""),
                             HasSubstr("shape of \"b\": is F32 [2], wanted F32 "),
                             HasSubstr("dtype of \"codes\": is U8 [1], wanted F32 ")));
  EXPECT_THAT(Message(load(false).status()), HasSubstr("shape of \"b\""));
  EXPECT_EQ(targets[0].value.Item(), 9);  // unchanged
  targets = {targets[0], targets[2]};
  const auto report = load(false);
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_THAT(report->missing, ElementsAre("c"));
  EXPECT_THAT(report->unexpected, ElementsAre("b", "codes", "x"));
  EXPECT_EQ(targets[0].value.Item(), 1);
  EXPECT_EQ(targets[1].value.Item(), 9);
}

}  // namespace hf_weights_test
}  // namespace apogee::checkpoint
