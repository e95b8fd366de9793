// SPDX-License-Identifier: Apache-2.0

// FileAllocator: memory whose pages live in a file, for data that is too large for memory and is
// used seldom (optimizer states on an NVMe disk). Loads and stores go to the page cache; the
// operating system reads and writes the file, and gives memory back when it is short.
//
//   APOGEE_ASSIGN_OR_RETURN(auto allocator, FileAllocator::Create("/mnt/nvme"));
//   void* block = allocator->Allocate(bytes, MemoryCategory::kOptimizerState);   // zeros
//   allocator->ReadAhead();     // begins to read everything: the next step is near
//   allocator->WriteBack();     // begins to write everything, and lets go of the pages
//
// The file has no name (it goes with the process, however that ends) and its room on the disk is
// reserved with each block, so that a full disk is an Error in Allocate and nothing later. A disk
// that fails to read or write is a signal (SIGBUS) to the process, as for any mapped file. Blocks
// below kMappedBytes lie in ordinary memory. Thread-safe. Linux.
#ifndef APOGEE_CORE_FILE_ALLOCATOR_H_
#define APOGEE_CORE_FILE_ALLOCATOR_H_

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

  // An error names the directory and says why no file can be made there.
  static absl::StatusOr<std::unique_ptr<FileAllocator>> Create(const std::string& directory);
  ~FileAllocator() override;

  void* Allocate(int64_t bytes, MemoryCategory category) override;
  void Free(void* block, int64_t bytes, MemoryCategory category) override;
  void ReleaseCache() override;

  // Asynchronous both: the operating system does it in its own time.
  void ReadAhead();
  void WriteBack();
  // Bytes of the file that belong to blocks, cached ones included.
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

#endif  // APOGEE_CORE_FILE_ALLOCATOR_H_
