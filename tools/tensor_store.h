// SPDX-License-Identifier: Apache-2.0

// TensorStore: the tensors of whatever the user points at: a checkpoint folder, a folder of Hugging
// Face weights, or one .safetensors file.
//
//   APOGEE_ASSIGN_OR_RETURN(TensorStore store, TensorStore::Open("run/step-100"));
//   for (const auto& [name, tensor] : store.tensors()) ... tensor.shape ...
//   APOGEE_ASSIGN_OR_RETURN(Tensor w, store.Load("model/w"));
//
// Errors: DataLoss for what is damaged, a file that is missing from a folder included; NotFound and
// others for what is not there or is none of these.
#ifndef APOGEE_TOOLS_TENSOR_STORE_H_
#define APOGEE_TOOLS_TENSOR_STORE_H_

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "apogee/checkpoint/checkpoint_reader.h"
#include "apogee/checkpoint/hf_weights.h"

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
  // Of a checkpoint; the metadata of a file.
  const std::map<std::string, std::string>& attributes() const { return attributes_; }
  bool has_digests() const { return checkpoint_.has_value(); }
  // Checks all digests. Ok where there are none.
  absl::Status Verify() const;
  // The whole tensor, flat, in its own dtype; bytes (kU8) for dtypes that Tensor lacks.
  absl::StatusOr<Tensor> Load(const std::string& name) const;

 private:
  absl::Status OpenFolder(const std::string& path, const std::vector<std::string>& names);
  void AddEntries(const std::map<std::string, checkpoint::HfWeights::Place>& entries);

  std::map<std::string, StoredTensor> tensors_;
  std::map<std::string, std::string> attributes_;
  std::optional<checkpoint::CheckpointReader> checkpoint_;
  std::optional<checkpoint::HfWeights> weights_;
  std::shared_ptr<checkpoint::OpenTensorFile> file_;
  // Of weights and of a single file.
  std::map<std::string, checkpoint::HfWeights::Place> places_;
};

// "[4, 3]".
std::string FormatShape(const std::vector<int64_t>& shape);

}  // namespace apogee::tools

#endif  // APOGEE_TOOLS_TENSOR_STORE_H_
