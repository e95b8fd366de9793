// SPDX-License-Identifier: Apache-2.0

// The index of weights in several files, folders without weights, and files that break a rule.
#include "apogee/checkpoint/hf/hf_index.h"

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
#include "apogee/checkpoint/hf/hf_weights.h"
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

// Two files, "a" with w1 and "b" with w2, and an index to spoil.
class HfIndexTest : public ::testing::Test {
 protected:
  HfIndexTest() {
    WriteOne("a.safetensors", "w1");
    WriteOne("b.safetensors", "w2");
  }
  void WriteOne(const std::string& file, const std::string& tensor) {
    SafetensorsFile out;
    out.Add<float>(tensor, "F32", {1}, {1});
    out.Write(folder_ / file);
  }
  std::string Load(const std::string& index) {
    folder_.Write(kHfIndexName, index);
    const auto report = LoadModelWeights({RealFileSystem(), folder_.path()},
                                         {Whole("w1", {0}), Whole("w2", {0})}, {}, nullptr);
    return report.ok() ? "ok" : Message(report.status());
  }
  static std::string Map(const std::string& map) { return "{\"weight_map\": {" + map + "}}"; }

  TempDir folder_;
};

TEST_F(HfIndexTest, Good) {
  EXPECT_EQ(Load(Map(R"("w1": "a.safetensors", "w2": "b.safetensors")")), "ok");
  // The sizes are lies, which nobody reads.
  EXPECT_EQ(
      Load(
          R"({"metadata": {"total_size": 1e30, "total_parameters": -7, "note": null, "x": "y", "z": -1, "q": true},
                     "weight_map": {"w1": "a.safetensors", "w2": "b.safetensors"}})"),
      "ok");
  const auto back = ParseHfIndex(FormatHfIndex({{{"w\"1", "a"}, {"w2", "b"}}}, 7), "index");
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_EQ(back->weight_map.at("w\"1"), "a");
}

TEST_F(HfIndexTest, NotOneObject) {
  for (const char* text : {"", "[]", "7", "null", "{", "{\"weight_map\": {}} x",
                           "{\"weight_map\": {\"w\": \"\xff\"}}", "{\"weight_map\": []}"}) {
    EXPECT_THAT(Load(text), HasSubstr(kHfIndexName)) << text;
  }
  EXPECT_THAT(Load("{}"), HasSubstr("needs the field \"weight_map\""));
  EXPECT_THAT(Load("{\"weight_map\": {}, \"more\": 1}"),
              HasSubstr("\"more\": is an unknown field"));
  EXPECT_THAT(Load("{\"weight_map\": 3}"), HasSubstr("a number is not allowed"));
  EXPECT_THAT(Load("{\"weight_map\": \"a\"}"), HasSubstr("a string is not allowed"));
  EXPECT_THAT(Load("{\"metadata\": {\"a\": {}}, \"weight_map\": {}}"),
              HasSubstr("an object is not allowed"));
}

TEST_F(HfIndexTest, TwiceTheSameKey) {
  EXPECT_THAT(Load(Map(R"("w1": "a.safetensors", "w1": "a.safetensors")")),
              HasSubstr("\"w1\": is given twice"));
  EXPECT_THAT(Load(R"({"weight_map": {}, "weight_map": {}})"), HasSubstr("is given twice"));
  EXPECT_THAT(Load(R"({"metadata": {"a": 1, "a": 1}, "weight_map": {}})"),
              HasSubstr("\"a\": is given twice"));
}

TEST_F(HfIndexTest, FilesElsewhere) {
  for (const char* file :
       {"../a.safetensors", "/etc/passwd", "sub/a.safetensors", "..", ".", "", "a\\u0000b"}) {
    EXPECT_THAT(Load(Map("\"w1\": \"" + std::string(file) + "\"")),
                HasSubstr("is not the name of a file in this folder"))
        << file;
  }
  EXPECT_THAT(Load(Map(R"("": "a.safetensors")")), HasSubstr("a tensor name is empty"));
  EXPECT_THAT(Load(Map("\"" + std::string(2000, 'n') + "\": \"a.safetensors\"")),
              HasSubstr("too long"));
}

