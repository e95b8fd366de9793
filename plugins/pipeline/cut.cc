// SPDX-License-Identifier: Apache-2.0

#include "apogee/plugins/pipeline/cut.h"

#include <algorithm>
#include <chrono>
#include <iterator>
#include <limits>
#include <numeric>

#include "apogee/autograd/grad_mode.h"

namespace apogee::pipeline {
namespace {

std::vector<double> DeclaredCosts(nn::Chain& model) {
  std::vector<double> costs;
  for (const nn::Piece& piece : model.Pieces()) {
    double cost = piece.cost;
    if (cost == 0) {
      for (const nn::ParameterPtr& parameter : ParametersOf(piece)) {
        cost += static_cast<double>(parameter->shape().numel());
      }
    }
    costs.push_back(cost);
  }
  return costs;
}

std::string Count(size_t n, const char* what) { return std::to_string(n) + " " + what; }

}  // namespace

std::vector<int> BalancedCut(std::span<const double> costs, int parts) {
  const size_t n = costs.size(), k = static_cast<size_t>(parts);
  APOGEE_CHECK(parts >= 1 && n >= k, "pipeline: ", n, " pieces cannot be cut into ", parts,
               " parts");
  std::vector<double> before(n + 1, 0);
  std::partial_sum(costs.begin(), costs.end(), before.begin() + 1);
  // worst[j][i]: the cost of the most expensive of j parts of the first i pieces, in the best cut.
  const double none = std::numeric_limits<double>::infinity();
  std::vector<std::vector<double>> worst(k + 1, std::vector<double>(n + 1, none));
  worst[0][0] = 0;
  for (size_t j = 1; j <= k; ++j) {
    for (size_t i = j; i <= n; ++i) {
      for (size_t from = j - 1; from < i; ++from) {
        const double cost = std::max(worst[j - 1][from], before[i] - before[from]);
        worst[j][i] = std::min(worst[j][i], cost);
      }
    }
  }
  // From the end: makes each part as long as the best cut allows.
  std::vector<int> begin(k + 1, static_cast<int>(n));
  size_t end = n;
  for (size_t j = k; j > 0; --j) {
    size_t from = j - 1;
    while (std::max(worst[j - 1][from], before[end] - before[from]) > worst[k][n]) ++from;
    begin[j - 1] = static_cast<int>(from);
    end = from;
  }
  return begin;
}

std::vector<std::string> CutProblems(nn::Module& model, const PipelineShape& shape,
                                     const CutOptions& options) {
  auto* chain = dynamic_cast<nn::Chain*>(&model);
  if (chain == nullptr) {
    return {
        "the model is not an nn::Chain, so it does not say where to cut it; derive it from "
        "nn::Chain (nn/chain.h), as nn::Gpt2, nn::Llama and nn::Mlp are"};
  }
  std::vector<std::string> problems;
  const size_t n = chain->Pieces().size(), parts = static_cast<size_t>(shape.num_parts());
  if (n < parts) {
    problems.push_back("the model has " + Count(n, "pieces") + ", which cannot be cut into " +
                       Count(parts, "parts") + " (pp_size " + std::to_string(shape.num_stages) +
                       " x num_model_chunks " + std::to_string(shape.num_chunks) + ")");
  }
  if (!options.piece_costs.empty()) {
    if (options.piece_costs.size() != n) {
      problems.push_back("piece_costs has " + Count(options.piece_costs.size(), "numbers") +
                         ", but the model has " + Count(n, "pieces"));
    }
    if (!std::ranges::all_of(options.piece_costs, [](double cost) { return cost >= 0; })) {
      problems.push_back("piece_costs must not be negative or NaN");
    }
  }
  if (options.pieces_per_part.empty()) return problems;
  const int sum =
      std::accumulate(options.pieces_per_part.begin(), options.pieces_per_part.end(), 0);
  const bool positive =
      std::ranges::all_of(options.pieces_per_part, [](int count) { return count >= 1; });
  if (options.pieces_per_part.size() != parts || sum != static_cast<int>(n) || !positive) {
    problems.push_back("pieces_per_part has " + Count(options.pieces_per_part.size(), "numbers") +
                       " with the sum " + std::to_string(sum) + ", and must have " +
                       Count(parts, "positive ones") + " with the sum " + std::to_string(n) +
                       ", the pieces of the model");
  }
  return problems;
}

Cut::Cut(nn::Chain& model, const PipelineShape& shape, const CutOptions& options) : model_(model) {
  if (!options.pieces_per_part.empty()) {
    begin_.push_back(0);
    for (const int count : options.pieces_per_part) begin_.push_back(begin_.back() + count);
  } else {
    begin_ = BalancedCut(options.piece_costs.empty() ? DeclaredCosts(model) : options.piece_costs,
                         shape.num_parts());
  }
  for (int part = 0; part < shape.num_parts(); ++part) {
    const int stage = shape.StageOf(part);
    for (const nn::Piece& piece : Pieces(part)) {
      std::vector<nn::ParameterPtr> held = ParametersOf(piece);
      for (const nn::Module* module : piece.modules) {
        std::ranges::move(module->Buffers(), std::back_inserter(held));
      }
      for (const nn::ParameterPtr& parameter : held) {
        std::vector<int>& holders = holders_[parameter.get()];
        if (std::ranges::find(holders, stage) == holders.end()) holders.push_back(stage);
        std::ranges::sort(holders);
      }
    }
  }
  std::vector<nn::ParameterPtr> all = model.Parameters();
  std::ranges::move(model.Buffers(), std::back_inserter(all));
  for (const nn::ParameterPtr& parameter : all) {
    std::vector<int>& holders = holders_[parameter.get()];
    if (holders.empty()) holders.push_back(0);
  }
}

std::span<const nn::Piece> Cut::Pieces(int part) const {
  const auto index = static_cast<size_t>(part);
  const auto first = static_cast<size_t>(begin_[index]);
  return std::span(model_.Pieces()).subspan(first, static_cast<size_t>(begin_[index + 1]) - first);
}

std::vector<double> MeasurePieceCosts(nn::Chain& model, const Tensor& input, int repeats) {
  using Clock = std::chrono::steady_clock;
  const autograd::NoGradGuard no_grad;
  const Generator before = model.generator();
  std::vector<Tensor> buffers;  // runs update the averages of norms
  for (const nn::ParameterPtr& buffer : model.Buffers()) buffers.push_back(buffer->data().Clone());
  std::vector<double> costs(model.Pieces().size(), std::numeric_limits<double>::infinity());
  for (int repeat = 0; repeat < repeats; ++repeat) {
    Tensor x = input;
    for (size_t i = 0; i < costs.size(); ++i) {
      const Clock::time_point begin = Clock::now();
      x = model.Pieces()[i].forward(x);
      costs[i] = std::min(costs[i], std::chrono::duration<double>(Clock::now() - begin).count());
    }
  }
  model.generator() = before;
  for (size_t i = 0; i < buffers.size(); ++i) model.Buffers()[i]->data().CopyFrom(buffers[i]);
  return costs;
}

}  // namespace apogee::pipeline
