// SPDX-License-Identifier: Apache-2.0

// Replays recorded models: the logits, losses and gradients of the first batch, then AdamW steps
// with their loss curve and final weights.
#include <algorithm>
#include <cmath>
#include <memory>

#include "apogee/autograd/engine.h"
#include "apogee/nn/losses.h"
#include "apogee/nn/models/gpt2.h"
#include "apogee/nn/models/llama.h"
#include "apogee/optim/adam/adam.h"
#include "apogee/verify/cases.h"

namespace apogee::verify {
namespace {

using autograd::ParameterPtr;
using internal::Concat;

// The parameter names tell the kind of model; the configuration has its sizes.
std::unique_ptr<nn::Module> MakeModel(const GoldenCase& golden, const Json& config) {
  const auto size = [&](const char* key) { return config.at(key).get<int64_t>(); };
  if (golden.contains("param/transformer.wte.weight/init")) {
    return std::make_unique<nn::Gpt2>(
        nn::Gpt2Config{.vocab_size = size("V"),
                       .n_positions = golden.Load("param/transformer.wpe.weight/init").size(0),
                       .n_embd = size("d"),
                       .n_layer = size("L"),
                       .n_head = size("H"),
                       .layer_norm_epsilon = config.value("eps", 1e-5),
                       .tie_word_embeddings = !golden.contains("param/lm_head.weight/init")});
  }
  APOGEE_CHECK(
      golden.contains("param/model.embed_tokens.weight/init"),
      "neither a GPT-2 nor a Llama: no transformer.wte.weight, no model.embed_tokens.weight");
  return std::make_unique<nn::Llama>(
      nn::LlamaConfig{.vocab_size = size("V"),
                      .hidden_size = size("d"),
                      .intermediate_size = size("I"),
                      .num_hidden_layers = size("L"),
                      .num_attention_heads = size("H"),
                      .num_key_value_heads = config.contains("K") ? size("K") : size("H"),
                      .max_position_embeddings = std::max<int64_t>(2048, size("T")),
                      .rms_norm_eps = config.value("eps", 1e-6),
                      .rope_theta = config.value("theta", 10000.0),
                      .tie_word_embeddings = !golden.contains("param/lm_head.weight/init")});
}

class ModelReplay {
 public:
  ModelReplay(const GoldenCase& golden, DType dtype)
      : golden_(golden),
        dtype_(dtype),
        hyper_(golden.required("hyper")),
        tolerance_(golden.required("tolerance")),
        model_(MakeModel(golden, hyper_.at("config"))) {
    params_ = model_->Parameters();
    for (const ParameterPtr& p : params_) {
      p->set_value(golden.Load(Concat("param/", p->name(), "/init"), dtype));
    }
    model_->Initialize(golden.context(), {.dtype = dtype});
    CheckNames();
  }

  Comparison Run() {
    CompareFirstBatch();
    TrainAndCompare();
    return comparison_;
  }

 private:
  void CheckNames() {
    for (const auto& [entry, unused] : golden_.file().entries()) {
      if (!entry.starts_with("param/") || !entry.ends_with("/init")) continue;
      const std::string name = entry.substr(6, entry.size() - 6 - 5);
      if (model_->FindParameter(name) == nullptr) {
        comparison_.Fail(Concat("the model has no parameter \"", name, "\""));
      }
    }
  }

