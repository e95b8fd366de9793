// SPDX-License-Identifier: Apache-2.0

#include "apogee/core/process/file_allocator.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "apogee/core/error.h"

namespace apogee {

absl::StatusOr<std::unique_ptr<FileAllocator>> FileAllocator::Create(const std::string& directory) {
  int fd = open(directory.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
  if (fd < 0 && (errno == EOPNOTSUPP || errno == EISDIR)) {  // a file system without O_TMPFILE
    std::string name = directory + "/apogee-XXXXXX";
    fd = mkostemp(name.data(), O_CLOEXEC);
    if (fd >= 0) unlink(name.c_str());
  }
  if (fd < 0) {
    return absl::FailedPreconditionError(
        internal::Concat("no file can be made in \"", directory, "\" (", std::strerror(errno),
                         "); name a directory that exists and may be written to"));
  }
  return std::unique_ptr<FileAllocator>(new FileAllocator(directory, fd));
}

FileAllocator::~FileAllocator() {
  ReleaseCache();
  for (const auto& [block, range] : live_) munmap(block, static_cast<size_t>(range.bytes));
  close(fd_);
}

int64_t FileAllocator::RoundUp(int64_t bytes) {
  constexpr int64_t kPage = 4096, kLine = 64;
  if (bytes >= kMappedBytes) return (bytes + kPage - 1) & -kPage;
  return std::max((bytes + kLine - 1) & -kLine, kLine);
}

// Call with mutex_ held.
void* FileAllocator::Map(int64_t rounded) {
  const int error = posix_fallocate(fd_, end_, rounded);
  APOGEE_CHECK(error == 0, "cannot reserve ", rounded, " more bytes in \"", directory_,
               "\", where ", end_, " are reserved: ", std::strerror(error),
               "; make room there, or keep less of the optimizer's data on disk");
  void* block =
      mmap(nullptr, static_cast<size_t>(rounded), PROT_READ | PROT_WRITE, MAP_SHARED, fd_, end_);
  APOGEE_CHECK(block != MAP_FAILED, "cannot map ", rounded, " bytes of a file in \"", directory_,
               "\": ", std::strerror(errno));
  live_[block] = {end_, rounded};
  end_ += rounded;
  return block;
}

void* FileAllocator::Allocate(int64_t bytes, MemoryCategory category) {
  APOGEE_CHECK(bytes >= 0, "allocate: negative size ", bytes);
  const int64_t rounded = RoundUp(bytes);
  void* block = nullptr;
  if (rounded < kMappedBytes) {
    block = std::aligned_alloc(CpuAllocator::kAlignment, static_cast<size_t>(rounded));
    APOGEE_CHECK(block != nullptr, "out of memory: ", bytes, " bytes for ",
                 MemoryCategoryName(category));
  } else {
    std::lock_guard lock(mutex_);
    if (const auto found = cache_.find(rounded); found != cache_.end()) {
      block = found->second.first;
      live_[block] = found->second.second;
      cache_.erase(found);
      ledger_.AddSlack(-rounded);
    } else {
      block = Map(rounded);
    }
  }
  ledger_.Add(category, bytes);
  ledger_.AddSlack(rounded - bytes);
  return block;
}

void FileAllocator::Free(void* block, int64_t bytes, MemoryCategory category) {
  const int64_t rounded = RoundUp(bytes);
  ledger_.Remove(category, bytes);
  if (rounded < kMappedBytes) {
    ledger_.AddSlack(bytes - rounded);
    std::free(block);
    return;
  }
  ledger_.AddSlack(bytes);
  std::lock_guard lock(mutex_);
  const auto found = live_.find(block);
  cache_.emplace(rounded, *found);
  live_.erase(found);
}

void FileAllocator::ReleaseCache() {
  std::lock_guard lock(mutex_);
  for (const auto& [bytes, cached] : cache_) {
    munmap(cached.first, static_cast<size_t>(bytes));
    // Returns the space to the disk; its offsets are not reused. On failure it stays reserved.
    [[maybe_unused]] const int ignored = fallocate(fd_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
                                                   cached.second.offset, cached.second.bytes);
    ledger_.AddSlack(-bytes);
  }
  cache_.clear();
}

void FileAllocator::ReadAhead() {
  std::lock_guard lock(mutex_);
  for (const auto& [block, range] : live_) {
    madvise(block, static_cast<size_t>(range.bytes), MADV_WILLNEED);
  }
}

void FileAllocator::WriteBack() {
  std::lock_guard lock(mutex_);
  for (const auto& [block, range] : live_) {
    sync_file_range(fd_, range.offset, range.bytes, SYNC_FILE_RANGE_WRITE);
    madvise(block, static_cast<size_t>(range.bytes),
            MADV_COLD);  // first to go when memory is short
  }
}

int64_t FileAllocator::file_bytes() const {
  std::lock_guard lock(mutex_);
  int64_t bytes = 0;
  for (const auto& [block, range] : live_) bytes += range.bytes;
  for (const auto& [size, cached] : cache_) bytes += size;
  return bytes;
}

}  // namespace apogee
