// SPDX-License-Identifier: Apache-2.0

// TensorStream: reads the elements of a saved tensor in order, a buffer at a time, and checks every
// byte against its digest. However large the tensor, it holds at most kMaxStreamBlocks blocks of
// kDigestBlockBytes, and one position per run of the manifest.
//
//   TensorStream stream(reader, "model/w", begin, end);      // elements [begin, end)
//   APOGEE_RETURN_IF_ERROR(stream.Fill(buffer));             // the next buffer.size() bytes
//
// `reader` must outlive it. Errors are those of CheckpointReader::ReadBlocks.
#ifndef APOGEE_CHECKPOINT_FORMAT_TENSOR_STREAM_H_
#define APOGEE_CHECKPOINT_FORMAT_TENSOR_STREAM_H_

#include <span>
#include <string>
#include <vector>

#include "apogee/checkpoint/checkpoint_reader.h"
#include "apogee/checkpoint/run_merge.h"

namespace apogee::checkpoint {

// If more slices than this alternate element by element, blocks are read more than once.
inline constexpr size_t kMaxStreamBlocks = 64;

class TensorStream {
 public:
  // Throws Error unless the tensor exists and 0 <= begin <= end <= the number of its elements.
  TensorStream(const CheckpointReader& reader, const std::string& name, int64_t begin, int64_t end);

  // The number of bytes still to read.
  int64_t left() const { return left_; }
  // Throws Error for more than left().
  absl::Status Fill(std::span<std::byte> to);

 private:
  struct Block {
    size_t slice = 0;
    int64_t index = -1;
    uint64_t used = 0;  // the fetch that used it last
    std::vector<std::byte> bytes = {};
  };
  absl::StatusOr<const Block*> Fetch(size_t slice, int64_t index);

  const CheckpointReader& reader_;
  std::string name_;
  const LogicalTensor& tensor_;
  int64_t element_;  // bytes
  int64_t left_ = 0;
  RunMerge merge_;
  // The rest of the current segment, in bytes of its slice.
  size_t slice_ = 0;
  int64_t at_ = 0, end_ = 0;
  std::vector<Block> blocks_;
  uint64_t fetches_ = 0;
};

}  // namespace apogee::checkpoint

#endif  // APOGEE_CHECKPOINT_FORMAT_TENSOR_STREAM_H_
