// SPDX-License-Identifier: Apache-2.0

// Folders of tiny models, as Hugging Face has them, and ways to change their files.
//
//   const std::string folder = SaveFolder(dir / "llama", TinyConfig("llama"));
//   EditTensors(folder, [](Tensors& tensors) { tensors.erase("model.norm.weight"); });
//   EXPECT_EQ(ValuesOf(*loaded.module), ValuesOf(*RandomModel(TinyConfig("llama")).module));
#ifndef APOGEE_TESTS_BOOSTER_PRETRAINED_FOLDERS_H_
#define APOGEE_TESTS_BOOSTER_PRETRAINED_FOLDERS_H_

#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "apogee/booster/booster.h"
#include "apogee/booster/pretrained.h"
#include "apogee/checkpoint/format/safetensors_reader.h"
#include "apogee/core/rng.h"
#include "apogee/nn/models/hf_model.h"
#include "apogee/optim/momentum/sgd.h"
#include "apogee/plugins/single_rank.h"
#include "apogee/tensor/cpu/cpu_context.h"
#include "apogee/tests/support/files/safetensors_file.h"
#include "apogee/tests/support/files/temp_dir.h"

namespace apogee::pretrained {

inline void Ignore(const std::string& /*notice*/) {}

// `text` with its first `from` replaced.
inline std::string Replaced(std::string text, const std::string& from, const std::string& to) {
  const size_t at = text.find(from);
  APOGEE_CHECK(at != std::string::npos, "no \"", from, "\" in ", text);
  return text.replace(at, from.size(), to);
}

// The config.json of a tiny model, with a field that no library knows.
inline std::string TinyConfig(const std::string& family) {
  static const auto& texts = *new std::map<std::string, std::string>{
      {"gpt2", R"("n_embd": 16, "n_layer": 2, "n_head": 4, "n_positions": 8)"},
      {"llama", R"("num_key_value_heads": 2)"},
      {"gemma2", R"("num_key_value_heads": 2, "head_dim": 6, "sliding_window": 3)"},
      {"qwen3", R"("num_key_value_heads": 2, "head_dim": 6)"},
      {"mixtral", R"("num_key_value_heads": 2, "num_local_experts": 3)"},
      {"gpt_neox", R"("rotary_pct": 0.5)"},
      {"opt", R"("ffn_dim": 24, "dropout": 0.0)"},
      {"bert", R"("hidden_dropout_prob": 0.0)"},
      {"vit", R"("image_size": 4, "patch_size": 2, "num_channels": 1, "num_labels": 3)"}};
  const std::string sizes = family == "gpt2" ? "" : R"("hidden_size": 16, "intermediate_size": 24,
  "num_hidden_layers": 2, "num_attention_heads": 4, "max_position_embeddings": 8,
  )";
  // Experts are smaller.
  const bool experts = family == "mixtral";
  const std::string inner =
      experts ? Replaced(sizes, "\"intermediate_size\": 24", "\"intermediate_size\": 8") : sizes;
  return "{\n  \"model_type\": \"" + family + "\",\n  \"vocab_size\": 19,\n  " + inner +
         texts.at(family) + R"(,
  "bos_token_id": 1,
  "eos_token_id": [2, 3],
  "pad_token_id": null,
  "dtype": "float32",
  "favourite_colour": {"name": "green", "rgb": [0, 1.50, 0]}
}
)";
}

// The model of a config with random values: norms and biases, too.
inline nn::HfModel RandomModel(const std::string& config, uint64_t seed = 1) {
  nn::HfModel hf = ValueOrThrow(nn::MakeHfModel(config, "config.json", Ignore));
  hf.module->Initialize(CpuContext(), {.seed = seed});
  for (const auto& parameter : hf.module->Parameters()) {
    const PhiloxKey key = MakeKey(seed, "random " + parameter->name());
    float* values = parameter->data().data<float>();
    for (int64_t i = 0; i < parameter->shape().numel(); ++i) {
      values[i] = static_cast<float>(ToUniform(Philox(key, static_cast<uint64_t>(i))[0]) - 0.5);
    }
  }
  return hf;
}

struct SavedOptions {
  uint64_t seed = 1;
  Precision precision = Precision::kF32;
  int64_t size_per_shard_mb = 5120;
};

// Saves RandomModel at `path`, which it returns.
inline std::string SaveFolder(const std::string& path, const std::string& config,
                              const SavedOptions& options = {}) {
  const nn::HfModel hf = RandomModel(config, options.seed);
  optim::Sgd optimizer(hf.module->Parameters(), {.lr = 0.1});
  SingleRankPlugin plugin({.precision = options.precision});
  Booster booster(plugin);
  const Boosted boosted = booster.boost(*hf.module, optimizer);
  OkOrThrow(booster.save_model(
      path, {.size_per_shard_mb = options.size_per_shard_mb, .config_json = hf.config_json}));
  return path;
}

using Values = std::map<std::string, std::vector<double>>;

inline Values ValuesOf(const nn::Module& model) {
  Values values;
  for (const auto& parameter : model.Parameters()) {
    values[parameter->name()] = parameter->value().Detach().ToVector<double>();
  }
  return values;
}

struct FileTensor {
  std::vector<int64_t> shape;
  std::vector<float> values;
};
using Tensors = std::map<std::string, FileTensor>;

inline Tensors ReadTensors(const std::string& file) {
  const auto reader = ValueOrThrow(checkpoint::SafetensorsReader::Open(file));
  Tensors tensors;
  for (const auto& [name, entry] : reader.entries()) {
    tensors[name] = {
        entry.shape,
        ValueOrThrow(reader.Load(name, CpuContext())).To(DType::kF32).ToVector<float>()};
  }
  return tensors;
}

// Writes model.safetensors again, with changed tensors.
inline void EditTensors(const std::string& folder, const std::function<void(Tensors&)>& edit) {
  const std::string file = folder + "/model.safetensors";
  Tensors tensors = ReadTensors(file);
  edit(tensors);
  SafetensorsFile written;
  for (const auto& [name, tensor] : tensors) {
    written.Add<float>(name, "F32", tensor.shape, tensor.values);
  }
  written.Write(file);
}

// A module of a user's that holds a model under the name "gpt".
class Holder : public nn::Module {
 public:
  explicit Holder(const std::string& config)
      : gpt_(Register("gpt", std::shared_ptr<nn::Module>(
                                 ValueOrThrow(nn::MakeHfModel(config, "c", Ignore)).module))),
        score_(Register("score", std::make_shared<nn::Linear>(19, 3))) {}
  Tensor Forward(const Tensor& x) override { return (*score_)((*gpt_)(x)); }

 private:
  std::shared_ptr<nn::Module> gpt_;
  std::shared_ptr<nn::Linear> score_;
};

inline Tensor TinyTokens(const ContextPtr& context) {
  return Tensor::FromVector<int64_t>({3, 1, 4, 1, 5, 9, 2, 6, 18, 0, 7, 7, 11, 2, 13, 17}, {2, 8},
                                     context);
}

}  // namespace apogee::pretrained

#endif  // APOGEE_TESTS_BOOSTER_PRETRAINED_FOLDERS_H_
