// SPDX-License-Identifier: Apache-2.0

#include "apogee/checkpoint/planned_save.h"

#include "apogee/checkpoint/files/new_folder.h"
#include "apogee/core/text/text.h"

namespace apogee::checkpoint {

void CheckParts(const char* what, const std::vector<TensorPart>& parts) {
  for (const TensorPart& part : parts) {
    APOGEE_CHECK(part.value.defined() && part.value.is_contiguous() &&
                     part.value.numel() >= part.layout.local_numel(),
                 what, ": tensor \"", part.name, "\" needs a contiguous value of at least ",
                 part.layout.local_numel(), " elements");
  }
}

void CopyParts(std::vector<TensorPart>& parts, const std::vector<size_t>& mine) {
  std::vector<Tensor> copies(parts.size());
  for (const size_t i : mine) {
    const Tensor& value = parts[i].value;
    const int64_t numel = parts[i].layout.local_numel();
    copies[i] =
        Tensor::Empty({numel}, value.dtype(), HostOf(value.context()), MemoryCategory::kCheckpoint);
    copies[i].CopyFrom(value.Detach().View({value.numel()}).Slice(0, 0, numel));
  }
  for (size_t i = 0; i < parts.size(); ++i) parts[i].value = copies[i];
}

absl::Status WithSpace(const absl::Status& status, const CheckpointTarget& target,
                       int64_t total_bytes) {
  if (!absl::IsResourceExhausted(status)) return status;
  const auto free = target.files->FreeBytes(ParentOf(target.path));
  return absl::ResourceExhaustedError(internal::Concat(
      Message(status), " (the save is ", FormatBytes(total_bytes), ", ",
      free.ok() ? FormatBytes(*free) + " are free there" : Message(free.status()), ")"));
}

}  // namespace apogee::checkpoint
