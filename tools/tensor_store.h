// SPDX-License-Identifier: Apache-2.0

// TensorStore: the tensors of a checkpoint folder, a folder of Hugging Face weights, or one
// .safetensors file.
//
//   APOGEE_ASSIGN_OR_RETURN(TensorStore store, TensorStore::Open("run/step-100"));
//   for (const auto& [name, tensor] : store.tensors()) ... tensor.shape ...
//   APOGEE_ASSIGN_OR_RETURN(Tensor w, store.Load("model/w"));
//
// Errors: DataLoss for damage, including a file missing from a folder; NotFound and others if the
// path does not exist or is none of the three.
#ifndef APOGEE_TOOLS_TENSOR_STORE_H_
#define APOGEE_TOOLS_TENSOR_STORE_H_

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "apogee/checkpoint/checkpoint_reader.h"
#include "apogee/checkpoint/hf/hf_weights.h"

namespace apogee::tools {

struct StoredTensor {
  std::string dtype;
  std::vector<int64_t> shape;
  int64_t bytes = 0;
  size_t slices = 1;
  std::vector<std::string> files;
};

class TensorStore {
 public:
  static absl::StatusOr<TensorStore> Open(const std::string& path);

  const std::map<std::string, StoredTensor>& tensors() const { return tensors_; }
  // The attributes of a checkpoint, or the metadata of a .safetensors file.
  const std::map<std::string, std::string>& attributes() const { return attributes_; }
  bool has_digests() const { return checkpoint_.has_value(); }
  // Checks all digests. Ok if there are none.
  absl::Status Verify() const;
  // The whole tensor, flat, in its own dtype; as bytes (kU8) if Tensor lacks the dtype.
  absl::StatusOr<Tensor> Load(const std::string& name) const;

 private:
  absl::Status OpenFolder(const std::string& path, const std::vector<std::string>& names);
  void AddEntries(const std::map<std::string, checkpoint::HfWeights::Place>& entries);

  std::map<std::string, StoredTensor> tensors_;
  std::map<std::string, std::string> attributes_;
  std::optional<checkpoint::CheckpointReader> checkpoint_;
  std::optional<checkpoint::HfWeights> weights_;
  std::shared_ptr<checkpoint::OpenTensorFile> file_;
  // For weights and for a single file.
  std::map<std::string, checkpoint::HfWeights::Place> places_;
};

// "[4, 3]".
std::string FormatShape(const std::vector<int64_t>& shape);

}  // namespace apogee::tools

#endif  // APOGEE_TOOLS_TENSOR_STORE_H_
