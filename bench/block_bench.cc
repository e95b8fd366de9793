// SPDX-License-Identifier: Apache-2.0

// How much longer a block of each family takes than its matrix products and its attention alone:
// forward and backward, with the gradients of the input and of all weights.
//
//   block_bench --threads 1
//
//   family    block ms  products ms  attention ms  ratio (min, max)
//   llama         43.06        38.33          2.92   1.03 (1.01, 1.19)
//
// A block of 8 heads reads [batch, tokens, hidden]. It is made from a config.json, as a folder has
// it. `products` are the block's linear layers, each alone, without bias and activation.
// `attention` is the fused kernel with the block's window and soft cap. The three take turns; each
// column is a median, and the ratio is the median of the turns' block / (products + attention).
// Threads spin while they wait for each other, so there must be a free core for each.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "apogee/autograd/engine.h"
#include "apogee/autograd/functions/attention.h"
#include "apogee/autograd/functions/linear.h"
#include "apogee/autograd/parameter.h"
#include "apogee/bench/median.h"
#include "apogee/nn/attention.h"
#include "apogee/nn/chain.h"
#include "apogee/nn/layers.h"
#include "apogee/nn/models/hf_model.h"
#include "apogee/tensor/cpu/cpu_context.h"
#include "apogee/tensor/ops/nn.h"

using namespace apogee;

namespace {

using apogee::bench::Median;

using Clock = std::chrono::steady_clock;

constexpr int64_t kHeads = 8;

struct Settings {
  int threads = 2;
  std::string dtype = "f32", only;
  int turns = 15;
  int64_t batch = 2, tokens = 256, hidden = 512;
  bool quick = false;
};

struct Family {
  const char* name;
  int64_t kv_heads;
  const char* fields;  // of config.json, beside the sizes
};

const Family kFamilies[] = {
    {"llama", 8, R"("model_type": "llama")"},
    {"llama31", 4, R"("model_type": "llama", "rope_theta": 500000.0, "rope_scaling": {
       "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
       "original_max_position_embeddings": 128})"},
    {"mistral", 4, R"("model_type": "mistral", "sliding_window": 128)"},
    {"qwen2", 4, R"("model_type": "qwen2")"},
    {"qwen3", 4, R"("model_type": "qwen3", "head_dim": 64)"},
    {"gemma", 4, R"("model_type": "gemma", "head_dim": 64)"},
    {"gemma2", 4, R"("model_type": "gemma2", "head_dim": 64, "query_pre_attn_scalar": 64,
       "sliding_window": 128)"},
    {"phi3", 4, R"("model_type": "phi3")"},
    {"olmo2", 4, R"("model_type": "olmo2")"},
    {"gpt_neox", 8, R"("model_type": "gpt_neox", "rotary_pct": 0.25)"},
    {"opt", 8, R"("model_type": "opt", "dropout": 0.0)"},
    {"gpt2", 8, R"("model_type": "gpt2", "resid_pdrop": 0.0, "embd_pdrop": 0.0,
       "attn_pdrop": 0.0)"},
    {"bert", 8, R"("model_type": "bert", "hidden_dropout_prob": 0.0,
       "attention_probs_dropout_prob": 0.0)"},
    {"vit", 8, R"("model_type": "vit", "image_size": 256, "patch_size": 16)"}};

// A gated MLP has three matrices of 8/3 of the width, as in Llama; another one two of four times.
std::string ConfigOf(const Family& family, const Settings& settings) {
  const std::string fields = family.fields;
  bool gated = true, grouped = true;
  for (const char* type : {"gpt_neox", "opt", "gpt2", "bert", "vit"}) {
    if (fields.find("\"" + std::string(type) + "\"") != std::string::npos) gated = grouped = false;
  }
  const int64_t hidden = settings.hidden;
  const std::string wide = std::to_string(gated ? (8 * hidden / 3 + 15) / 16 * 16 : 4 * hidden);
  std::string text = R"({"vocab_size": 64, "num_hidden_layers": 1, "hidden_size": )" +
                     std::to_string(hidden) + R"(, "num_attention_heads": )" +
                     std::to_string(kHeads) + R"(, "max_position_embeddings": )" +
                     std::to_string(settings.tokens);
  text +=
      std::string(", \"") + (fields.find("\"opt\"") != std::string::npos    ? "ffn_dim"
                             : fields.find("\"gpt2\"") != std::string::npos ? "n_inner"
                                                                            : "intermediate_size");
  text += "\": " + wide;
  if (grouped) text += R"(, "num_key_value_heads": )" + std::to_string(family.kv_heads);
  return text + R"(, "pad_token_id": null, )" + fields + "}";
}

Tensor Normal(const Shape& shape, const std::string& name, DType dtype, const ContextPtr& context) {
  const Tensor x = Tensor::Empty(shape, DType::kF32, context);
  ops::FillNormal(x, 0, 1, MakeKey(1, name));
  return x.To(dtype);
}

// One forward and backward, to be timed; gradients of the parameters are absent at first.
struct Work {
  std::vector<nn::ParameterPtr> parameters;
  std::function<Tensor()> forward;
  Tensor grad;  // of the result

  double Seconds() const {
    for (const nn::ParameterPtr& parameter : parameters) parameter->zero_grad();
    const Clock::time_point start = Clock::now();
    autograd::Backward(forward(), {.grad = grad});
    return std::chrono::duration<double>(Clock::now() - start).count();
  }
};