  void CompareFirstBatch() {
    const Tolerances logits_tolerance{tolerance_.at("logits_atol").get<double>(), 0};
    const Tensor logits = (*model_)(golden_.Load("tokens/1"));
    comparison_.Elements(logits.Detach().ToVector<double>(), golden_.Values("logits/1"),
                         logits_tolerance, "logits");
    if (golden_.contains("loss_masked/1")) {
      const Tensor masked = criterion_(logits, golden_.Load("targets_masked/1"));
      comparison_.Number(masked.Item(), golden_.Values("loss_masked/1").at(0), LossTolerance(),
                         "masked loss");
    }
    const Tensor loss = criterion_(logits, golden_.Load("targets/1"));
    comparison_.Number(loss.Item(), golden_.Values("loss/1").at(0), LossTolerance(), "loss");
    autograd::Backward(loss);
    for (const ParameterPtr& p : params_) {
      const std::string entry = Concat("grad/", p->name(), "/1");
      if (!golden_.contains(entry)) continue;
      if (!p->has_grad()) {
        comparison_.Fail(Concat("the gradient of ", p->name(), " is absent"));
        continue;
      }
      comparison_.Elements(p->grad().ToVector<double>(), golden_.Values(entry),
                           {ParamTolerance(p->name(), "grad_atol"), 0}, Concat("grad ", p->name()));
      p->zero_grad();
    }
  }

  void TrainAndCompare() {
    APOGEE_CHECK(hyper_.value("optimizer", "AdamW") == "AdamW",
                 "the recorded optimizer is not AdamW");
    optim::AdamWOptions options{.lr = hyper_.at("lr").get<double>(),
                                .eps = hyper_.value("eps", 1e-8),
                                .weight_decay = hyper_.value("weight_decay", 0.01)};
    if (hyper_.contains("betas")) options.betas = hyper_["betas"].get<std::array<double, 2>>();
    optim::AdamW optimizer(params_, options);
    const std::vector<double> curve = golden_.Values("loss_curve");
    const std::vector<double> exact = golden_.contains("ref64/loss_curve")
                                          ? golden_.Values("ref64/loss_curve")
                                          : std::vector<double>();
    const int64_t steps = golden_.steps();
    for (int64_t step = 1; step <= steps; ++step) {
      const Tensor logits = (*model_)(golden_.Load(Concat("tokens/", step)));
      const Tensor loss = criterion_(logits, golden_.Load(Concat("targets/", step)));
      const auto k = static_cast<size_t>(step - 1);
      comparison_.Number(loss.Item(), curve.at(k), LossTolerance(), Concat("loss, step ", step));
      if (dtype_ == DType::kF64 && !exact.empty()) {
        comparison_.Number(loss.Item(), exact.at(k), LossTolerance(),
                           Concat("float64 loss, step ", step));
      }
      autograd::Backward(loss);
      optimizer.step();
      optimizer.zero_grad();
    }
    for (const ParameterPtr& p : params_) CompareFinal(*p, steps);
  }

  void CompareFinal(const autograd::Parameter& parameter, int64_t steps) {
    const std::string& name = parameter.name();
    const std::string entry = Concat("param/", name, "/", steps);
    if (!golden_.contains(entry)) return;
    std::vector<double> values = parameter.data().ToVector<double>();
    std::vector<double> golden = golden_.Values(entry);
    if (name.ends_with("attn.c_attn.bias")) {
      // Adding a constant to all keys of a head shifts its scores equally, which softmax ignores.
      // The gradient of the middle third is therefore rounding noise, which Adam turns into steps
      // of size lr.
      for (std::vector<double>* x : {&values, &golden}) {
        const auto third = static_cast<std::ptrdiff_t>(x->size() / 3);
        x->erase(x->begin() + third, x->begin() + 2 * third);
      }
    }
    comparison_.Elements(values, golden, {ParamTolerance(name, "final_atol"), 0},
                         Concat("param ", name, ", step ", steps));
  }

  Tolerances LossTolerance() const { return {tolerance_.at("loss_atol").get<double>(), 0}; }
  double ParamTolerance(const std::string& name, const char* key) const {
    return tolerance_.at("per_param").at(name).at(key).get<double>();
  }

  const GoldenCase& golden_;
  DType dtype_;
  Json hyper_, tolerance_;
  std::unique_ptr<nn::Module> model_;
  std::vector<ParameterPtr> params_;
  nn::CrossEntropyLoss criterion_;
  Comparison comparison_;
};

}  // namespace

Comparison ReplayModel(const GoldenCase& golden, DType dtype) {
  return ModelReplay(golden, dtype).Run();
}

}  // namespace apogee::verify
