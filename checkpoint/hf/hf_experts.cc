// SPDX-License-Identifier: Apache-2.0

#include "apogee/checkpoint/hf/hf_experts.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <optional>

namespace apogee::checkpoint {
namespace {

constexpr const char* kQwen = ".mlp.";
constexpr const char* kMixtral = ".block_sparse_moe.";
constexpr const char* kGateUp = ".experts.gate_up_proj";
constexpr const char* kDown = ".experts.down_proj";

struct Matrix {
  const char* qwen;
  const char* mixtral;
};
constexpr std::array kMatrices = {Matrix{"gate_proj", "w1"}, Matrix{"up_proj", "w3"},
                                  Matrix{"down_proj", "w2"}};

// "layers.0.mlp.experts.3.up_proj.weight" in parts; a gate has neither expert nor matrix.
struct ExpertName {
  std::string layer;  // "layers.0"
  bool is_mixtral = false;
  std::string expert;  // "3"
  size_t matrix = 0;   // in kMatrices
};

std::optional<ExpertName> Parse(const std::string& name) {
  ExpertName parsed;
  size_t at = name.find(kMixtral);
  parsed.is_mixtral = at != std::string::npos;
  if (!parsed.is_mixtral) at = name.find(kQwen);
  if (at == std::string::npos) return std::nullopt;
  parsed.layer = name.substr(0, at);
  std::string rest = name.substr(at + std::string(parsed.is_mixtral ? kMixtral : kQwen).size());
  if (rest == "gate.weight") return parsed;
  constexpr const char* kExperts = "experts.";
  if (!rest.starts_with(kExperts)) return std::nullopt;
  rest = rest.substr(std::string(kExperts).size());
  const size_t dot = rest.find('.');
  if (dot == 0 || dot == std::string::npos) return std::nullopt;
  parsed.expert = rest.substr(0, dot);
  if (!std::ranges::all_of(parsed.expert, [](char c) { return c >= '0' && c <= '9'; })) {
    return std::nullopt;
  }
  const std::string matrix = rest.substr(dot + 1);
  for (size_t m = 0; m < kMatrices.size(); ++m) {
    const char* own = parsed.is_mixtral ? kMatrices[m].mixtral : kMatrices[m].qwen;
    if (matrix != std::string(own) + ".weight") continue;
    parsed.matrix = m;
    return parsed;
  }
  return std::nullopt;
}

}  // namespace

std::vector<std::pair<std::string, SafetensorsEntry>> SplitFusedExperts(
    const std::string& name, const SafetensorsEntry& entry) {
  const bool is_gate_up = name.ends_with(kGateUp);
  const std::vector<int64_t>& shape = entry.shape;
  if ((!is_gate_up && !name.ends_with(kDown)) || shape.size() != 3 || shape[0] < 1) return {};
  const int64_t per_expert = is_gate_up ? 2 : 1;
  if (shape[1] % per_expert != 0) return {};
  const std::string start =
      name.substr(0, name.size() - std::string(is_gate_up ? "gate_up_proj" : "down_proj").size());
  const int64_t rows = shape[1] / per_expert;
  const int64_t bytes = (entry.end - entry.begin) / (shape[0] * per_expert);
  std::vector<std::pair<std::string, SafetensorsEntry>> parts;
  for (int64_t i = 0; i < shape[0] * per_expert; ++i) {
    const char* matrix = is_gate_up ? kMatrices[static_cast<size_t>(i % 2)].qwen : "down_proj";
    SafetensorsEntry part{.dtype = entry.dtype,
                          .shape = {rows, shape[2]},
                          .begin = entry.begin + i * bytes,
                          .end = entry.begin + (i + 1) * bytes};
    parts.emplace_back(start + std::to_string(i / per_expert) + "." + matrix + ".weight",
                       std::move(part));
  }
  return parts;
}

std::string OtherExpertName(const std::string& name) {
  const std::optional<ExpertName> parsed = Parse(name);
  if (!parsed) return "";
  const std::string start = parsed->layer + (parsed->is_mixtral ? kQwen : kMixtral);
  if (parsed->expert.empty()) return start + "gate.weight";
  const Matrix& matrix = kMatrices[parsed->matrix];
  return start + "experts." + parsed->expert + "." +
         (parsed->is_mixtral ? matrix.qwen : matrix.mixtral) + ".weight";
}

std::map<std::string, FusedExperts> FuseExperts(
    const std::map<std::string, std::vector<int64_t>>& shapes) {
  // By layer, matrix and expert: the name of the tensor.
  std::map<std::string, std::array<std::map<int64_t, std::string>, kMatrices.size()>> layers;
  for (const auto& [name, shape] : shapes) {
    const std::optional<ExpertName> parsed = Parse(name);
    if (!parsed || parsed->expert.empty() || shape.size() != 2) continue;
    int64_t expert = 0;
    const std::string& digits = parsed->expert;
    if (std::from_chars(digits.data(), digits.data() + digits.size(), expert).ec != std::errc()) {
      continue;
    }
    layers[parsed->layer][parsed->matrix][expert] = name;
  }
  std::map<std::string, FusedExperts> fused;
  for (const auto& [layer, matrices] : layers) {
    const auto num_experts = static_cast<int64_t>(matrices[0].size());
    const auto is_whole = [&](const std::map<int64_t, std::string>& experts) {
      return static_cast<int64_t>(experts.size()) == num_experts &&
             experts.rbegin()->first == num_experts - 1 &&
             std::ranges::all_of(experts, [&](const auto& expert) {
               return shapes.at(expert.second) == shapes.at(experts.begin()->second);
             });
    };
    if (num_experts == 0 || !std::ranges::all_of(matrices, is_whole) ||
        shapes.at(matrices[0].at(0)) != shapes.at(matrices[1].at(0))) {
      continue;
    }
    const std::vector<int64_t>& in = shapes.at(matrices[0].at(0));
    const std::vector<int64_t>& out = shapes.at(matrices[2].at(0));
    FusedExperts& gate_up = fused[layer + ".mlp" + kGateUp];
    FusedExperts& down = fused[layer + ".mlp" + kDown];
    gate_up.shape = {num_experts, 2 * in[0], in[1]};
    down.shape = {num_experts, out[0], out[1]};
    const std::string gate = layer + kMixtral + "gate.weight";
    if (shapes.contains(gate)) {
      fused[layer + kQwen + "gate.weight"] = {.shape = shapes.at(gate), .parts = {gate}};
    }
    for (int64_t e = 0; e < num_experts; ++e) {
      gate_up.parts.push_back(matrices[0].at(e));
      gate_up.parts.push_back(matrices[1].at(e));
      down.parts.push_back(matrices[2].at(e));
    }
  }
  return fused;
}

}  // namespace apogee::checkpoint