nn::ParameterPtr Leaf(const std::string& name, const Tensor& value) {
  return std::make_shared<autograd::Parameter>(name, value);
}

Work ProductOf(const nn::Linear& layer, const Settings& settings, const ContextPtr& context) {
  const DType dtype = DTypeFromName(settings.dtype);
  const Shape& weight = layer.weight()->shape();
  const bool out_in = layer.layout() == nn::WeightLayout::kOutIn;
  const int64_t in = weight[out_in ? 1 : 0], out = weight[out_in ? 0 : 1];
  const Shape rows{settings.batch, settings.tokens};
  const auto x = Leaf("x", Normal({rows[0], rows[1], in}, "x", dtype, context));
  const auto w = Leaf("weight", Normal(weight, "weight", dtype, context));
  return {.parameters = {x, w},
          .forward =
              [x, w, layout = layer.layout()] {
                return autograd::Linear(x->value(), w->value(), Tensor(), {.layout = layout});
              },
          .grad = Normal({rows[0], rows[1], out}, "grad", dtype, context)};
}

Work AttentionOf(const nn::AttentionCore& core, int64_t kv_heads, const Settings& settings,
                 const ContextPtr& context) {
  const DType dtype = DTypeFromName(settings.dtype);
  const int64_t d = core.options().head_dim;
  const auto of = [&](const std::string& name, int64_t heads) {
    return Normal({settings.batch, settings.tokens, heads, d}, name, dtype, context);
  };
  const auto q = Leaf("q", of("q", kHeads)), k = Leaf("k", of("k", kv_heads)),
             v = Leaf("v", of("v", kv_heads));
  return {.parameters = {q, k, v},
          .forward =
              [q, k, v, options = nn::KernelOptionsOf(core.options())] {
                return autograd::Attention(q->value(), k->value(), v->value(), options);
              },
          .grad = of("grad", kHeads)};
}

void Measure(const Family& family, const Settings& settings) {
  const ContextPtr context = CpuContext({.num_threads = settings.threads});
  const DType dtype = DTypeFromName(settings.dtype);
  const nn::HfModel hf = ValueOrThrow(
      nn::MakeHfModel(ConfigOf(family, settings), family.name, [](const std::string&) {}));
  hf.module->Initialize(context, {.seed = 1, .dtype = dtype});
  nn::Module* const block = dynamic_cast<nn::Chain&>(*hf.module).Pieces().at(1).modules.at(0);

  const Shape shape{settings.batch, settings.tokens, settings.hidden};
  const auto x = Leaf("x", Normal(shape, "x", dtype, context));
  Work whole{.parameters = block->Parameters(),
             .forward = [&] { return (*block)(x->value()); },
             .grad = Normal(shape, "grad", dtype, context)};
  whole.parameters.push_back(x);
  std::vector<Work> products, attention;
  for (nn::Module* module : block->Modules()) {
    if (const auto* linear = dynamic_cast<nn::Linear*>(module)) {
      products.push_back(ProductOf(*linear, settings, context));
    } else if (const auto* core = dynamic_cast<nn::AttentionCore*>(module)) {
      attention.push_back(AttentionOf(*core, family.kv_heads, settings, context));
    }
  }
  const auto sum = [](const std::vector<Work>& works) {
    double seconds = 0;
    for (const Work& work : works) seconds += work.Seconds();
    return seconds;
  };
  std::vector<double> of_block, of_products, of_attention, ratios;
  constexpr int kWarmup = 2;
  for (int turn = 0; turn < settings.turns + kWarmup; ++turn) {
    const double b = whole.Seconds(), p = sum(products), a = sum(attention);
    if (turn < kWarmup) continue;
    of_block.push_back(1e3 * b);
    of_products.push_back(1e3 * p);
    of_attention.push_back(1e3 * a);
    ratios.push_back(b / (p + a));
  }
  const auto [least, most] = std::ranges::minmax(ratios);
  std::printf("%-9s %9.2f  %11.2f  %12.2f  %5.2f (%.2f, %.2f)\n", family.name, Median(of_block),
              Median(of_products), Median(of_attention), Median(ratios), least, most);
}

}  // namespace

int main(int argc, char** argv) {
  Settings settings;
  CLI::App app("Time of a block of each family beside its products and attention alone.");
  app.add_option("--threads", settings.threads, "CPU threads")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  app.add_option("--dtype", settings.dtype, "Of weights and activations")
      ->check(CLI::IsMember({"f32", "bf16", "f64"}))
      ->capture_default_str();
  app.add_option("--only", settings.only, "One family");
  app.add_option("--turns", settings.turns, "Timed turns")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--batch", settings.batch, "Samples")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--tokens", settings.tokens, "Tokens of a sample")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--hidden", settings.hidden, "Features, a multiple of 16")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_flag("--quick", settings.quick, "Tiny blocks and one turn, to see that it runs");
  CLI11_PARSE(app, argc, argv);
  if (settings.quick) settings.turns = 1, settings.tokens = 16, settings.hidden = 64;
  try {
    std::printf("%-9s %9s  %11s  %12s  %s\n", "family", "block ms", "products ms", "attention ms",
                "ratio (min, max)");
    for (const Family& family : kFamilies) {
      if (settings.only.empty() || settings.only == family.name) Measure(family, settings);
    }
  } catch (const std::exception& error) {
    std::fprintf(stderr, "block_bench: %s\n", error.what());
    return 1;
  }
  return 0;
}
