// SPDX-License-Identifier: Apache-2.0

// What ranks save under one layout they read back, bit for bit, under any other.
#include <gmock/gmock-more-matchers.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "apogee/checkpoint/checkpoint_reader.h"
#include "apogee/checkpoint/checkpoint_writer.h"
#include "apogee/checkpoint/hf/hf_weights.h"
#include "apogee/core/rng.h"
#include "apogee/tests/support/files/shared_temp_dir.h"
#include "apogee/tests/support/run_ranks.h"
#include "apogee/tests/support/test_context.h"

namespace apogee::checkpoint {
namespace checkpoint_test {

using apogee::testing::RunRanks;
using apogee::testing::SharedTempDir;
using ::testing::AllOf;
using ::testing::HasSubstr;

// A logical tensor: numbers of a stream of its name.
struct Logical {
  std::string name;
  Shape shape;
  DType dtype;
};

const std::vector<Logical>& Tensors() {
  static const auto& tensors = *new std::vector<Logical>{
      {"matrix", {24, 36}, DType::kF32},  {"odd", {7, 11}, DType::kBF16},
      {"codes", {500}, DType::kU8},       {"scalar", {}, DType::kF64},
      {"large", {300, 260}, DType::kF32}, {"cube", {3, 4, 5}, DType::kF16},
      {"e4m3", {5, 7}, DType::kF8E4M3},   {"e5m2", {40}, DType::kF8E5M2}};
  return tensors;
}

uint8_t ByteOf(const Logical& tensor, int64_t byte) {
  return static_cast<uint8_t>(Philox(MakeKey(3, tensor.name), static_cast<uint64_t>(byte))[0]);
}

enum class How { kWhole, kFlat, kColumns, kRows };

// What rank `rank` of `ranks` holds.
Layout LayoutOf(const Logical& tensor, How how, int rank, int ranks) {
  const int64_t numel = tensor.shape.numel();
  const MatrixView matrix = Layout(tensor.shape).matrix();
  if (how == How::kWhole)
    return Layout(tensor.shape, {.segments = {{0, numel}}, .num_replicas = ranks});
  if (how == How::kFlat) {  // cuts mid-row; the last rank may have nothing
    const int64_t part = numel / ranks + 1;
    const int64_t begin = std::min(rank * part, numel), end = std::min(begin + part, numel);
    return Layout(tensor.shape, {.segments = {{begin, end - begin}}});
  }
  const bool rows = how == How::kRows;
  const int64_t total = rows ? matrix.rows : matrix.cols, part = (total + ranks - 1) / ranks;
  const int64_t begin = std::min(rank * part, total), end = std::min(begin + part, total);
  std::vector<Segment> segments;
  for (int64_t batch = 0; batch < matrix.batch; ++batch) {
    const int64_t base = batch * matrix.rows * matrix.cols;
    if (rows) {
      segments.push_back({base + begin * matrix.cols, (end - begin) * matrix.cols});
      continue;
    }
    for (int64_t row = 0; row < matrix.rows; ++row) {
      segments.push_back({base + row * matrix.cols + begin, end - begin});
    }
  }
  return Layout(tensor.shape, {.segments = std::move(segments)});
}

Tensor Make(const Logical& tensor, const Layout& layout, bool fill) {
  const int64_t size = DTypeSize(tensor.dtype);
  const Tensor part = Tensor::Empty({layout.local_numel() + 3}, tensor.dtype, CpuContext());
  std::memset(part.raw(), 0, static_cast<size_t>(part.bytes()));
  auto* bytes = static_cast<uint8_t*>(part.raw());
  for (const Segment& segment : layout.segments()) {
    for (int64_t i = segment.begin * size; fill && i < (segment.begin + segment.length) * size;
         ++i) {
      *bytes++ = ByteOf(tensor, i);
    }
  }
  return part.To(TestContext());
}

absl::Status Save(const std::string& path, How how, const comm::World& world) {
  CheckpointContents contents{.attributes = {{"step", "7"}}, .parts = {}};
  for (const Logical& tensor : Tensors()) {
    const Layout layout = LayoutOf(tensor, how, world.rank(), world.size());
    contents.parts.push_back({tensor.name, Make(tensor, layout, true), layout});
  }
  return SaveCheckpoint({RealFileSystem(), path}, contents, world.group());
}

void ExpectReadsBack(const std::string& path, How how, int rank, int ranks) {
  const auto reader = CheckpointReader::Open(RealFileSystem(), path);
  ASSERT_TRUE(reader.ok()) << reader.status();
  EXPECT_EQ(reader->attributes().at("step"), "7");
  for (const Logical& tensor : Tensors()) {
    const Layout layout = LayoutOf(tensor, how, rank, ranks);
    const Tensor want = Make(tensor, layout, true), got = Make(tensor, layout, false);
    ASSERT_EQ(reader->Read(tensor.name, layout, got), absl::OkStatus());
    const Tensor read = got.ToHost(), wanted = want.ToHost();
    ASSERT_EQ(std::memcmp(wanted.raw(), read.raw(), static_cast<size_t>(wanted.bytes())), 0)
        << tensor.name;
  }
}

TEST(CheckpointTest, AnyLayoutToAnyLayout) {
  constexpr How kAll[] = {How::kWhole, How::kFlat, How::kColumns, How::kRows};
  const SharedTempDir folder;
  int count = 0;
  for (const int from_ranks : {1, 2, 3, 4}) {
    for (const How from : kAll) {
      const std::string path = folder.path() + "/c" + std::to_string(count++);
      RunRanks(from_ranks,
               [&](comm::World& world) { ASSERT_EQ(Save(path, from, world), absl::OkStatus()); });
      for (const int to_ranks : {1, 2, 3, 4}) {
        for (const How to : kAll) {
          for (int rank = 0; rank < to_ranks; ++rank) ExpectReadsBack(path, to, rank, to_ranks);
        }
      }
      ASSERT_FALSE(HasFailure()) << from_ranks << " ranks, layout " << static_cast<int>(from);
    }
  }
}

TEST(CheckpointTest, ReplicasAreWrittenOnceAndSharedOut) {
  const SharedTempDir folder;
  const std::string path = folder.path() + "/c";
  RunRanks(4, [&](comm::World& world) { ASSERT_TRUE(Save(path, How::kWhole, world).ok()); });
  const auto reader = CheckpointReader::Open(RealFileSystem(), path);
  ASSERT_TRUE(reader.ok()) << reader.status();
  EXPECT_EQ(reader->manifest().files.size(), 4u);
  for (const auto& [name, tensor] : reader->manifest().tensors) {
    EXPECT_EQ(tensor.slices.size(), 1u) << name;
  }
}

TEST(CheckpointTest, NothingIsOverwrittenAndNothingLeftBehind) {
  const SharedTempDir folder;
  const std::string path = folder.path() + "/c";
  RunRanks(2, [&](comm::World& world) {
    ASSERT_TRUE(Save(path, How::kFlat, world).ok());
    const absl::Status again = Save(path, How::kFlat, world);
    EXPECT_TRUE(absl::IsAlreadyExists(again)) << again;
    EXPECT_THAT(Message(again), HasSubstr("nothing is overwritten"));
    const absl::Status missing = Save(folder.path() + "/none/c", How::kFlat, world);
    EXPECT_TRUE(absl::IsNotFound(missing)) << missing;
    EXPECT_THAT(Message(missing), HasSubstr("rank 0: "));
  });
  EXPECT_THAT(*RealFileSystem()->List(folder.path()), ::testing::ElementsAre("c"));
}

TEST(CheckpointTest, ElementsThatNobodyHoldsAreMissed) {
  const SharedTempDir folder;
  RunRanks(2, [&](comm::World& world) {
    // Rank 1's part is rank 0's, of a tensor of three parts.
    const Layout layout(Shape{9}, {.segments = {{3 * world.rank(), 3}}});
    const TensorPart part{"w", Tensor::Zeros({3}, DType::kF32, TestContext()), layout};
    const absl::Status status =
        SaveCheckpoint({RealFileSystem(), folder.path() + "/c"}, {{}, {part}}, world.group());
    EXPECT_THAT(Message(status), HasSubstr("tensor \"w\": its slices hold 6 of 9 elements"));
  });
  EXPECT_TRUE(RealFileSystem()->List(folder.path())->empty());
}

TEST(CheckpointTest, RanksThatDisagreeAreTold) {
  const SharedTempDir folder;
  RunRanks(2, [&](comm::World& world) {
    const Shape shape{4 + world.rank()};
    const TensorPart part{"w", Tensor::Zeros(shape, DType::kF32, TestContext()), Layout(shape)};
    const absl::Status status =
        SaveCheckpoint({RealFileSystem(), folder.path() + "/c"}, {{}, {part}}, world.group());
    EXPECT_THAT(Message(status), HasSubstr("ranks disagree about the dtype or shape of \"w\""));
  });
}

// As many as a large mixture of experts has, with the states of an optimizer.
TEST(CheckpointTest, ManyTensorsTakeTimeInProportion) {
  if (testing::NumProcesses() > 1) GTEST_SKIP() << "one rank, and its time";
  const SharedTempDir folder;
  const Tensor one = Tensor::Full({1}, DType::kF32, 1, TestContext());
  const auto seconds = [&](int count) {
    std::vector<TensorPart> parts;
    for (int i = 0; i < count; ++i) {
      parts.push_back({"model/experts." + std::to_string(i) + ".weight", one, Layout(Shape{1})});
    }
    const auto start = std::chrono::steady_clock::now();
    EXPECT_EQ(SaveCheckpoint({RealFileSystem(), folder / std::to_string(count)}, {{}, parts},
                             /*group=*/nullptr),
              absl::OkStatus());
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  };
  const double few = seconds(4'000);
  EXPECT_LT(seconds(40'000), 40 * few);  // 10 times, or 100 where each looks at all
}

// By all, before anything is written.
TEST(CheckpointTest, NamesThatNoFileCanHoldAreRefused) {
  const SharedTempDir folder;
  for (const std::string& name :
       {std::string(), std::string("a\0b", 3), std::string(1025, 'a'), std::string("caf\xe9")}) {
    RunRanks(2, [&](comm::World& world) {
      std::vector<TensorPart> parts;
      if (world.rank() == 1) {
        parts.push_back({name, Tensor::Zeros({4}, DType::kF32, TestContext()), Layout(Shape{4})});
      }
      for (const absl::Status& status :
           {SaveCheckpoint({RealFileSystem(), folder / "c"}, {{}, parts}, world.group()),
            SaveModelWeights({RealFileSystem(), folder / "w"}, parts, {}, world.group())}) {
        EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
        EXPECT_THAT(Message(status), HasSubstr("cannot be the name of a tensor"));
      }
    });
  }
  EXPECT_THAT(*RealFileSystem()->List(folder.path()), ::testing::IsEmpty());
}

// Every byte of every file, the manifest too.
TEST(CheckpointTest, EveryFlippedByteIsFound) {
  const SharedTempDir folder;
  const std::string path = folder.path() + "/c";
  RunRanks(2, [&](comm::World& world) {
    const Logical tensor{"w", {5, 8}, DType::kF32};
    const Layout layout = LayoutOf(tensor, How::kColumns, world.rank(), 2);
    ASSERT_TRUE(SaveCheckpoint({RealFileSystem(), path},
                               {{{"step", "1"}}, {{"w", Make(tensor, layout, true), layout}}},
                               world.group())
                    .ok());
  });
  RunRanks(1, [&](comm::World&) {
    const auto good = CheckpointReader::Open(RealFileSystem(), path);
    ASSERT_TRUE(good.ok() && good->Verify().ok());
    for (const auto& entry : std::filesystem::directory_iterator(path)) {
      std::fstream file(entry.path(), std::ios::in | std::ios::out | std::ios::binary);
      std::string bytes(entry.file_size(), '\0');
      file.read(bytes.data(), static_cast<std::streamsize>(bytes.size()));
      for (size_t i = 0; i < bytes.size(); ++i) {
        const auto put = [&](char byte) {
          file.seekp(static_cast<std::streamoff>(i));
          file.put(byte).flush();
        };
        put(static_cast<char>(bytes[i] ^ 1));
        const auto reader = CheckpointReader::Open(RealFileSystem(), path);
        const absl::Status found = reader.ok() ? reader->Verify() : reader.status();
        put(bytes[i]);
        EXPECT_FALSE(found.ok()) << entry.path() << " byte " << i << " '" << bytes[i] << "'";
        EXPECT_THAT(Message(found), HasSubstr(entry.path().string()));
      }
    }
  });
}

TEST(CheckpointTest, DamageIsNamedWithFileTensorAndBytes) {
  const SharedTempDir folder;
  const std::string path = folder.path() + "/c";
  RunRanks(1, [&](comm::World& world) { ASSERT_TRUE(Save(path, How::kWhole, world).ok()); });
  RunRanks(1, [&](comm::World&) {
    const std::string file = path + "/rank-00000.safetensors";
    const auto size = std::filesystem::file_size(file);
    {
      std::fstream damaged(file, std::ios::in | std::ios::out | std::ios::binary);
      damaged.seekg(static_cast<std::streamoff>(size / 2));
      const char byte = static_cast<char>(damaged.get() ^ 4);
      damaged.seekp(static_cast<std::streamoff>(size / 2));
      damaged.put(byte);
    }
    const auto reader = CheckpointReader::Open(RealFileSystem(), path);
    ASSERT_TRUE(reader.ok()) << reader.status();
    const Tensor to = Tensor::Zeros({300, 260}, DType::kF32, TestContext());
    EXPECT_THAT(Message(reader->Read("large", Layout(Shape{300, 260}), to)),
                AllOf(HasSubstr(file), HasSubstr("tensor \"large\": bytes ["),
                      HasSubstr("digest differs")));
    // What does not touch the block is still read.
    EXPECT_TRUE(reader->Read("large", Layout(Shape{300, 260}, {.segments = {{0, 100}}}), to).ok());
    EXPECT_THAT(Message(reader->Read("large", Layout(Shape{260, 300}), to)),
                AllOf(HasSubstr("is F32 [300, 260], wanted F32 [260, 300]")));
    EXPECT_TRUE(absl::IsNotFound(reader->Read("none", Layout(Shape{1}), to)));
    std::filesystem::resize_file(file, size - 1);
    EXPECT_THAT(Message(CheckpointReader::Open(RealFileSystem(), path).status()),
                AllOf(HasSubstr(file), HasSubstr("the manifest says")));
    std::filesystem::remove(file);
    EXPECT_TRUE(absl::IsNotFound(CheckpointReader::Open(RealFileSystem(), path).status()));
  });
}

}  // namespace checkpoint_test
}  // namespace apogee::checkpoint
