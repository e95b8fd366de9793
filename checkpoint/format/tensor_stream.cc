// SPDX-License-Identifier: Apache-2.0

#include "apogee/checkpoint/format/tensor_stream.h"

#include <algorithm>
#include <cstring>

#include "apogee/checkpoint/format/safetensors_header.h"

namespace apogee::checkpoint {
namespace {

const LogicalTensor& Find(const CheckpointReader& reader, const std::string& name) {
  const auto found = reader.manifest().tensors.find(name);
  APOGEE_CHECK(found != reader.manifest().tensors.end(), reader.path(), ": there is no tensor \"",
               name, "\"");
  return found->second;
}

}  // namespace

TensorStream::TensorStream(const CheckpointReader& reader, const std::string& name, int64_t begin,
                           int64_t end)
    : reader_(reader),
      name_(name),
      tensor_(Find(reader, name)),
      element_(SafetensorsDTypeSize(tensor_.dtype)),
      left_((end - begin) * element_),
      merge_(begin) {
  int64_t numel = 0;
  for (const Slice& slice : tensor_.slices) numel += slice.numel();
  APOGEE_CHECK(0 <= begin && begin <= end && end <= numel, "tensor \"", name, "\" has ", numel,
               " elements, [", begin, ", ", end, ") was asked for");
  for (const Slice& slice : tensor_.slices) merge_.Add(slice.runs);
  RunPiece first;
  if (!merge_.Next(first)) return;
  // The first segment may begin before `begin`.
  slice_ = first.list;
  at_ = (first.local + begin - first.begin) * element_;
  end_ = (first.local + first.length) * element_;
}

absl::StatusOr<const TensorStream::Block*> TensorStream::Fetch(size_t slice, int64_t index) {
  ++fetches_;
  for (Block& block : blocks_) {
    if (block.slice != slice || block.index != index) continue;
    block.used = fetches_;
    return &block;
  }
  if (blocks_.size() < kMaxStreamBlocks) blocks_.emplace_back();
  Block& block = *std::ranges::min_element(blocks_, {}, &Block::used);
  const Slice& of = tensor_.slices[slice];
  block.index = -1;  // holds nothing if the read fails
  block.bytes.resize(static_cast<size_t>(
      std::min(kDigestBlockBytes, of.numel() * element_ - index * kDigestBlockBytes)));
  APOGEE_RETURN_IF_ERROR(reader_.ReadBlocks(name_, of, index, block.bytes));
  block.slice = slice;
  block.index = index;
  block.used = fetches_;
  return &block;
}

absl::Status TensorStream::Fill(std::span<std::byte> to) {
  APOGEE_CHECK(static_cast<int64_t>(to.size()) <= left_, "tensor \"", name_, "\": ", to.size(),
               " bytes were asked for, ", left_, " are left");
  left_ -= static_cast<int64_t>(to.size());
  while (!to.empty()) {
    if (at_ == end_) {
      RunPiece piece;
      merge_.Next(piece);
      slice_ = piece.list;
      at_ = piece.local * element_;
      end_ = at_ + piece.length * element_;
    }
    const int64_t index = at_ / kDigestBlockBytes, offset = at_ % kDigestBlockBytes;
    APOGEE_ASSIGN_OR_RETURN(const Block* block, Fetch(slice_, index));
    const auto count = static_cast<size_t>(
        std::min({static_cast<int64_t>(to.size()), end_ - at_, kDigestBlockBytes - offset}));
    std::memcpy(to.data(), block->bytes.data() + offset, count);
    to = to.subspan(count);
    at_ += static_cast<int64_t>(count);
  }
  return absl::OkStatus();
}

}  // namespace apogee::checkpoint
