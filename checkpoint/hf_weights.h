// SPDX-License-Identifier: Apache-2.0

// Model weights as Hugging Face libraries keep them: a folder with model.safetensors, or with
// model-00001-of-0000N.safetensors and an index (hf_index.h); and config.json.
//
//   absl::Status saved = SaveModelWeights({files, "out"}, parts, {.config_json = text}, group);
//   absl::StatusOr<LoadReport> loaded = LoadModelWeights({files, "out"}, parts, {}, group);
//
// Collective over the group (null: one rank): every rank calls, with what it holds of each tensor
// (TensorPart: a cut tensor is put together, or cut, by its layout), and gets the same status.
//
// Saving follows checkpoint_writer.h: a temporary folder, synced, then renamed; nothing is ever
// overwritten (AlreadyExists); on an error nothing is left. Rank 0 writes, tensor by tensor: beside
// its parts it needs room for one whole tensor and one part of it. Files are filled in order of
// the tensors' names. Of names that share memory the first in that order is written.
//
// Loading trusts nothing that it reads: names of files are of that folder, each tensor is in the
// one file that the index says, and each file holds no other tensors; sizes come from headers.
// Files are regular ones, or links to such, for the hub's cache has its files behind links. Names
// are those of the models, or as hub files have them (hf_names.h).
#ifndef APOGEE_CHECKPOINT_HF_WEIGHTS_H_
#define APOGEE_CHECKPOINT_HF_WEIGHTS_H_

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "apogee/checkpoint/open_tensor_file.h"
#include "apogee/checkpoint/planned_save.h"

namespace apogee::checkpoint {

inline constexpr const char* kHfSingleName = "model.safetensors";
inline constexpr const char* kHfIndexName = "model.safetensors.index.json";

// Rank 0's count.
struct SaveWeightsOptions {
  // false: one file, however large.
  bool shard = true;
  // Else a file holds at most so many MiB, or one larger tensor.
  int64_t size_per_shard_mb = 5120;
  // Pickles are neither read nor written: InvalidArgument unless true.
  bool use_safetensors = true;
  // Written as config.json unless empty.
  std::string config_json = {};
};

// InvalidArgument when ranks disagree about a tensor, when elements are held by nobody, or for
// size_per_shard_mb < 1; else as SaveCheckpoint.
absl::Status SaveModelWeights(const CheckpointTarget& target, const std::vector<TensorPart>& parts,
                              const SaveWeightsOptions& options, const comm::GroupPtr& group);
// The same in two halves (planned_save.h).
absl::StatusOr<std::unique_ptr<PlannedSave>> PlanModelWeights(std::vector<TensorPart> parts,
                                                              const SaveWeightsOptions& options,
                                                              const comm::GroupPtr& group);

struct LoadWeightsOptions {
  // false: tensors that are missing, or that nobody asked for, are reported, not refused.
  bool strict = true;
  // What all names of the model that are to be read begin with, and those in the files do not:
  // "gpt." where a module of one's own holds the model as "gpt". Names without it are missing.
  std::string model_prefix = {};
  // The other way round: files that were saved of such a module, for the model alone. Tensors
  // without it are unexpected.
  std::string file_prefix = {};
};

struct LoadReport {
  std::vector<std::string> missing;     // asked for, but not there: their targets stay
  std::vector<std::string> unexpected;  // there, but not asked for
  // Names of hub files (hf_names.h).
  std::vector<std::string> buffers;  // there, known, and of no use: ignored
  std::string prefix;                // what the files leave away from the names asked for
  // There, not asked for, and equal to the tensor that this model has in its place: a tied head.
  std::vector<std::string> tied;
};

// Fills in the first layout.local_numel() elements of every target from the tensor of its name,
// converted between floating dtypes. One name may have several targets; of names that share memory
// one must be there. A tied head that the files hold a second time must be equal to the first.
// NotFound without weights; DataLoss for what is damaged; one InvalidArgument that lists missing,
// unexpected and misshapen tensors, and those whose dtype cannot be converted (the first ones of
// each kind, and how many more there are), names a prefix that would match them, or says that only
// a part of the names has the model's prefix. Nothing has changed then; after a read error, which
// comes later, targets hold a mixture.
absl::StatusOr<LoadReport> LoadModelWeights(const CheckpointTarget& source,
                                            const std::vector<TensorPart>& targets,
                                            const LoadWeightsOptions& options,
                                            const comm::GroupPtr& group);

// The weights of a folder, open and checked. Not collective.
class HfWeights {
 public:
  // Errors as of LoadModelWeights. InvalidArgument for a folder with both a single file and an
  // index.
  static absl::StatusOr<HfWeights> Open(const std::shared_ptr<FileSystem>& files,
                                        const std::string& path);

  struct Place {
    const OpenTensorFile* file;
    const SafetensorsEntry* entry;
  };
  const std::map<std::string, Place>& tensors() const { return tensors_; }
  // Fills in what `layout` says of tensor `name`, which is there, of the layout's shape, and of a
  // dtype that converts to `to`'s.
  absl::Status Read(const std::string& name, const comm::Layout& layout, const Tensor& to) const;

 private:
  std::map<std::string, std::shared_ptr<OpenTensorFile>> files_;
  std::map<std::string, Place> tensors_;
};

}  // namespace apogee::checkpoint

#endif  // APOGEE_CHECKPOINT_HF_WEIGHTS_H_
