// SPDX-License-Identifier: Apache-2.0

// Replays recorded trajectories of Muon and NorMuon, and calls of Newton-Schulz alone.
#include "apogee/optim/orthogonal/newton_schulz.h"
#include "apogee/verify/cases.h"
#include "apogee/verify/muon_values.h"
#include "apogee/verify/option_text.h"

namespace apogee::verify {
namespace {

using internal::Concat;

Comparison ReplayCalls(const GoldenCase& golden, DType dtype) {
  Comparison comparison;
  int index = 0;
  for (const Json& call : golden.required("calls")) {
    const std::string name = Concat("call", index++);
    std::string text;
    for (const Json& part : call.at("coefficients")) {
      text += (text.empty() ? "" : ",") + OptionText(part);
    }
    const std::string norm = call.at("norm").get<std::string>();
    const optim::NewtonSchulz settings{.coefficients = ValueOrThrow(optim::ParseCoefficients(
                                           text, call.at("steps").get<int64_t>())),
                                       .eps = call.at("eps").get<double>(),
                                       .clamps_norm = norm.starts_with("max"),
                                       .norm_scale = norm.starts_with("1.02") ? 1.02 : 1};
    const Tensor in = golden.Load(name + "/in", dtype);
    const int64_t rows = in.size(-2), cols = in.size(-1), numel = rows * cols;
    std::vector<double> out;
    for (int64_t first = 0; first < in.numel(); first += numel) {  // a batch of matrices
      const Tensor own = in.View({in.numel()}).Slice(0, first, numel).View({rows, cols});
      const auto values = optim::Orthogonalized(own, settings).ToVector<double>();
      out.insert(out.end(), values.begin(), values.end());
    }
    const bool exact = dtype == DType::kF64;
    comparison.Elements(out, golden.Values((exact ? "ref64/" : "") + name + "/out"),
                        {exact ? 1e-12 : call.at("atol").get<double>(), 0}, name);
  }
  return comparison;
}

}  // namespace

std::string MuonPreset(const std::string& recorded, const Json& hyper) {
  if (recorded == "normuon") return "normuon";
  if (hyper.contains("mu")) return "muon_dion";
  if (hyper.contains("wd")) return "muon_moonlight";
  return hyper.contains("ns_coefficients") ? "muon_torch" : "muon";
}

Json MuonValues(const Json& recorded) {
  static const auto& names =
      *new std::map<std::string, std::string>{{"adamw_betas", "adam_betas"},
                                              {"adamw_eps", "adam_eps"},
                                              {"betas", "adam_betas"},
                                              {"cautious_wd", "cautious_decay"},
                                              {"epsilon", "ns_eps"},
                                              {"flatten", ""},
                                              {"mu", "momentum"},
                                              {"muon_beta2", "beta2"},
                                              {"ns_coefficients", "coefficients"},
                                              {"split_sizes", "sections"},
                                              {"use_muon", "orthogonalize"},
                                              {"use_polar_express", ""},
                                              {"wd", "weight_decay"}};
  static const auto& scales =
      *new std::map<std::string, std::string>{{"original", "keller"},
                                              {"match_rms_adamw", "rms"},
                                              {"rms_norm", "rms"},
                                              {"spectral_unclamped", "spectral"},
                                              {"spectral_norm", "spectral"}};
  Json values;
  for (const auto& [key, value] : recorded.items()) {
    const auto known = names.find(key);
    const std::string name = known == names.end() ? key : known->second;
    if (key == "adjust_lr_fn" || key == "adjust_lr") {
      if (!value.is_null()) values["update_scale"] = scales.at(value.get<std::string>());
      if (value.is_null() && key == "adjust_lr") values["update_scale"] = "none";
    } else if (key == "algorithm") {
      values["orthogonalize"] = value == "muon";
    } else if (key == "eps") {
      const bool of_adam = recorded.contains("use_muon") && !recorded.at("use_muon").get<bool>();
      values[of_adam ? "adam_eps" : "ns_eps"] = value;
    } else if (key == "flatten") {
      values["batch_convolutions"] = !value.get<bool>();
    } else if (key == "use_polar_express") {
      if (value.get<bool>()) continue;
      values["coefficients"] = "quintic";
      values["norm_scale"] = 1;
    } else if (!name.empty()) {
      values[name] = value;
    }
  }
  return values;
}

Comparison ReplayMuon(const GoldenCase& golden, DType dtype) {
  return golden.contains("call0/in") ? ReplayCalls(golden, dtype) : ReplayOptimizer(golden, dtype);
}

}  // namespace apogee::verify
