// SPDX-License-Identifier: Apache-2.0

#include "apogee/nn/models/transformer/block.h"

#include <functional>
#include <utility>
#include <vector>

#include "apogee/autograd/functions/activation.h"
#include "apogee/autograd/functions/arithmetic.h"
#include "apogee/autograd/functions/shape.h"
#include "apogee/nn/models/transformer/path_register.h"
#include "apogee/nn/moe/moe.h"

namespace apogee::nn {

// The module of a branch; it holds the branch's layers if they have a common name, so that hooks
// and traces see it.
class TransformerBlock::Branch : public Container {
 public:
  explicit Branch(std::function<Tensor(const Tensor&)> run) : run_(std::move(run)) {}
  Tensor Forward(const Tensor& x) override { return run_(x); }

 private:
  std::function<Tensor(const Tensor&)> run_;
};

TransformerBlock::TransformerBlock(const BlockConfig& config) : config_(config) {
  const std::string problems = BlockProblems(config);
  APOGEE_CHECK(problems.empty(), "transformer block: invalid options:", problems);
  PathRegister paths([this](const std::string& name, const std::shared_ptr<Module>& child) {
    Register(name, child);
  });
  const BlockNames& names = config.names;
  if (!names.norms_last) attention_norms_ = AddNorms(paths, names.attention_norms);
  AddAttention(paths);
  if (!names.norms_last) mlp_norms_ = AddNorms(paths, names.mlp_norms);
  AddMlp(paths);
  if (names.norms_last) {
    attention_norms_ = AddNorms(paths, names.attention_norms);
    mlp_norms_ = AddNorms(paths, names.mlp_norms);
  }
  if (config.has_dropout) drop_ = Register("drop", std::make_shared<Dropout>(config.dropout));
}

void TransformerBlock::AddAttention(PathRegister& paths) {
  const BlockConfig& c = config_;
  const BlockNames& names = c.names;
  const auto branch = std::make_shared<Branch>([this](const Tensor& x) { return Attend(x); });
  if (!names.attention.empty()) paths.AddContainer(names.attention, branch);
  attention_ = branch;
  const auto projection = [&](const std::string& name, int64_t heads) {
    return paths.Add(
        name, std::make_shared<Linear>(
                  c.hidden_size, heads * c.head_dim,
                  LinearOptions{.bias = c.qkv_bias, .layout = c.weight_layout, .init = c.init}));
  };
  if (c.qkv_layout == QkvLayout::kSeparate) {
    q_ = projection(names.q, c.num_heads);
    k_ = projection(names.k, c.num_kv_heads);
    v_ = projection(names.v, c.num_kv_heads);
  } else {
    qkv_ = projection(names.qkv, c.num_heads + 2 * c.num_kv_heads);
  }
  out_ = paths.Add(names.out, std::make_shared<Linear>(c.num_heads * c.head_dim, c.hidden_size,
                                                       LinearOptions{.bias = c.out_bias,
                                                                     .layout = c.weight_layout,
                                                                     .to_residual = true,
                                                                     .init = c.residual_init}));
  core_ = paths.Add(names.core, std::make_shared<AttentionCore>(
                                    AttentionCoreOptions{.head_dim = c.head_dim,
                                                         .scale = c.attention_scale,
                                                         .window = c.window,
                                                         .soft_cap = c.attention_soft_cap,
                                                         .causal = c.causal}));
  if (c.head_norm == HeadNorm::kNone) return;
  const bool all = c.head_norm == HeadNorm::kAllHeads;
  q_norm_ = paths.Add(names.q_norm, MakeNorm(c, c.head_dim * (all ? c.num_heads : 1)));
  k_norm_ = paths.Add(names.k_norm, MakeNorm(c, c.head_dim * (all ? c.num_kv_heads : 1)));
}

void TransformerBlock::AddMlp(PathRegister& paths) {
  const BlockConfig& c = config_;
  const BlockNames& names = c.names;
  if (c.moe.num_experts > 0) {
    const MoeOptions options{
        .activation = c.activation, .init = c.init, .residual_init = c.residual_init};
    mlp_ = paths.Add(names.mlp, std::make_shared<Moe>(c.hidden_size, c.moe, options));
    return;
  }
  const auto branch = std::make_shared<Branch>([this](const Tensor& x) { return RunMlp(x); });
  if (!names.mlp.empty()) paths.AddContainer(names.mlp, branch);
  mlp_ = branch;
  LinearOptions options{.bias = c.mlp_bias, .layout = c.weight_layout, .init = c.init};
  const auto add = [&](const std::string& name, int64_t width) {
    return paths.Add(name, std::make_shared<Linear>(c.hidden_size, width, options));
  };
  if (!c.gated_mlp) {
    options.activation = c.activation;
    options.recompute_activation = c.recompute_activations;
    up_ = add(names.up, c.intermediate_size);
  } else if (!names.gate_up.empty()) {
    gate_up_ = add(names.gate_up, 2 * c.intermediate_size);
  } else {
    gate_ = add(names.gate, c.intermediate_size);
    up_ = add(names.up, c.intermediate_size);
  }
  down_ = paths.Add(names.down, std::make_shared<Linear>(c.intermediate_size, c.hidden_size,
                                                         LinearOptions{.bias = c.mlp_bias,
                                                                       .layout = c.weight_layout,
                                                                       .to_residual = true,
                                                                       .init = c.residual_init}));
}

TransformerBlock::Norms TransformerBlock::AddNorms(PathRegister& paths,
                                                   const BranchNorms& names) const {
  const auto add = [&](const std::string& name) -> std::shared_ptr<Module> {
    return name.empty() ? nullptr : paths.Add(name, MakeNorm(config_, config_.hidden_size));
  };
  Norms norms;
  norms.before = add(names.before);
  norms.after = add(names.after);
  norms.after_add = add(names.after_add);
  return norms;
}

std::shared_ptr<Module> MakeNorm(const BlockConfig& config, int64_t dim) {
  const bool recompute = config.recompute_activations;
  if (config.norm == NormKind::kLayerNorm) {
    return std::make_shared<LayerNorm>(dim, config.norm_eps, recompute);
  }
  return std::make_shared<RmsNorm>(dim, config.norm_eps, config.norm_weight_offset, recompute);
}

Tensor TransformerBlock::Forward(const Tensor& x) {
  if (config_.parallel_residual) {
    const Tensor attention = Run(attention_, attention_norms_, x);
    const Tensor mlp = Run(mlp_, mlp_norms_, x);
    return autograd::Add(autograd::Add(x, Residual(attention)), Residual(mlp));
  }
  const Tensor h = AddTo(x, Run(attention_, attention_norms_, x), attention_norms_);
  return AddTo(h, Run(mlp_, mlp_norms_, h), mlp_norms_);
}

Tensor TransformerBlock::Run(const std::shared_ptr<Module>& branch, const Norms& norms,
                             const Tensor& x) {
  Tensor y = (*branch)(norms.before ? (*norms.before)(x) : x);
  if (drop_) y = (*drop_)(y);
  return norms.after ? (*norms.after)(y) : y;
}

Tensor TransformerBlock::AddTo(const Tensor& x, const Tensor& branch, const Norms& norms) const {
  const Tensor sum = autograd::Add(x, Residual(branch));
  return norms.after_add ? Residual((*norms.after_add)(sum)) : sum;
}

// One layer of queries, keys or values -> [B, T, heads, head_dim], normed; `norm` may be null.
Tensor TransformerBlock::Heads(Linear& projection, Module* norm, const Tensor& x) const {
  Tensor y = projection(x);
  if (config_.head_norm == HeadNorm::kAllHeads && norm != nullptr) y = (*norm)(y);
  y = core_->Heads(y);
  return config_.head_norm == HeadNorm::kPerHead && norm != nullptr ? (*norm)(y) : y;
}

// The parts of a layer of queries, keys and values. Under tensor parallelism a rank has some heads.
ops::Qkv TransformerBlock::Parts(const Tensor& qkv) const {
  const int64_t d = config_.head_dim, group = config_.num_heads / config_.num_kv_heads;
  const int64_t kv_heads = qkv.size(-1) / d / (group + 2);
  const bool by_head = config_.qkv_layout == QkvLayout::kByHead;
  const Shape shape = by_head ? Shape{qkv.size(0), qkv.size(1), kv_heads, 3 * d}
                              : Shape{qkv.size(0), qkv.size(1), (group + 2) * kv_heads, d};
  const std::vector<int64_t> sizes =
      by_head ? std::vector<int64_t>{d, d, d}
              : std::vector<int64_t>{group * kv_heads, kv_heads, kv_heads};
  const std::vector<Tensor> parts =
      autograd::Split(autograd::View(qkv, shape), sizes, by_head ? 3 : 2);
  return {parts[0], parts[1], parts[2]};
}

Tensor TransformerBlock::Rotated(const Tensor& x) const {
  return config_.has_rotary ? core_->Rotated(x, config_.rotary) : x;
}

Tensor TransformerBlock::Attend(const Tensor& x) const {
  ops::Qkv heads;
  if (qkv_ && config_.qkv_layout == QkvLayout::kSections && !config_.has_rotary) {
    return (*out_)((*core_)((*qkv_)(x)));
  }
  if (qkv_) {
    heads = Parts((*qkv_)(x));
    heads.q = Rotated(heads.q);
    heads.k = Rotated(heads.k);
  } else {
    heads.q = Rotated(Heads(*q_, q_norm_.get(), x));
    heads.k = Rotated(Heads(*k_, k_norm_.get(), x));
    heads.v = Heads(*v_, nullptr, x);
  }
  const Tensor out = core_->Attend(heads.q, heads.k, heads.v);
  return (*out_)(autograd::View(out, {out.size(0), out.size(1), out.size(2) * config_.head_dim}));
}

Tensor TransformerBlock::RunMlp(const Tensor& x) const {
  if (!config_.gated_mlp) return (*down_)((*up_)(x));
  if (gate_up_) {
    const std::vector<Tensor> halves = autograd::Split((*gate_up_)(x), 2, -1);
    return (*down_)(
        autograd::Gated(config_.activation, halves[0], halves[1], config_.recompute_activations));
  }
  const Tensor up = (*up_)(x);
  return (*down_)(
      autograd::Gated(config_.activation, (*gate_)(x), up, config_.recompute_activations));
}

}  // namespace apogee::nn
