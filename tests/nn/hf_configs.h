// SPDX-License-Identifier: Apache-2.0

// The hub's config.json files of GPT-2 and Llama with some fields changed.
//
//   EXPECT_THAT(LlamaWith({{"head_dim", 63}}), HasSubstr("\"head_dim\" is 63"));
#ifndef APOGEE_TESTS_NN_HF_CONFIGS_H_
#define APOGEE_TESTS_NN_HF_CONFIGS_H_

#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>

#include "apogee/nn/models/hf_model.h"

namespace apogee::nn {

using Json = nlohmann::json;

inline std::string Fixture(const std::string& name) {
  std::ifstream file(std::string(APOGEE_HF_CONFIGS) + "/" + name);
  EXPECT_TRUE(file.good()) << name;
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

// The fixture with some fields changed.
inline std::string Changed(const std::string& name, const Json& changes) {
  Json json = Json::parse(Fixture(name));
  for (const auto& [key, value] : changes.items()) json[key] = value;
  return json.dump();
}

template <typename T>
inline std::string MessageOf(const absl::StatusOr<T>& config) {
  return config.ok() ? "accepted" : Message(config.status());
}
inline void Ignore(const std::string&) {}
inline std::string Gpt2With(const Json& changes) {
  return MessageOf(ParseDecoderHfConfig(Changed("gpt2.json", changes), "dir/config.json", Ignore));
}
inline std::string LlamaWith(const Json& changes) {
  return MessageOf(ParseDecoderHfConfig(Changed("llama.json", changes), "dir/config.json", Ignore));
}

}  // namespace apogee::nn

#endif  // APOGEE_TESTS_NN_HF_CONFIGS_H_