TEST_F(HfIndexTest, FilesThatAreNone) {
  std::filesystem::create_directory(folder_ / "dir.safetensors");
  ASSERT_EQ(mkfifo((folder_ / "fifo.safetensors").c_str(), 0666), 0);
  std::filesystem::create_symlink("fifo.safetensors", folder_ / "to_fifo.safetensors");
  std::filesystem::create_symlink("/dev/zero", folder_ / "to_device.safetensors");
  for (const char* name : {"dir", "fifo", "to_fifo", "to_device"}) {
    const std::string file = std::string(name) + ".safetensors";
    EXPECT_THAT(Load(Map("\"w1\": \"a.safetensors\", \"w2\": \"" + file + "\"")),
                AllOf(HasSubstr(file), HasSubstr("not a regular file")));
  }
  std::filesystem::create_symlink("none", folder_ / "dangling.safetensors");
  EXPECT_THAT(Load(Map(R"("w1": "a.safetensors", "w2": "dangling.safetensors")")),
              HasSubstr("dangling.safetensors: is a link to a file that is missing; download it"));
}

TEST_F(HfIndexTest, Downloads) {
  const auto load = [&] {
    return LoadModelWeights({RealFileSystem(), folder_.path()},
                            {Whole("w1", {0}), Whole("w2", {0})}, {}, nullptr)
        .status();
  };
  const std::string map = Map(R"("w1": "a.safetensors", "w2": "c.safetensors")");
  folder_.Write(kHfIndexName, map);
  EXPECT_TRUE(absl::IsNotFound(load())) << load();
  EXPECT_THAT(Message(load()), HasSubstr("of the 2 files in model.safetensors.index.json these are "
                                         "missing: c.safetensors; download them again"));
  folder_.Write("c.safetensors.incomplete", "1234");
  EXPECT_THAT(Message(load()), HasSubstr("these are missing: c.safetensors (\"c.safetensors."
                                         "incomplete\" is there: its download has not finished)"));
  const std::string whole = ReadFile(folder_ / "b.safetensors");
  for (const size_t bytes : {size_t{0}, size_t{4}, size_t{20}, whole.size() - 1}) {
    folder_.Write("c.safetensors", whole.substr(0, bytes));
    EXPECT_TRUE(absl::IsDataLoss(load())) << load();
    EXPECT_THAT(Message(load()), AllOf(HasSubstr("c.safetensors: "),
                                       HasSubstr("has not finished: download it again")));
  }
  folder_.Write("c.safetensors",
                "version https://git-lfs.github.com/spec/v1\noid sha256:0a1b\nsize 1234\n");
  EXPECT_TRUE(absl::IsDataLoss(load())) << load();
  EXPECT_THAT(Message(load()), HasSubstr("c.safetensors: is a Git LFS pointer, not the data; run"));
}

TEST(HfFolderTest, WithoutWeights) {
  const auto load = [](const TempDir& folder) {
    return LoadModelWeights({RealFileSystem(), folder.path()}, {}, {}, nullptr).status();
  };
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"model.safetensors.incomplete",
       "(\"model.safetensors.incomplete\" is there: its download has not finished); download it"},
      {"model-00002-of-00003.safetensors",
       "\"model-00002-of-00003.safetensors\" is one of several files, and the index"},
      {"pytorch_model.bin", "\"pytorch_model.bin\" is not read, because pickles run code"},
      {"tokenizer.json", "has neither model.safetensors nor model.safetensors.index.json"},
  };
  for (const auto& [file, message] : cases) {
    const TempDir folder;
    folder.Write(file, "x");
    EXPECT_TRUE(absl::IsNotFound(load(folder))) << load(folder);
    EXPECT_THAT(Message(load(folder)), HasSubstr(message));
  }
}

