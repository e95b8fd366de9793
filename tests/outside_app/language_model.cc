// SPDX-License-Identifier: Apache-2.0

#include "language_model.h"

#include <string>

#include "blocks.h"

namespace outside {

namespace nn = apogee::nn;
using apogee::Tensor;

LanguageModel::LanguageModel(const ModelConfig& config)
    : embed_(Register("embed", std::make_shared<nn::Embedding>(config.vocab, config.dim,
                                                               nn::Init::Normal(0, 0.3)))),
      drop_(Register("drop", std::make_shared<nn::Dropout>(config.dropout))) {
  // Parents first, as one reads them.
  const auto layers = Register("blocks", std::make_shared<nn::Container>());
  for (int64_t i = 0; i < config.layers; ++i) {
    const auto layer = layers->Register(std::to_string(i), std::make_shared<nn::Container>());
    blocks_.push_back(layer->Register("gru", std::make_shared<GruBlock>(config.dim)));
    blocks_.push_back(layer->Register(
        "attn", std::make_shared<WindowAttention>(config.dim, config.heads, config.window)));
    blocks_.push_back(
        layer->Register("mlp", std::make_shared<MlpBlock>(config.dim, config.dropout)));
  }
  norm_ = Register("norm", std::make_shared<nn::RmsNorm>(config.dim));
  head_ = Register("head", std::make_shared<nn::Linear>(embed_->weight()));
}

std::vector<nn::Piece> LanguageModel::MakePieces() {
  std::vector<nn::Piece> pieces = {
      {.name = "embed", .modules = {embed_.get(), drop_.get()}, .forward = [this](const Tensor& x) {
         return (*drop_)((*embed_)(x));
       }}};
  for (size_t i = 0; i < blocks_.size(); ++i) {
    nn::Module* block = blocks_[i].get();
    pieces.push_back({.name = "blocks." + std::to_string(i),
                      .modules = {block},
                      .forward = [block](const Tensor& x) { return (*block)(x); }});
  }
  pieces.push_back({.name = "head",
                    .modules = {norm_.get(), head_.get()},
                    .tied = {embed_->weight()},
                    .forward = [this](const Tensor& x) { return (*head_)((*norm_)(x)); }});
  return pieces;
}

nn::parallel::ParallelPlan PlanFor(const ModelConfig& config) {
  using enum nn::parallel::ParallelStyle;
  nn::parallel::ParallelPlan plan{.name = "gru language model"};
  plan.rules = {{.pattern = "embed", .style = kVocabulary},
                {.pattern = "*.gru.ih", .style = kColumnGather},
                {.pattern = "*.gru.hh", .style = kColumnGather},
                {.pattern = "*.mlp.up", .style = kColumn},
                {.pattern = "*.mlp.drop", .style = kDropout},
                {.pattern = "*.mlp.down", .style = kRow},
                {.pattern = "head", .style = kVocabulary}};
  for (const char* pattern : {"*.attn.q", "*.attn.k", "*.attn.v"}) {
    plan.rules.push_back(
        {.pattern = pattern, .style = kColumn, .units = config.heads, .unit_name = "heads"});
  }
  plan.rules.push_back(
      {.pattern = "*.attn.o", .style = kRow, .units = config.heads, .unit_name = "heads"});
  plan.output_module = "head";
  return plan;
}

}  // namespace outside
