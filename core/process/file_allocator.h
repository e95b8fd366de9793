// SPDX-License-Identifier: Apache-2.0

// FileAllocator: memory backed by a file, for data that is too large for RAM and seldom used
// (optimizer states on an NVMe disk). Loads and stores go to the page cache. The operating system
// reads and writes the file, and takes pages back when memory is short.
//
//   APOGEE_ASSIGN_OR_RETURN(auto allocator, FileAllocator::Create("/mnt/nvme"));
//   void* block = allocator->Allocate(bytes, MemoryCategory::kOptimizerState);
//   allocator->ReadAhead();     // starts reading all blocks: the next step is near
//   allocator->WriteBack();     // starts writing all blocks, whose pages may then be taken back
//
// The file has no name: it disappears with the process, however that ends. Disk space is reserved
// with each block, so a full disk is an Error in Allocate and cannot fail anything later. If the
// disk fails to read or write, the process gets the signal SIGBUS, as for any mapped file. Blocks
// below kMappedBytes are ordinary memory. Thread-safe. Linux only.
#ifndef APOGEE_CORE_PROCESS_FILE_ALLOCATOR_H_
#define APOGEE_CORE_PROCESS_FILE_ALLOCATOR_H_

#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "apogee/core/memory.h"
#include "apogee/core/status.h"

namespace apogee {

class FileAllocator : public Allocator {
 public:
  static constexpr int64_t kMappedBytes = 64 << 10;

  // Makes the file in `directory`. The error names the directory and says why that failed.
  static absl::StatusOr<std::unique_ptr<FileAllocator>> Create(const std::string& directory);
  ~FileAllocator() override;

  void* Allocate(int64_t bytes, MemoryCategory category) override;
  void Free(void* block, int64_t bytes, MemoryCategory category) override;
  void ReleaseCache() override;

  // Both are asynchronous: the operating system reads and writes in its own time.
  void ReadAhead();
  void WriteBack();
  // Bytes of the file that are in use, blocks that are cached after Free included.
  int64_t file_bytes() const;

 private:
  struct Range {
    int64_t offset = 0;  // in the file
    int64_t bytes = 0;
  };

  FileAllocator(std::string directory, int fd) : directory_(std::move(directory)), fd_(fd) {}
  static int64_t RoundUp(int64_t bytes);
  void* Map(int64_t rounded);

  const std::string directory_;
  const int fd_;
  mutable std::mutex mutex_;
  std::map<void*, Range> live_;
  std::multimap<int64_t, std::pair<void*, Range>> cache_;  // by size
  int64_t end_ = 0;                                        // of the file
};

}  // namespace apogee

#endif  // APOGEE_CORE_PROCESS_FILE_ALLOCATOR_H_
