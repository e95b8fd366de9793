// SPDX-License-Identifier: Apache-2.0

// Blocks in a file are memory like any other, and the disk has room for them before they are used.
#include "apogee/core/process/file_allocator.h"

#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <csignal>
#include <cstring>
#include <filesystem>
#include <vector>

#include "apogee/core/error.h"

namespace apogee {
namespace file_allocator_test {

using ::testing::HasSubstr;

constexpr MemoryCategory kState = MemoryCategory::kOptimizerState;

TEST(FileAllocatorTest, BlocksKeepWhatIsWritten) {
  auto allocator = ValueOrThrow(FileAllocator::Create(::testing::TempDir()));
  std::vector<std::pair<unsigned char*, int64_t>> blocks;
  for (const int64_t bytes : {0L, 10L, 65536L, 100001L, 3000000L}) {
    auto* block = static_cast<unsigned char*>(allocator->Allocate(bytes, kState));
    ASSERT_EQ(reinterpret_cast<uintptr_t>(block) % 64, 0U);
    std::memset(block, static_cast<int>(blocks.size()) + 1, static_cast<size_t>(bytes));
    blocks.emplace_back(block, bytes);
  }
  EXPECT_EQ(allocator->ledger().live_bytes(kState), 10 + 65536 + 100001 + 3000000);
  EXPECT_GE(allocator->file_bytes(), 65536 + 100001 + 3000000);
  allocator->WriteBack();
  allocator->ReadAhead();
  for (size_t i = 0; i < blocks.size(); ++i) {
    const auto [block, bytes] = blocks[i];
    for (int64_t k = 0; k < bytes; ++k) ASSERT_EQ(block[k], i + 1);
    allocator->Free(block, bytes, kState);
  }
  EXPECT_EQ(allocator->ledger().live_total_bytes(), 0);
  allocator->ReleaseCache();
  EXPECT_EQ(allocator->file_bytes(), 0);
  EXPECT_EQ(allocator->ledger().slack_bytes(), 0);
}

TEST(FileAllocatorTest, ReusesFreedBlocks) {
  auto allocator = ValueOrThrow(FileAllocator::Create(::testing::TempDir()));
  void* first = allocator->Allocate(200000, kState);
  allocator->Free(first, 200000, kState);
  const int64_t bytes = allocator->file_bytes();
  EXPECT_EQ(allocator->Allocate(200000, kState), first);
  EXPECT_EQ(allocator->file_bytes(), bytes);
  allocator->Free(first, 200000, kState);
}

TEST(FileAllocatorTest, LeavesNoFile) {
  const std::filesystem::path directory = std::filesystem::path(::testing::TempDir()) / "no_file";
  std::filesystem::create_directory(directory);
  auto allocator = ValueOrThrow(FileAllocator::Create(directory));
  void* block = allocator->Allocate(1 << 20, kState);
  EXPECT_TRUE(std::filesystem::is_empty(directory));
  allocator->Free(block, 1 << 20, kState);
  std::filesystem::remove(directory);
}

TEST(FileAllocatorTest, ADirectoryThatIsNotThere) {
  const auto allocator = FileAllocator::Create("/not/there");
  ASSERT_FALSE(allocator.ok());
  EXPECT_THAT(std::string(allocator.status().message()), HasSubstr("\"/not/there\""));
}

// A file that may not grow stands for a full disk.
TEST(FileAllocatorTest, NoRoomIsAnErrorAtOnce) {
  auto allocator = ValueOrThrow(FileAllocator::Create(::testing::TempDir()));
  std::signal(SIGXFSZ, SIG_IGN);
  rlimit old{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &old), 0);
  const rlimit small{1 << 20, old.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  void* fits = allocator->Allocate(512 << 10, kState);
  std::string message;
  try {
    allocator->Allocate(1 << 20, kState);
  } catch (const Error& error) {
    message = error.what();
  }
  setrlimit(RLIMIT_FSIZE, &old);
  EXPECT_THAT(message, HasSubstr("cannot reserve 1048576 more bytes"));
  EXPECT_EQ(allocator->ledger().live_bytes(kState), 512 << 10);
  allocator->Free(fits, 512 << 10, kState);
}

}  // namespace file_allocator_test
}  // namespace apogee
