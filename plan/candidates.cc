// SPDX-License-Identifier: Apache-2.0

#include "apogee/plan/candidates.h"

#include <algorithm>

namespace apogee::plan {
namespace {

constexpr int kMaxTp = 8;   // within a machine
constexpr int kMaxPp = 16;  // stages
constexpr int kMaxEp = 64;

std::string Text(int64_t number) { return std::to_string(number); }

// The sizes of a mesh; the rest of the ranks is data parallel.
struct MeshSizes {
  int pp = 1, tp = 1, ep = 1;
};

Candidate Hybrid(const TrainingSetup& setup, int num_ranks, const MeshSizes& mesh, int stage) {
  const auto [pp, tp, ep] = mesh;
  const bool has_ep = ep > 1;
  Candidate made{.name = has_ep ? "moe_hybrid" : "hybrid",
                 .plugin = has_ep ? "moe_hybrid" : "hybrid",
                 .num_ranks = num_ranks,
                 .pp = pp,
                 .tp = tp,
                 .ep = ep};
  if (pp > 1) {
    made.name += " pp" + Text(pp);
    made.options["pp_size"] = Text(pp);
    // One sample each: more of them leave shorter bubbles.
    made.options["num_microbatches"] = Text(setup.batch / made.dp());
  }
  if (made.dp() > 1) made.name += " dp" + Text(made.dp());
  if (has_ep) {
    made.name += " ep" + Text(ep);
    made.options["ep_size"] = Text(ep);
  }
  if (tp > 1) {
    made.name += " tp" + Text(tp);
    made.options["tp_size"] = Text(tp);
  }
  if (made.dp() > 1) made.name += " zero" + Text(stage);
  made.options["stage"] = Text(stage);
  return made;
}

// How many of the data-parallel ranks may share experts: 8 within a machine, and the most.
std::vector<int> ExpertSizes(int64_t num_experts, int dp) {
  std::vector<int> sizes;
  for (int ep = 2; ep <= kMaxEp; ep *= 2) {
    if (num_experts == 0 || num_experts % ep != 0 || dp % ep != 0) break;
    if (sizes.empty() || sizes.back() == 8) {
      sizes.push_back(ep);
    } else {
      sizes.back() = ep;
    }
  }
  return sizes;
}

// "stage = 1" of {"stage", "1"}.
std::string Assignments(const optim::OptionMap& options) {
  std::string text;
  for (const auto& [key, value] : options) {
    text += (text.empty() ? "." : ", .") + key + " = " + value;
  }
  return "{" + text + "}";
}

const char* CodeOf(Precision precision) {
  switch (precision) {
    case Precision::kF32:
      return "kF32";
    case Precision::kBf16:
      return "kBf16";
    case Precision::kFp16:
      return "kFp16";
    case Precision::kF64:
      return "kF64";
  }
  return "?";
}

}  // namespace

std::vector<int> Candidate::Roles() const {
  std::vector<int> roles;
  for (int stage = 0; stage < pp; ++stage) roles.push_back(stage * dp() * tp);
  return roles;
}

std::vector<Candidate> Candidates(const TrainingSetup& setup, int num_ranks, bool offload) {
  const optim::OptionMap states = {{"offload_states", "true"}};
  const optim::OptionMap chunks = {{"offload_optim_frac", "1"}, {"offload_param_frac", "1"}};
  const std::string with = offload ? " offload" : "";
  std::vector<Candidate> all;
  const auto add = [&](const std::string& plugin, const optim::OptionMap& offloaded) {
    all.push_back({.name = plugin + with,
                   .plugin = plugin,
                   .options = offload ? offloaded : optim::OptionMap{},
                   .num_ranks = num_ranks});
  };
  if (num_ranks == 1 && !offload) add("single", {});
  if (num_ranks > 1 && !offload) add("ddp", {});
  if (num_ranks > 1 && !offload) add("zero1", {});
  if (num_ranks > 1) add("zero2", states);
  if (num_ranks > 1 || offload) add("gemini", chunks);
  if (offload) return all;
  for (int pp = 1; pp <= std::min<int64_t>(kMaxPp, setup.num_layers); pp *= 2) {
    for (int tp = 1; tp <= kMaxTp; tp *= 2) {
      if (pp * tp == 1 || num_ranks % (pp * tp) != 0) continue;
      if (setup.num_kv_heads == 0 || setup.num_kv_heads % tp != 0) continue;
      const MeshSizes mesh{.pp = pp, .tp = tp};
      all.push_back(Hybrid(setup, num_ranks, mesh, num_ranks > pp * tp ? 1 : 0));
      if (pp == 1 && num_ranks > tp) all.push_back(Hybrid(setup, num_ranks, mesh, 3));
    }
  }
  for (int tp = 1; tp <= kMaxTp; tp *= 2) {
    if (num_ranks % tp != 0 || (tp > 1 && setup.num_kv_heads % tp != 0)) break;
    for (const int ep : ExpertSizes(setup.num_experts, num_ranks / tp)) {
      all.push_back(Hybrid(setup, num_ranks, {.tp = tp, .ep = ep}, 1));
    }
  }
  return all;
}

std::string Misfit(const Candidate& candidate, const TrainingSetup& setup) {
  const int64_t replicas = candidate.dp();
  if (setup.batch % replicas != 0) {
    return internal::Concat("batch ", setup.batch, " is not divisible by ", replicas,
                            " data-parallel ranks");
  }
  const int64_t own = setup.batch / replicas;
  if (candidate.pp > 1) {
    if (own < candidate.pp) {
      return internal::Concat("a replica has ", own, " samples for ", candidate.pp,
                              " pipeline stages; each stage needs a micro-batch");
    }
  } else if (own % setup.accumulate != 0) {
    return internal::Concat("the ", own, " samples of a data-parallel rank are not divisible by ",
                            "accumulate ", setup.accumulate);
  }
  return "";
}

std::string CodeOf(const Candidate& candidate, const TrainingSetup& setup) {
  std::string training = std::string(".precision = Precision::") + CodeOf(setup.training.precision);
  if (setup.training.max_norm > 0) {
    training += internal::Concat(", .max_norm = ", setup.training.max_norm);
  }
  std::string lines = "const TrainingOptions training{" + training + "};\n";
  optim::OptionMap options = candidate.options;
  std::string more;
  if (candidate.plugin == "single") {
    lines += "SingleRankPlugin plugin(training);\n";
  } else if (candidate.plugin == "ddp") {
    lines += "DdpPlugin plugin(world.group(), training);\n";
  } else if (candidate.plugin == "gemini") {
    if (!options.empty()) more = ", {.placement = " + Assignments(options) + "}";
    lines += "GeminiPlugin plugin(world.group(), training" + more + ");\n";
  } else if (candidate.plugin == "hybrid" || candidate.plugin == "moe_hybrid") {
    const char* kind = candidate.ep > 1 ? "MoeHybridParallelPlugin" : "HybridParallelPlugin";
    lines += kind + (" plugin(world, training, " + Assignments(options)) + ");\n";
  } else {
    options["stage"] = candidate.plugin.substr(4);
    lines += "LowLevelZeroPlugin plugin(world.group(), training, " + Assignments(options) + ");\n";
  }
  if (setup.lora) {
    std::string base;
    if (setup.lora->quantize) {
      const bool nf4 = setup.lora->quantize->kind == BlockCodeKind::kNf4;
      base =
          internal::Concat(", .quantize = {{.kind = BlockCodeKind::", nf4 ? "kNf4" : "kInt8", "}}");
    }
    lines += internal::Concat("Booster booster(plugin);\nbooster.enable_lora(model, {.rank = ",
                              setup.lora->rank, ", .alpha = ", setup.lora->alpha, base, "});\n");
  }
  return lines;
}

}  // namespace apogee::plan
