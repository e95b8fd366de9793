// SPDX-License-Identifier: Apache-2.0

#include "apogee/nn/moe/moe.h"

#include <cmath>
#include <utility>

#include "apogee/autograd/functions/activation.h"
#include "apogee/autograd/functions/arithmetic.h"
#include "apogee/autograd/functions/embedding.h"
#include "apogee/autograd/functions/grouped.h"
#include "apogee/autograd/functions/shape.h"
#include "apogee/autograd/grad_mode.h"
#include "apogee/autograd/recompute.h"
#include "apogee/nn/models/transformer/path_register.h"
#include "apogee/nn/moe/experts.h"
#include "apogee/nn/moe/router.h"

namespace apogee::nn {

class Moe::SharedExpert : public Module {
 public:
  SharedExpert(int64_t hidden, const MoeConfig& config, const MoeOptions& o)
      : activation_(o.activation) {
    const MoeNames& names = config.names;
    const LinearOptions in{.bias = false, .init = o.init};
    const LinearOptions out{.bias = false, .to_residual = true, .init = o.residual_init};
    gate_ = Register(names.expert_gate, std::make_shared<Linear>(hidden, config.shared_size, in));
    up_ = Register(names.expert_up, std::make_shared<Linear>(hidden, config.shared_size, in));
    down_ = Register(names.expert_down, std::make_shared<Linear>(config.shared_size, hidden, out));
  }
  Tensor Forward(const Tensor& x) override {
    const Tensor up = (*up_)(x);
    return (*down_)(autograd::Gated(activation_, (*gate_)(x), up));
  }

