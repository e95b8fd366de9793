// SPDX-License-Identifier: Apache-2.0

#include "apogee/checkpoint/hf/hf_weights_writer.h"

#include <cstring>
#include <optional>

#include "apogee/checkpoint/agreement.h"
#include "apogee/checkpoint/format/tensor_file.h"

namespace apogee::checkpoint {

WeightsWriter::WeightsWriter(FileSystem& files, const std::vector<TensorPart>& parts,
                             const SavePlan& plan, const Fused& fused, comm::GroupPtr group)
    : files_(files), plan_(plan), fused_(fused), group_(std::move(group)) {
  for (const TensorPart& part : parts) parts_[part.name] = &part;
  for (size_t rank = 0; rank < plan.written_by.size(); ++rank) {
    for (const auto& written : plan.written_by[rank]) holder_[written] = static_cast<int>(rank);
  }
}

absl::Status WeightsWriter::WriteFile(const std::string& path,
                                      const std::vector<std::string>& names) {
  std::vector<FileEntry> entries;
  for (const std::string& name : names) {
    const LogicalTensor& tensor = plan_.tensors.at(PartsOf(name)[0]);
    const auto fused = fused_.find(name);
    const auto& shape = fused == fused_.end() ? tensor.shape : fused->second.shape;
    entries.push_back({.name = name, .dtype = tensor.dtype, .shape = shape, .data = {}});
  }
  std::optional<TensorFileWriter> writer;
  absl::Status status;
  std::string order;  // rank 0's order of entries
  if (IsWriter()) {
    // The library Transformers refuses files that do not name a framework.
    auto made = TensorFileWriter::Create(files_, path, entries, {{"format", "pt"}});
    status = made.status();
    if (made.ok()) writer = *std::move(made);
  }
  APOGEE_RETURN_IF_ERROR(AgreeOnStatus(status, group_));
  if (writer) {
    const std::vector<size_t>& indices = writer->order();
    order.assign(reinterpret_cast<const char*>(indices.data()), indices.size() * sizeof(size_t));
  }
  order = GatherTexts(order, group_)[0];
  std::vector<size_t> indices(names.size());
  std::memcpy(indices.data(), order.data(), order.size());
  for (const size_t index : indices) {
    const Tensor whole = GatherParts(names[index]);
    if (writer) {
      status = writer->Append(
          {static_cast<const std::byte*>(whole.raw()), static_cast<size_t>(whole.bytes())});
    }
    APOGEE_RETURN_IF_ERROR(AgreeOnStatus(status, group_));
  }
  if (writer) status = writer->Finish().status();
  return AgreeOnStatus(status, group_);
}

std::vector<std::string> WeightsWriter::PartsOf(const std::string& name) const {
  const auto fused = fused_.find(name);
  return fused == fused_.end() ? std::vector{name} : fused->second.parts;
}

Tensor WeightsWriter::Empty(int64_t numel, DType dtype) const {
  return Tensor::Empty({numel}, dtype, context_, MemoryCategory::kCommunication);
}

Tensor WeightsWriter::GatherParts(const std::string& name) const {
  const std::vector<std::string> tensors = PartsOf(name);
  if (tensors.size() == 1) return Gather(tensors[0]);
  Tensor whole;
  int64_t done = 0;
  for (const std::string& tensor : tensors) {
    const Tensor part = Gather(tensor);
    if (!IsWriter()) continue;
    const int64_t numel = part.numel();
    if (!whole.defined()) {
      whole = Empty(numel * static_cast<int64_t>(tensors.size()), part.dtype());
    }
    whole.Slice(0, done, numel).CopyFrom(part);
    done += numel;
  }
  return whole;
}

Tensor WeightsWriter::Gather(const std::string& name) const {
  const LogicalTensor& tensor = plan_.tensors.at(name);
  const DType dtype = *TensorDType(tensor.dtype);
  Tensor whole;
  if (IsWriter()) whole = Empty(tensor.bytes() / DTypeSize(dtype), dtype);
  const int me = group_ == nullptr ? 0 : group_->rank();
  for (size_t i = 0; i < tensor.slices.size(); ++i) {
    const Slice& slice = tensor.slices[i];
    const int holder = holder_.at({name, i});
    if (!IsWriter() && holder != me) continue;
    const int64_t numel = slice.numel();
    Tensor part;
    if (holder == me) {
      const Tensor& value = parts_.at(name)->value;
      part = value.Detach().View({value.numel()}).Slice(0, 0, numel).ToHost();
    } else {
      part = Empty(numel, dtype);
      group_->Recv(part, holder);
    }
    if (!IsWriter()) {
      group_->Send(part, 0);
      continue;
    }
    const int64_t size = DTypeSize(dtype);
    const auto* from = static_cast<const std::byte*>(part.raw());
    for (const Segment& segment : SegmentsOf(slice.runs)) {
      std::memcpy(static_cast<std::byte*>(whole.raw()) + segment.begin * size, from,
                  static_cast<size_t>(segment.length * size));
      from += segment.length * size;
    }
  }
  return whole;
}

}  // namespace apogee::checkpoint
