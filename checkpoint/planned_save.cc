#include "apogee/checkpoint/planned_save.h"

#include <cstring>

#include "apogee/checkpoint/new_folder.h"
#include "apogee/core/text.h"

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
    copies[i] = Tensor::Empty({parts[i].layout.local_numel()}, value.dtype(), value.context(),
                              MemoryCategory::kCheckpoint);
    std::memcpy(copies[i].raw(), value.raw(), static_cast<size_t>(copies[i].bytes()));
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
