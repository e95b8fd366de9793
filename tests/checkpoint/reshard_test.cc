// SPDX-License-Identifier: Apache-2.0

// Rewritten checkpoints: the same tensors over other files, and the weights alone; damage, full
// disks and folders that are there.
#include "apogee/checkpoint/reshard.h"

#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <numeric>

#include "apogee/checkpoint/checkpoint_reader.h"
#include "apogee/checkpoint/checkpoint_writer.h"
#include "apogee/checkpoint/format/tensor_file.h"
#include "apogee/checkpoint/format/tensor_stream.h"
#include "apogee/checkpoint/run_merge.h"
#include "apogee/tensor/cpu/cpu_context.h"
#include "apogee/tests/support/descriptor_limit.h"
#include "apogee/tests/support/files/crash_file_system.h"
#include "apogee/tests/support/files/safetensors_file.h"
#include "apogee/tests/support/files/temp_dir.h"
#include "apogee/tests/support/run_ranks.h"

namespace apogee::checkpoint {
namespace reshard_test {

using apogee::testing::CrashFileSystem;
using apogee::testing::DescriptorLimit;
using apogee::testing::ReadFile;
using apogee::testing::RunRanks;
using apogee::testing::TempDir;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr int64_t kRows = 300, kCols = 210;  // 252,000 bytes: four blocks
constexpr int kRanks = 3;

float Element(int64_t index) { return static_cast<float>(index) + 0.5f; }

// A matrix of which rank r holds columns [70 r, 70 r + 70), a vector that the last two hold halves
// of, bytes that all hold, and an optimizer's state.
void SaveOnRanks(const std::shared_ptr<FileSystem>& files, const std::string& path) {
  RunRanks(kRanks, [&](comm::World& world) {
    const int rank = world.rank();
    std::vector<Segment> segments;
    std::vector<float> values;
    for (int64_t row = 0; row < kRows; ++row) {
      segments.push_back({row * kCols + 70 * rank, 70});
      for (int64_t i = 0; i < 70; ++i) values.push_back(Element(segments.back().begin + i));
    }
    std::vector<TensorPart> parts = {
        {"model/columns",
         Tensor::FromVector<float>(values, {static_cast<int64_t>(values.size())}, world.context()),
         Layout(Shape{kRows, kCols}, {.segments = segments})},
        {"model/bytes", Tensor::FromVector<float>({1, 2, 3}, {3}, world.context(), DType::kU8),
         Layout(Shape{3})},
        {"optimizer/columns/exp", Tensor::FromVector<double>({7}, {1}, world.context()),
         Layout(Shape{})}};
    if (rank > 0) {
      parts.push_back({"model/halves",
                       Tensor::FromVector<float>({Element(2 * rank), Element(2 * rank + 1)}, {2},
                                                 world.context(), DType::kBF16),
                       Layout(Shape{4}, {.segments = {{2 * rank - 2, 2}}})});
    }
    ASSERT_EQ(SaveCheckpoint({files, path},
                             {.attributes = {{"step", "7"}, {"extra/a", "b"}}, .parts = parts},
                             world.group()),
              absl::OkStatus());
  });
}

// Every tensor whole, as bytes.
std::map<std::string, std::string> Contents(const CheckpointReader& reader) {
  std::map<std::string, std::string> contents;
  for (const auto& [name, tensor] : reader.manifest().tensors) {
    const Shape shape(tensor.shape);
    const Tensor value = Tensor::Empty(shape, *TensorDType(tensor.dtype), CpuContext());
    EXPECT_EQ(reader.Read(name, Layout(shape), value), absl::OkStatus());
    contents[name].assign(static_cast<const char*>(value.raw()),
                          static_cast<size_t>(value.bytes()));
  }
  return contents;
}

TEST(ReshardTest, TheSameTensorsOverAnyNumberOfFiles) {
  const TempDir folder;
  const auto& files = RealFileSystem();
  SaveOnRanks(files, folder / "in");
  const auto in = CheckpointReader::Open(files, folder / "in");
  ASSERT_TRUE(in.ok()) << in.status();
  const auto want = Contents(*in);
  for (const int64_t count : {1, 2, 3, 5, 16}) {
    const std::string path = folder / std::to_string(count);
    ASSERT_EQ(ReshardCheckpoint(files, folder / "in", path, {.num_files = count}),
              absl::OkStatus());
    const auto out = CheckpointReader::Open(files, path);
    ASSERT_TRUE(out.ok()) << out.status();
    EXPECT_EQ(out->Verify(), absl::OkStatus());
    EXPECT_EQ(out->attributes(), in->attributes());
    EXPECT_EQ(Contents(*out), want) << count;
    const LogicalTensor& columns = out->manifest().tensors.at("model/columns");
    ASSERT_EQ(columns.slices.size(), static_cast<size_t>(count));
    for (const Slice& slice : columns.slices) {
      EXPECT_LE(std::abs(slice.numel() - kRows * kCols / count), 1);
      EXPECT_EQ(slice.runs.size(), 1u);
    }
    EXPECT_EQ(out->manifest().files.size(), static_cast<size_t>(count));
  }
}

// More than a process may have open.
TEST(ReshardTest, ManyFiles) {
  const TempDir folder;
  const auto& files = RealFileSystem();
  SaveOnRanks(files, folder / "in");
  const DescriptorLimit limit(40);
  ASSERT_EQ(ReshardCheckpoint(files, folder / "in", folder / "cut", {.num_files = 200}),
            absl::OkStatus());
  ASSERT_EQ(ReshardCheckpoint(files, folder / "cut", folder / "out", {.num_files = 3}),
            absl::OkStatus());
  const auto in = CheckpointReader::Open(files, folder / "in");
  const auto cut = CheckpointReader::Open(files, folder / "cut");
  ASSERT_TRUE(cut.ok()) << cut.status();
  EXPECT_EQ(cut->Verify(), absl::OkStatus());
  EXPECT_EQ(Contents(*cut), Contents(*in));
  // A file that goes meanwhile is damage, not a folder that was never there.
  ASSERT_TRUE(std::filesystem::remove(folder / "cut/rank-00007.safetensors"));
  EXPECT_TRUE(absl::IsDataLoss(cut->Verify())) << cut->Verify();
}

// Cut and put together again, a checkpoint is the same file, byte for byte.
TEST(ReshardTest, ThereAndBackAgain) {
  const TempDir folder;
  const auto& files = RealFileSystem();
  SaveOnRanks(files, folder / "in");
  for (const auto& [from, to, count] :
       {std::tuple("in", "one", 1), {"one", "seven", 7}, {"seven", "back", 1}}) {
    ASSERT_EQ(ReshardCheckpoint(files, folder / from, folder / to, {.num_files = count}),
              absl::OkStatus());
  }
  for (const char* name : {"manifest.json", "rank-00000.safetensors"}) {
    EXPECT_EQ(ReadFile(folder / "one" + "/" + name), ReadFile(folder / "back" + "/" + name));
  }
}

TEST(ReshardTest, ExportsTheWeightsAlone) {
  const TempDir folder;
  const auto& files = RealFileSystem();
  SaveOnRanks(files, folder / "in");
  ASSERT_EQ(ExportModelWeights(files, folder / "in", folder / "out", {.config_json = "{}\n"}),
            absl::OkStatus());
  EXPECT_THAT(*files->List(folder / "out"), ElementsAre("config.json", "model.safetensors"));
  const auto weights = HfWeights::Open(files, folder / "out");
  ASSERT_TRUE(weights.ok()) << weights.status();
  std::vector<std::string> names;
  for (const auto& [name, place] : weights->tensors()) names.push_back(name);
  EXPECT_THAT(names, ElementsAre("bytes", "columns", "halves"));
  const auto& columns = weights->tensors().at("columns");
  EXPECT_EQ(columns.entry->dtype, "F32");
  EXPECT_THAT(columns.entry->shape, ElementsAre(kRows, kCols));
  EXPECT_EQ(columns.file->header.metadata.at("format"), "pt");
  const Tensor value = Tensor::Empty({kRows * kCols}, DType::kF32, CpuContext());
  ASSERT_EQ(weights->Read("columns", Layout(Shape{kRows * kCols}), value), absl::OkStatus());
  const auto got = value.ToVector<float>();
  for (size_t i = 0; i < got.size(); ++i) ASSERT_EQ(got[i], Element(static_cast<int64_t>(i)));
  EXPECT_EQ(weights->tensors().at("halves").entry->dtype, "BF16");
}

TEST(ReshardTest, ExportsSeveralFiles) {
  const TempDir folder;
  const auto& files = RealFileSystem();
  const int64_t numel = 3 << 17;  // 1.5 MiB
  std::vector<float> values(static_cast<size_t>(numel));
  std::iota(values.begin(), values.end(), 0.0f);
  std::vector<TensorPart> parts;
  for (const char* name : {"model/a", "model/b"}) {
    parts.push_back(
        {name, Tensor::FromVector<float>(values, {numel}, CpuContext()), Layout(Shape{numel})});
  }
  ASSERT_EQ(SaveCheckpoint({files, folder / "in"}, {.parts = parts}, nullptr), absl::OkStatus());
  ASSERT_EQ(ExportModelWeights(files, folder / "in", folder / "out", {.size_per_shard_mb = 2}),
            absl::OkStatus());
  EXPECT_THAT(*files->List(folder / "out"),
              ElementsAre("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors",
                          "model.safetensors.index.json"));
  EXPECT_THAT(ReadFile(folder / "out/model.safetensors.index.json"),
              HasSubstr("\"total_size\": 3145728"));
  const TensorPart b{"b", Tensor::Zeros({numel}, DType::kF32, CpuContext()), Layout(Shape{numel})};
  ASSERT_TRUE(LoadModelWeights({files, folder / "out"}, {b}, {.strict = false}, nullptr).ok());
  EXPECT_EQ(b.value.ToVector<float>(), values);
}

TEST(ReshardTest, DamageIsNamedAndNothingIsLeft) {
  const TempDir folder;
  const auto& files = RealFileSystem();
  SaveOnRanks(files, folder / "in");
  const std::string file = folder / "in/rank-00001.safetensors";
  const std::string good = ReadFile(file);
  std::string bad = good;
  bad[bad.size() - 70'000] ^= 8;
  WriteBytes(file, bad);
  for (const bool weights : {false, true}) {
    const absl::Status status =
        weights ? ExportModelWeights(files, folder / "in", folder / "out", {})
                : ReshardCheckpoint(files, folder / "in", folder / "out", {.num_files = 2});
    EXPECT_TRUE(absl::IsDataLoss(status)) << status;
    EXPECT_THAT(Message(status), AllOf(HasSubstr(file), HasSubstr("tensor \"model/columns\""),
                                       HasSubstr("bytes ["), HasSubstr("their digest differs")));
    EXPECT_THAT(*files->List(folder.path()), ElementsAre("in"));
  }
  ASSERT_TRUE(std::filesystem::remove(file));
  const absl::Status missing = ReshardCheckpoint(files, folder / "in", folder / "out", {});
  EXPECT_TRUE(absl::IsDataLoss(missing)) << missing;
  EXPECT_THAT(Message(missing), HasSubstr(file));
}

TEST(ReshardTest, RefusesMisuse) {
  const TempDir folder;
  const auto& files = RealFileSystem();
  SaveOnRanks(files, folder / "in");
  for (const int64_t count : {int64_t{0}, int64_t{-1}, kMaxReshardFiles + 1}) {
    const absl::Status status =
        ReshardCheckpoint(files, folder / "in", folder / "out", {.num_files = count});
    EXPECT_TRUE(absl::IsInvalidArgument(status));
    EXPECT_THAT(Message(status), HasSubstr("got " + std::to_string(count)));
  }
  EXPECT_TRUE(absl::IsAlreadyExists(ReshardCheckpoint(files, folder / "in", folder / "in", {})));
  EXPECT_TRUE(absl::IsAlreadyExists(ExportModelWeights(files, folder / "in", folder / "in/", {})));
  EXPECT_TRUE(absl::IsNotFound(ReshardCheckpoint(files, folder / "none", folder / "out", {})));
  EXPECT_TRUE(absl::IsNotFound(ReshardCheckpoint(files, folder.path(), folder / "out", {})));
  EXPECT_TRUE(absl::IsNotFound(ReshardCheckpoint(files, folder / "in", folder / "no/out", {})));
  EXPECT_THAT(
      Message(ExportModelWeights(files, folder / "in", folder / "o", {.size_per_shard_mb = 0})),
      HasSubstr("got 0"));
  const TensorPart state{"optimizer/w", Tensor::Zeros({1}, DType::kF32, CpuContext()),
                         Layout(Shape{1})};
  ASSERT_EQ(SaveCheckpoint({files, folder / "no_model"}, {.parts = {state}}, nullptr),
            absl::OkStatus());
  EXPECT_THAT(Message(ExportModelWeights(files, folder / "no_model", folder / "out", {})),
              HasSubstr("no weights to export"));
  EXPECT_THAT(*files->List(folder.path()), ElementsAre("in", "no_model"));
}

// A disk that is full at any operation: the error, and no folder; else all is there.
TEST(ReshardTest, AFullDiskLeavesNothing) {
  for (const bool weights : {false, true}) {
    for (size_t index = 0;; ++index) {
      const auto files = std::make_shared<CrashFileSystem>();
      SaveOnRanks(files, "in");
      files->FailAt(index, absl::ResourceExhaustedError("the disk is full"));
      const absl::Status status = weights ? ExportModelWeights(files, "in", "out", {})
                                          : ReshardCheckpoint(files, "in", "out", {.num_files = 2});
      if (status.ok()) {
        EXPECT_GT(index, 8u);
        break;
      }
      EXPECT_TRUE(absl::IsResourceExhausted(status)) << index << status;
      const auto names = *files->List("");
      // The rename has happened when the sync behind it fails.
      EXPECT_EQ(std::ranges::count(names, "in"), 1);
      if (names.size() > 1) EXPECT_THAT(names, ElementsAre("in", "out"));
    }
  }
}

// Once it says ok, a power cut takes nothing away; before, there is no half of it.
TEST(ReshardTest, APowerCutLeavesAllOrNothing) {
  const auto files = std::make_shared<CrashFileSystem>();
  SaveOnRanks(files, "in");
  const size_t from = files->num_operations();
  ASSERT_EQ(ReshardCheckpoint(files, "in", "out", {.num_files = 2}), absl::OkStatus());
  files->ForEachCrash(from, files->num_operations(),
                      [](const std::shared_ptr<FileSystem>& left, bool all_done) {
                        const bool there = left->List("out").ok();
                        if (all_done) EXPECT_TRUE(there);
                        if (!there) return;
                        const auto reader = CheckpointReader::Open(left, "out");
                        ASSERT_TRUE(reader.ok()) << reader.status();
                        EXPECT_EQ(reader->Verify(), absl::OkStatus());
                      });
}

// Segments in order, from any element, as a sorted list has them.
TEST(RunMergeTest, IsASortedList) {
  const std::vector<std::vector<checkpoint::Run>> lists = {
      {{0, 2, 10, 4}, {50, 5, 0, 1}}, {{2, 3, 10, 3}, {32, 8, 0, 1}}, {}, {{40, 10, 0, 1}}};
  for (int64_t from = 0; from <= 56; ++from) {
    std::vector<std::tuple<int64_t, int64_t, size_t, int64_t>> want, got;
    RunMerge merge(from);
    for (size_t list = 0; list < lists.size(); ++list) {
      merge.Add(lists[list]);
      int64_t local = 0;
      for (const Segment& segment : SegmentsOf(lists[list])) {
        if (segment.begin + segment.length > from) {
          want.emplace_back(segment.begin, segment.length, list, local);
        }
        local += segment.length;
      }
    }
    std::ranges::sort(want);
    for (RunPiece piece; merge.Next(piece);) {
      got.emplace_back(piece.begin, piece.length, piece.list, piece.local);
    }
    EXPECT_EQ(got, want) << from;
  }
}

TEST(TensorStreamTest, AnyPartInAnyPieces) {
  const auto files = std::make_shared<CrashFileSystem>();
  SaveOnRanks(files, "in");
  const auto reader = CheckpointReader::Open(files, "in");
  ASSERT_TRUE(reader.ok());
  for (const int64_t begin :
       {int64_t{0}, int64_t{69}, int64_t{70}, int64_t{211}, int64_t{50'001}}) {
    const int64_t end = begin + 12'345 > kRows * kCols ? kRows * kCols : begin + 12'345;
    for (const size_t step : {size_t{4}, size_t{1000}, size_t{100'000}}) {
      TensorStream stream(*reader, "model/columns", begin, end);
      std::vector<std::byte> all;
      while (stream.left() > 0) {
        std::vector<std::byte> piece(std::min(step, static_cast<size_t>(stream.left())));
        ASSERT_EQ(stream.Fill(piece), absl::OkStatus());
        all.insert(all.end(), piece.begin(), piece.end());
      }
      ASSERT_EQ(all.size(), static_cast<size_t>((end - begin) * 4));
      for (int64_t i = begin; i < end; ++i) {
        float value = 0;
        std::memcpy(&value, all.data() + (i - begin) * 4, 4);
        ASSERT_EQ(value, Element(i)) << i;
      }
    }
  }
  std::vector<std::byte> more(8);
  TensorStream stream(*reader, "model/columns", 0, 1);
  EXPECT_THROW(stream.Fill(more).IgnoreError(), Error);
  EXPECT_THROW(TensorStream(*reader, "model/columns", 0, kRows * kCols + 1), Error);
  EXPECT_THROW(TensorStream(*reader, "none", 0, 1), Error);
}

TEST(TensorFileWriterTest, PiecesAreWholeBlocks) {
  const auto files = std::make_shared<CrashFileSystem>();
  const std::vector<std::byte> data(kDigestBlockBytes + 8, std::byte{3});
  const std::vector<FileEntry> entries = {
      {.name = "w", .dtype = "U8", .shape = {kDigestBlockBytes + 8}, .data = data}};
  auto writer = TensorFileWriter::Create(*files, "pieces", entries);
  ASSERT_TRUE(writer.ok());
  const std::span<const std::byte> bytes(data);
  EXPECT_THROW(writer->AppendPiece(bytes.first(8)).IgnoreError(), Error);
  ASSERT_EQ(writer->AppendPiece(bytes.first(kDigestBlockBytes)), absl::OkStatus());
  EXPECT_THROW(writer->AppendPiece(bytes.first(9)).IgnoreError(), Error);
  EXPECT_THROW(writer->Append(bytes).IgnoreError(), Error);
  EXPECT_THROW(writer->Finish().status().IgnoreError(), Error);
  ASSERT_EQ(writer->AppendPiece(bytes.first(8)), absl::OkStatus());
  const auto pieces = writer->Finish();
  const auto whole = WriteSafetensors(*files, "whole", entries);
  ASSERT_TRUE(pieces.ok() && whole.ok());
  EXPECT_EQ(pieces->bytes, whole->bytes);
  EXPECT_EQ(pieces->digests, whole->digests);
  EXPECT_EQ(*ReadTextFile(*files, "pieces", 1 << 20), *ReadTextFile(*files, "whole", 1 << 20));
}

}  // namespace reshard_test
}  // namespace apogee::checkpoint
