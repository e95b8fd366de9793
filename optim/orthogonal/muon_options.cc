// SPDX-License-Identifier: Apache-2.0

// The options of Muon and its presets.
#include <algorithm>
#include <array>
#include <cmath>

#include "apogee/core/text/text.h"
#include "apogee/optim/orthogonal/muon.h"
#include "apogee/optim/orthogonal/newton_schulz.h"

namespace apogee::optim {
namespace {

constexpr std::array kScales = {"keller", "rms", "spectral", "none"};

}  // namespace

std::vector<OptionField<MuonOptions>> MuonOptions::Fields() {
  using O = MuonOptions;
  using enum OptionCheck;
  return JoinFields<O>(
      {{{"lr", &O::lr, kAtLeastZero, "learning rate"},
        {"momentum", &O::momentum, kDecay, "decay rate of the momentum"},
        {"nesterov", &O::nesterov, {}, "looks ahead by one momentum step"},
        {"average", &O::average, {}, "the momentum is an average; false: a sum"},
        {"weight_decay", &O::weight_decay, kAtLeastZero,
         "decoupled: shrinks the weights by lr * it"},
        {"cautious_decay",
         &O::cautious_decay,
         {},
         "decays only where the update does not oppose it"},
        {"coefficients",
         &O::coefficients,
         {},
         "simple, quintic, polar_express, cans, deepseek4, or triples of numbers"},
        {"ns_steps", &O::ns_steps, kAtLeastOne, "steps of Newton-Schulz"},
        {"ns_eps", &O::ns_eps, kPositive, "added to the norm of the momentum"},
        {"clamps_norm", &O::clamps_norm, {}, "the norm is at least ns_eps, which is not added"},
        {"norm_scale", &O::norm_scale, kPositive, "multiplies the norm"},
        {"ns_bf16", &O::ns_bf16, {}, "iterates in bf16; updates change by 1 to 4 %"},
        {"update_scale", &O::update_scale, {}, "of the update: keller, rms, spectral or none"},
        {"normalize_rows", &O::normalize_rows, {}, "NorMuon: divides rows by their mean size"},
        {"beta2", &O::beta2, kDecay, "decay rate of NorMuon's mean squares"}},
       MatrixFields<O>()});
}

void MuonOptions::Check(OptionProblems& problems) const {
  if (std::ranges::find(kScales, update_scale) == kScales.end()) {
    problems.Add("update_scale: " +
                 UnknownName("scale", update_scale, {kScales.begin(), kScales.end()}));
  }
  const auto parsed = ParseCoefficients(coefficients, ns_steps);
  if (!parsed.ok()) problems.Add(Message(parsed.status()));
  if (clamps_norm && norm_scale != 1) {
    problems.Add("norm_scale has no effect with clamps_norm; leave one of the two out");
  }
}

NewtonSchulz MuonOptions::Iteration() const {
  return {.coefficients = ValueOrThrow(ParseCoefficients(coefficients, ns_steps)),
          .eps = ns_eps,
          .clamps_norm = clamps_norm,
          .norm_scale = norm_scale,
          .bf16 = ns_bf16};
}

double MuonOptions::ScaleOf(int64_t rows, int64_t cols) const {
  const auto m = static_cast<double>(rows), n = static_cast<double>(cols);
  if (update_scale == "rms") return 0.2 * std::sqrt(std::max(m, n));
  if (update_scale == "spectral") return std::sqrt(m / n);
  return update_scale == "keller" ? std::sqrt(std::max(1.0, m / n)) : 1;
}

MuonOptions MuonOptions::Torch() { return {.lr = 1e-3, .weight_decay = 0.1, .clamps_norm = true}; }

MuonOptions MuonOptions::Moonlight() {
  return {.lr = 1e-3,
          .average = false,
          .weight_decay = 0.1,
          .update_scale = "rms",
          .adam_scale = 1,
          .adam_hf_style = true};
}

MuonOptions MuonOptions::DeepSeek4() {
  MuonOptions options = Moonlight();
  options.coefficients = "deepseek4";
  options.ns_steps = 10;
  return options;
}

MuonOptions MuonOptions::Dion() {
  return {.lr = 0.01,
          .nesterov = false,
          .average = false,
          .weight_decay = 0.01,
          .coefficients = "polar_express",
          .ns_eps = 1e-8,
          .norm_scale = 1.02,
          .update_scale = "spectral",
          .batch_convolutions = true};
}

MuonOptions MuonOptions::NorMuon() {
  MuonOptions options = Dion();
  options.normalize_rows = true;
  return options;
}

}  // namespace apogee::optim
