// SPDX-License-Identifier: Apache-2.0

// Files as the hub has them, and a tiny GPT-2 to load them into.
//
//   HubFile file;
//   file.AddGpt2("transformer.");
//   file.Write(folder);
#ifndef APOGEE_TESTS_CHECKPOINT_HUB_FILE_H_
#define APOGEE_TESTS_CHECKPOINT_HUB_FILE_H_

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "apogee/checkpoint/hf/hf_weights.h"
#include "apogee/nn/models/gpt2.h"
#include "apogee/tensor/cpu/cpu_context.h"
#include "apogee/tests/support/files/safetensors_file.h"

namespace apogee::checkpoint {

inline constexpr int64_t kEmbd = 8, kPositions = 4, kVocab = 5, kLayers = 2;

// What the hub's GPT-2 files hold, written down from their listing: name without prefix, shape.
// Conv1D weights are [in, out].
inline const std::vector<std::pair<std::string, std::vector<int64_t>>>& Gpt2Layer() {
  static const auto& layer = *new std::vector<std::pair<std::string, std::vector<int64_t>>>{
      {"ln_1.weight", {kEmbd}},
      {"ln_1.bias", {kEmbd}},
      {"attn.c_attn.weight", {kEmbd, 3 * kEmbd}},
      {"attn.c_attn.bias", {3 * kEmbd}},
      {"attn.c_proj.weight", {kEmbd, kEmbd}},
      {"attn.c_proj.bias", {kEmbd}},
      {"ln_2.weight", {kEmbd}},
      {"ln_2.bias", {kEmbd}},
      {"mlp.c_fc.weight", {kEmbd, 4 * kEmbd}},
      {"mlp.c_fc.bias", {4 * kEmbd}},
      {"mlp.c_proj.weight", {4 * kEmbd, kEmbd}},
      {"mlp.c_proj.bias", {kEmbd}}};
  return layer;
}

// Values by name, of tensors that count on.
class HubFile {
 public:
  void Add(const std::string& name, const std::vector<int64_t>& shape) {
    int64_t numel = 1;
    for (const int64_t size : shape) numel *= size;
    std::vector<float>& values = values_[name];
    for (int64_t i = 0; i < numel; ++i) values.push_back(next_ += 0.25f);
    file_.Add<float>(name, "F32", shape, values);
  }
  void AddValues(const std::string& name, const std::vector<int64_t>& shape,
                 const std::vector<float>& values) {
    file_.Add<float>(name, "F32", shape, values);
  }
  void AddGpt2(const std::string& prefix) {
    Add(prefix + "wte.weight", {kVocab, kEmbd});
    Add(prefix + "wpe.weight", {kPositions, kEmbd});
    for (int64_t layer = 0; layer < kLayers; ++layer) {
      const std::string at = prefix + "h." + std::to_string(layer) + ".";
      for (const auto& [name, shape] : Gpt2Layer()) Add(at + name, shape);
      Add(at + "attn.bias", {1, 1, kPositions, kPositions});
    }
    Add(prefix + "ln_f.weight", {kEmbd});
    Add(prefix + "ln_f.bias", {kEmbd});
  }
  const std::vector<float>& Of(const std::string& name) const { return values_.at(name); }
  void Write(const std::string& folder) { file_.Write(folder + "/model.safetensors"); }

 private:
  SafetensorsFile file_;
  std::map<std::string, std::vector<float>> values_;
  float next_ = 0;
};

class TinyGpt2 : public nn::Gpt2 {
 public:
  TinyGpt2()
      : Gpt2({.vocab_size = kVocab,
              .n_positions = kPositions,
              .n_embd = kEmbd,
              .n_layer = kLayers,
              .n_head = 2}) {
    Initialize(CpuContext(), {.seed = 1});
  }
};

// As within a module that holds the model under the name `within`.
inline absl::StatusOr<LoadReport> Load(nn::Module& model, const std::string& folder,
                                       const LoadWeightsOptions& options,
                                       const std::string& within = "") {
  std::vector<TensorPart> parts;
  for (const auto& parameter : model.Parameters()) {
    parts.push_back({within + parameter->name(), parameter->data(), Layout(parameter->shape())});
  }
  return LoadModelWeights({RealFileSystem(), folder}, parts, options, nullptr);
}
inline absl::StatusOr<LoadReport> Load(nn::Module& model, const std::string& folder,
                                       bool strict = true) {
  return Load(model, folder, {.strict = strict});
}

}  // namespace apogee::checkpoint

#endif  // APOGEE_TESTS_CHECKPOINT_HUB_FILE_H_
