// SPDX-License-Identifier: Apache-2.0

// WeightsWriter: one rank's part in writing the files of a model's weights. Private to
// checkpoint/hf.
//
//   WeightsWriter writer(files, parts, plan, fused, group);
//   APOGEE_RETURN_IF_ERROR(writer.WriteFile("dir/model.safetensors", {"a.weight", "b.weight"}));
//
// Rank 0 writes, tensor by tensor; the others send it their parts.
#ifndef APOGEE_CHECKPOINT_HF_HF_WEIGHTS_WRITER_H_
#define APOGEE_CHECKPOINT_HF_HF_WEIGHTS_WRITER_H_

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "apogee/checkpoint/files/file_system.h"
#include "apogee/checkpoint/hf/hf_experts.h"
#include "apogee/checkpoint/save_plan.h"
#include "apogee/tensor/cpu/cpu_context.h"

namespace apogee::checkpoint {

class WeightsWriter {
 public:
  using Fused = std::map<std::string, FusedExperts>;

  // All arguments must outlive this object.
  WeightsWriter(FileSystem& files, const std::vector<TensorPart>& parts, const SavePlan& plan,
                const Fused& fused, comm::GroupPtr group);

  // `names`: of the file's tensors, those of fused ones among them. Collective.
  absl::Status WriteFile(const std::string& path, const std::vector<std::string>& names);
  bool IsWriter() const { return group_ == nullptr || group_->rank() == 0; }

 private:
  // The tensors of the model that follow each other in a tensor of the file.
  std::vector<std::string> PartsOf(const std::string& name) const;
  // The elements of a tensor of the file, and of a tensor of the model, on rank 0.
  Tensor GatherParts(const std::string& name) const;
  Tensor Gather(const std::string& name) const;
  Tensor Empty(int64_t numel, DType dtype) const;

  FileSystem& files_;
  const SavePlan& plan_;
  const Fused& fused_;
  comm::GroupPtr group_;
  const ContextPtr context_ = CpuContext({.num_threads = 1});
  std::map<std::string, const TensorPart*> parts_;
  std::map<std::pair<std::string, size_t>, int> holder_;  // by a tensor's name and slice
};

}  // namespace apogee::checkpoint

#endif  // APOGEE_CHECKPOINT_HF_HF_WEIGHTS_WRITER_H_
