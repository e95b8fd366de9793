// Saves what ranks hold between them as one folder that either is there, whole, or is not.
//
//   std::vector<TensorPart> parts = {{"model/w", view.value(), view.layout()}, ...};
//   absl::Status status = SaveCheckpoint({.files = RealFileSystem(), .path = "run/step-100"},
//                                        {.attributes = {{"step", "100"}}, .parts = parts}, group);
//
// Every rank of the group calls, with its own parts; a part that several ranks hold is written by
// one of them, shared out evenly. Protocol: a temporary folder beside the final one; every rank
// writes and syncs one safetensors file; all agree that all succeeded; rank 0 writes and syncs the
// manifest, syncs the folder, renames it, and syncs the folder above. On an error every rank
// returns the same one, which names the rank, and the temporary is removed. Nothing is ever
// overwritten: AlreadyExists. When it returns ok the checkpoint survives a power cut.
//
// The tensors must not change while it runs.
#ifndef APOGEE_CHECKPOINT_CHECKPOINT_WRITER_H_
#define APOGEE_CHECKPOINT_CHECKPOINT_WRITER_H_

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "apogee/checkpoint/file_system.h"
#include "apogee/comm/group.h"
#include "apogee/comm/layout.h"

namespace apogee::checkpoint {

// What this rank holds of a logical tensor: the first layout.local_numel() elements of `value`, in
// host memory. All ranks that name a tensor agree on its shape and dtype; two ranks' segments are
// the same or do not meet.
struct TensorPart {
  std::string name;
  Tensor value;
  comm::Layout layout;
};

// Throws Error, which begins with `what`, unless every value is contiguous and large enough.
void CheckParts(const char* what, const std::vector<TensorPart>& parts);

struct CheckpointContents {
  std::map<std::string, std::string> attributes;  // rank 0's count
  std::vector<TensorPart> parts;
};

struct CheckpointTarget {
  std::shared_ptr<FileSystem> files;
  std::string path;  // the folder to make; the one above must exist
};

// Collective; null: one rank.
absl::Status SaveCheckpoint(const CheckpointTarget& target, const CheckpointContents& contents,
                            const comm::GroupPtr& group);

}  // namespace apogee::checkpoint

#endif  // APOGEE_CHECKPOINT_CHECKPOINT_WRITER_H_