TEST(ConfigDTypeTest, IsThatOfTheWeights) {
  const std::string text =
      "{\n \"a\": [1.50, {\"dtype\": \"float64\"}],\t\"dtype\" : \"float16\", \"b\":\"\\u00e9\","
      "\"torch_dtype\":null,\"c\":1e2}\r\n";
  const auto with = [](const std::string& first, const std::string& second) {
    return "{\n \"a\": [1.50, {\"dtype\": \"float64\"}],\t\"dtype\" : " + first +
           ", \"b\":\"\\u00e9\",\"torch_dtype\":" + second + ",\"c\":1e2}\r\n";
  };
  const auto both = [&](const std::string& name) { return with(name, name); };
  EXPECT_EQ(WithDType(text, {"BF16", "I64"}), both("\"bfloat16\""));
  EXPECT_EQ(WithDType(text, {"BF16", "F32"}), both("\"float32\""));
  EXPECT_EQ(WithDType(text, {"F16"}), both("\"float16\""));
  EXPECT_EQ(WithDType(text, {"F64", "F16"}), both("\"float64\""));
  EXPECT_EQ(WithDType(text, {"BF16", "F16"}), both("\"float32\"")) << "holds both";
  EXPECT_EQ(WithDType(with("\"\\u0066\"", "16"), {"F16"}), both("\"float16\""));
  for (const std::string same :
       {text.substr(0, 60), std::string("{}\n"), std::string("[\"dtype\"]"), std::string("7"),
        std::string("{\"a\": \"dtype\"}"), std::string()}) {
    EXPECT_EQ(WithDType(same, {"F32"}), same);
  }
  EXPECT_EQ(WithDType(text, {"I64"}), text);

  const TempDir folder;
  const std::vector<TensorPart> parts = {Whole("a", {1}), Whole("b", {1}, DType::kBF16)};
  ASSERT_TRUE(
      SaveModelWeights({RealFileSystem(), folder / "out"}, parts, {.config_json = text}, nullptr)
          .ok());
  EXPECT_EQ(ReadFile(folder / "out/config.json"), both("\"float32\""));
}

// As the hub's cache has them: snapshots/REVISION/NAME is a link to blobs/DIGEST.
TEST_F(HfIndexTest, FilesOfTheHubsCache) {
  const TempDir cache;
  std::filesystem::create_directories(cache / "snapshots/0a1b");
  std::filesystem::create_directory(cache / "blobs");
  folder_.Write(kHfIndexName, Map(R"("w1": "a.safetensors", "w2": "b.safetensors")"));
  for (const std::string name : {"a.safetensors", "b.safetensors", kHfIndexName}) {
    const std::string digest = "d1635" + std::to_string(name.size()) + name.substr(0, 1);
    std::filesystem::copy(folder_ / name, cache / ("blobs/" + digest));
    std::filesystem::create_symlink("../../blobs/" + digest, cache / ("snapshots/0a1b/" + name));
  }
  const auto report = LoadModelWeights({RealFileSystem(), cache / "snapshots/0a1b"},
                                       {Whole("w1", {0}), Whole("w2", {0})}, {}, nullptr);
  EXPECT_TRUE(report.ok()) << report.status();
}

TEST_F(HfIndexTest, IndexAndFilesDisagree) {
  EXPECT_THAT(Load(Map(R"("w1": "b.safetensors", "w2": "b.safetensors")")),
              HasSubstr("b.safetensors: has no tensor \"w1\", which the index says is there"));
  EXPECT_THAT(Load(Map(R"("w1": "a.safetensors")")), HasSubstr("missing \"w2\""));
  SafetensorsFile more;
  more.Add<float>("w2", "F32", {1}, {1});
  more.Add<float>("w3", "F32", {1}, {1});
  more.Write(folder_ / "b.safetensors");
  EXPECT_THAT(Load(Map(R"("w1": "a.safetensors", "w2": "b.safetensors")")),
              HasSubstr("b.safetensors: has a tensor \"w3\", which the index does not list"));
  SafetensorsFile again;
  again.Add<float>("w1", "F32", {1}, {1});
  again.Add<float>("w2", "F32", {1}, {1});
  again.Write(folder_ / "b.safetensors");
  EXPECT_THAT(Load(Map(R"("w1": "a.safetensors", "w2": "b.safetensors")")),
              HasSubstr("b.safetensors: has a tensor \"w1\", which the index says is in "
                        "\"a.safetensors\""));
}

TEST_F(HfIndexTest, WhichFolder) {
  const TempDir empty;
  const auto load = [](const std::string& path) {
    return LoadModelWeights({RealFileSystem(), path}, {}, {}, nullptr).status();
  };
  EXPECT_TRUE(absl::IsNotFound(load(empty.path())));
  EXPECT_TRUE(absl::IsNotFound(load(empty / "none")));
  WriteOne("model.safetensors", "w1");
  EXPECT_THAT(Load(Map(R"("w1": "a.safetensors")")), HasSubstr("has both"));
}

}  // namespace hf_weights_test
}  // namespace apogee::checkpoint
