// SPDX-License-Identifier: Apache-2.0

// Model weights in the format of Hugging Face libraries: a folder with model.safetensors, or with
// model-00001-of-0000N.safetensors and an index (hf_index.h); and config.json.
//
//   absl::Status saved = SaveModelWeights({files, "out"}, parts, {.config_json = text}, group);
//   absl::StatusOr<LoadReport> loaded = LoadModelWeights({files, "out"}, parts, {}, group);
//
// Collective over the group (null: one rank). Every rank calls with its parts of each tensor and
// gets the same status. A tensor that is cut over ranks is assembled, or cut, by its layout
// (TensorPart).
//
// Saving works as in checkpoint_writer.h: a temporary folder, synced, then renamed. Nothing is ever
// overwritten (AlreadyExists), and on an error nothing is left. Rank 0 writes, tensor by tensor:
// besides its parts it needs memory for one whole tensor and one part of it. Files are filled in
// the order of the tensors' names. Of names that share memory the first in that order is written.
//
// Loading trusts nothing that it reads. File names must be names in that folder. Each tensor must
// be in the file that the index names for it, and each file must hold no other tensors. Sizes come
// from the files' headers. Files are regular ones or links to regular ones, because the hub's cache
// consists of links.
// Names are the models' or those of hub files (hf_names.h).
#ifndef APOGEE_CHECKPOINT_HF_HF_WEIGHTS_H_
#define APOGEE_CHECKPOINT_HF_HF_WEIGHTS_H_

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "apogee/checkpoint/format/open_tensor_file.h"
#include "apogee/checkpoint/load_report.h"
#include "apogee/checkpoint/planned_save.h"

namespace apogee::checkpoint {

inline constexpr const char* kHfSingleName = "model.safetensors";
inline constexpr const char* kHfIndexName = "model.safetensors.index.json";

// Rank 0's options are used.
struct SaveWeightsOptions {
  // false: one file, however large.
  bool shard = true;
  // With `shard` a file holds at most this many MiB, or one larger tensor.
  int64_t size_per_shard_mb = 5120;
  // Must be true, else InvalidArgument: PyTorch's pickle files are neither read nor written.
  bool use_safetensors = true;
  // true: the experts of a layer in one tensor, as the transformers library has them in memory
  // (docs/moe.md). Rank 0 then needs memory for one such tensor. false: a tensor per expert.
  bool fuse_experts = false;
  // The name of a single file.
  std::string single_name = kHfSingleName;
  // Further files of the folder: names and texts.
  std::map<std::string, std::string> texts = {};
  // Written as config.json unless empty. The values of its fields "dtype" and "torch_dtype", to
  // which the transformers library converts weights, become the dtype that is saved; the rest
  // stays.
  std::string config_json = {};
};

// InvalidArgument if ranks disagree about a tensor, if no rank holds some elements, or if
// size_per_shard_mb < 1. Other errors as in SaveCheckpoint.
absl::Status SaveModelWeights(const CheckpointTarget& target, const std::vector<TensorPart>& parts,
                              const SaveWeightsOptions& options, const comm::GroupPtr& group);
// The same in two halves (planned_save.h).
absl::StatusOr<std::unique_ptr<PlannedSave>> PlanModelWeights(std::vector<TensorPart> parts,
                                                              const SaveWeightsOptions& options,
                                                              const comm::GroupPtr& group);

struct LoadWeightsOptions {
  // The name of a single file. With another name than this one, only that file is read.
  std::string single_name = kHfSingleName;
  // false: missing and unexpected tensors are reported and not refused.
  bool strict = true;
  // A prefix of all model names that are to be read, which the names in the files lack: "gpt." if
  // your own module holds the model as "gpt". Names without it are not in the files: they count as
  // missing, and are never refused.
  std::string model_prefix = {};
  // The reverse: a prefix of the names in the files, for files saved from such a module and loaded
  // into the model alone. Tensors without it count as unexpected.
  std::string file_prefix = {};
  // If neither is given and tensors of the files are unexpected, the prefix with which none is. If
  // there are several such prefixes, an error names them.
};

// Fills the first layout.local_numel() elements of every target from the tensor of its name,
// converted between floating dtypes. One name may have several targets. Of names that share memory
// one must be there. If the files hold a tied head a second time, it must be equal to the first.
//
// NotFound without weights, and if files of the index are missing. DataLoss for damage, for a file
// that is cut short and for a Git LFS pointer in the place of one. One InvalidArgument lists
// tensors of another shape or of a dtype that cannot be converted, and missing and unexpected
// tensors (the first of each kind, and the number of the others). It names a prefix that would
// match them, or says that only some names have the model's prefix. Nothing has changed then. After
// a read error, which comes later, some targets hold new values and some old ones.
absl::StatusOr<LoadReport> LoadModelWeights(const CheckpointTarget& source,
                                            const std::vector<TensorPart>& targets,
                                            const LoadWeightsOptions& options,
                                            const comm::GroupPtr& group);

// The weights of a folder, open and checked. Not collective.
class HfWeights {
 public:
  // Errors as in LoadModelWeights. InvalidArgument for a folder with both a single file and an
  // index.
  static absl::StatusOr<HfWeights> Open(const std::shared_ptr<FileSystem>& files,
                                        const std::string& path,
                                        const std::string& single_name = kHfSingleName);

  struct Place {
    const OpenTensorFile* file;
    const SafetensorsEntry* entry;
  };
  // The experts of a fused tensor are tensors of their own.
  const std::map<std::string, Place>& tensors() const { return tensors_; }
  // Fills the first layout.local_numel() elements of `to` with the elements of tensor `name` that
  // `layout` names. The tensor must be there, with the layout's shape and a dtype that converts to
  // `to`'s.
  absl::Status Read(const std::string& name, const Layout& layout, const Tensor& to) const;
  // Takes out tensor `name`, and all whose names go on with a dot.
  void Remove(const std::string& name) {
    std::erase_if(tensors_, [&](const auto& tensor) {
      return tensor.first == name || tensor.first.starts_with(name + ".");
    });
  }

 private:
  std::map<std::string, std::shared_ptr<OpenTensorFile>> files_;
  std::map<std::string, Place> tensors_;
  std::vector<std::shared_ptr<const SafetensorsEntry>> parts_;  // of fused tensors
};

}  // namespace apogee::checkpoint

#endif  // APOGEE_CHECKPOINT_HF_HF_WEIGHTS_H_