 private:
  Activation activation_;
  std::shared_ptr<Linear> gate_, up_, down_;
};

Moe::Moe(int64_t hidden_size, const MoeConfig& config, const MoeOptions& options)
    : config_(config) {
  const std::string problems = MoeProblems(config);
  APOGEE_CHECK(problems.empty(), "mixture of experts: invalid options:", problems);
  PathRegister paths([this](const std::string& name, const std::shared_ptr<Module>& child) {
    Register(name, child);
  });
  const MoeNames& names = config.names;
  gate_ = paths.Add(names.gate, std::make_shared<MoeRouter>(hidden_size, config, options.init));
  experts_ = paths.Add(names.experts, std::make_shared<Experts>(ExpertsOptions{
                                          .num_experts = config.num_experts,
                                          .hidden_size = hidden_size,
                                          .intermediate_size = config.intermediate_size,
                                          .activation = options.activation,
                                          .names = names,
                                          .init = options.init,
                                          .residual_init = options.residual_init}));
  if (config.shared_size == 0) return;
  shared_ = paths.Add(names.shared, std::make_shared<SharedExpert>(hidden_size, config, options));
  if (!config.shared_gate) return;
  shared_gate_ = paths.Add(
      names.shared_gate,
      std::make_shared<Linear>(hidden_size, 1, LinearOptions{.bias = false, .init = options.init}));
}

Moe::~Moe() = default;

bool Moe::has_loss() const {
  return config_.balance != BalanceLoss::kNone || config_.z_coefficient > 0;
}

bool Moe::sums_over_batch() const {
  return has_loss() || config_.choice_bias || config_.capacity_factor > 0;
}

const ParameterPtr& Moe::choice_bias() const { return gate_->bias(); }

std::vector<int64_t> Moe::TakeChoices() {
  std::vector<int64_t> choices = std::exchange(choices_, {});
  choices.resize(static_cast<size_t>(config_.num_experts));
  return choices;
}

int64_t Moe::Capacity(int64_t num_tokens) const {
  if (config_.capacity_factor == 0) return 0;
  APOGEE_CHECK(!shares_batch(), "mixture of experts \"", full_name(), "\": capacity_factor ",
               config_.capacity_factor,
               " drops tokens by their order in the whole micro-batch, which several data-parallel "
               "ranks share; leave it out, so that no token is dropped");
  const double even =
      static_cast<double>(num_tokens * config_.top_k) / static_cast<double>(config_.num_experts);
  return static_cast<int64_t>(std::ceil(config_.capacity_factor * even));
}

Tensor Moe::Forward(const Tensor& x) {
  APOGEE_CHECK(x.rank() >= 2, "mixture of experts \"", full_name(), "\": needs [.., hidden], got ",
               x.shape());
  const int64_t hidden = x.size(-1);
  const Tensor rows = autograd::View(autograd::Contiguous(x), {x.numel() / hidden, hidden});
  const Tensor y = AddShared(RunExperts(rows, x.rank() > 2 ? x.size(0) : 1), rows);
  return autograd::View(y, x.shape());
}

// x [T, hidden] -> the same, in the dtype of the experts' results.
Tensor Moe::RunExperts(const Tensor& x, int64_t num_sequences) {
  Routing routing = gate_->Route(x);
  const RowPlan plan = SortByExpert(routing.chosen, gate_->rule(), Capacity(x.size(0)));
  if (!autograd::IsRecomputing()) {
    if (config_.choice_bias && is_training()) {
      choices_.resize(static_cast<size_t>(config_.num_experts));
      for (const int64_t expert : routing.chosen) ++choices_[static_cast<size_t>(expert)];
    }
    record_ = {
        .chosen = std::move(routing.chosen), .counts = plan.counts, .num_sequences = num_sequences};
    if (has_loss() || keeps_logits_) {
      record_.logits = routing.logits;
      record_.scores = routing.scores;
    }
  }
  const auto ids = [&](const std::vector<int64_t>& values) {
    return Tensor::FromVector<int64_t>(values, {static_cast<int64_t>(values.size())}, x.context());
  };
  const Tensor tokens = ids(plan.tokens);
  const auto run = [this, counts = plan.counts](const Tensor& rows) {
    return experts_->Run(rows, counts);
  };
  const Tensor rows = autograd::TakeRows(x, tokens);
  const Tensor y = config_.recompute ? autograd::Recompute(run, rows) : run(rows);
  const Tensor weights = autograd::IndexSelect(routing.weights, 0, ids(plan.choices));
  return autograd::WeightedSum(y, weights, tokens, x.size(0));
}

// y, and the result of the shared expert, in the dtype of a block's result.
Tensor Moe::AddShared(const Tensor& y, const Tensor& x) const {
  Tensor sum = y;
  if (shared_ != nullptr) {
    Tensor shared = autograd::Cast((*shared_)(x), y.dtype());
    if (shared_gate_ != nullptr) {
      const Tensor gate = autograd::Sigmoid((*shared_gate_)(x));
      shared = autograd::Mul(shared, autograd::Cast(gate, y.dtype()));
    }
    sum = autograd::Add(y, shared);
  }
  return autograd::Cast(sum, residual_dtype().value_or(x.dtype()));
}

Moe::Record Moe::TakeRecord() { return std::exchange(record_, {}); }

std::vector<double> Moe::SumOverRanks(const std::vector<double>& values) const {
  const autograd::NoGradGuard no_grad;
  return SumOverBatch(InF64(values)).ToVector<double>();
}

std::vector<double> Moe::SumOverSequenceRanks(const std::vector<double>& values) const {
  return SumOverSequence(InF64(values)).ToVector<double>();
}

Tensor Moe::InF64(const std::vector<double>& values) const {
  return Tensor::FromVector<double>(values, {static_cast<int64_t>(values.size())},
                                    Parameters()[0]->context(), DType::kF64);
}

std::string MoeText(const MoeConfig& c) {
  return internal::Concat(
      "top_k ", c.top_k, ", ", c.score == RouterScore::kSoftmax ? "softmax" : "sigmoid",
      c.normalise ? ", normalised" : "", ", scale ", ConfigText(c.scale), ", groups ", c.top_groups,
      " of ", c.num_groups, c.capacity_factor > 0 ? ", capacity " : "",
      c.capacity_factor > 0 ? ConfigText(c.capacity_factor) : "");
}

void Moe::DescribeConfig(ConfigTexts& texts) const { texts.function["moe"] = MoeText(config_); }

std::vector<Moe*> MoeLayers(Module& model) {
  std::vector<Moe*> layers;
  for (Module* module : model.Modules()) {
    if (auto* moe = dynamic_cast<Moe*>(module)) layers.push_back(moe);
  }
  return layers;
}

}  // namespace apogee::nn
