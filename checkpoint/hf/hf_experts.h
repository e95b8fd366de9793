// SPDX-License-Identifier: Apache-2.0

// The layouts in which files hold the experts of a mixture (docs/moe.md): Mixtral's names, Qwen's
// names, or all experts of a layer fused in one tensor. The models here have a tensor per expert.
//
//   for (const auto& [name, entry] : SplitFusedExperts("l.mlp.experts.down_proj", fused)) ...
//                                       // "l.mlp.experts.0.down_proj.weight", ...
//   OtherExpertName("l.block_sparse_moe.gate.weight");      // "l.mlp.gate.weight"
#ifndef APOGEE_CHECKPOINT_HF_HF_EXPERTS_H_
#define APOGEE_CHECKPOINT_HF_HF_EXPERTS_H_

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "apogee/checkpoint/format/safetensors_header.h"

namespace apogee::checkpoint {

// The tensors of single experts within a fused tensor, with their bytes in the same file:
// "….experts.gate_up_proj" [E, 2I, H], gate first, and "….experts.down_proj" [E, H, I]. Empty for
// another tensor.
std::vector<std::pair<std::string, SafetensorsEntry>> SplitFusedExperts(
    const std::string& name, const SafetensorsEntry& entry);

// Mixtral's name of a tensor with Qwen's name `name`, or the reverse; "" for other tensors.
std::string OtherExpertName(const std::string& name);

// A fused tensor, and the tensors whose elements follow each other in it.
struct FusedExperts {
  std::vector<int64_t> shape;
  std::vector<std::string> parts;
};
// The fused tensors of a model, by name, and Mixtral's gates, whose name differs beside fused
// experts. SplitFusedExperts is the reverse. `shapes`: of all tensors of the model, by name.
// Experts of unequal shapes, and layers that lack a matrix of an expert, stay as they are.
std::map<std::string, FusedExperts> FuseExperts(
    const std::map<std::string, std::vector<int64_t>>& shapes);

}  // namespace apogee::checkpoint

#endif  // APOGEE_CHECKPOINT_HF_HF_EXPERTS_H_
