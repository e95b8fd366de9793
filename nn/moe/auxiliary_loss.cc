// SPDX-License-Identifier: Apache-2.0

// AuxiliaryLoss. docs/moe.md has the formulas.
#include <numeric>

#include "apogee/autograd/functions/arithmetic.h"
#include "apogee/autograd/functions/shape.h"
#include "apogee/nn/moe/moe.h"

namespace apogee::nn {
namespace {

// A layer and its last forward.
struct Layer {
  Moe* moe;
  Moe::Record record;
  std::vector<double> counts;  // of choices by expert, over all ranks
  double num_tokens = 0;       // over all ranks
  // With kSequence, over the ranks that share a sequence: its tokens, and the choices of each
  // sequence by expert [sequences x experts].
  double tokens_per_sequence = 0;
  std::vector<double> sequence_counts = {};
};

int64_t NumTokens(const Layer& layer) { return layer.record.scores.size(0); }

Layer LayerOf(Moe& moe) {
  Layer layer{.moe = &moe, .record = moe.TakeRecord(), .counts = {}};
  APOGEE_CHECK(
      layer.record.scores.defined(), "AuxiliaryLoss: mixture of experts \"", moe.full_name(),
      "\" has had no forward since the last call; call the model, then AuxiliaryLoss once");
  return layer;
}

std::vector<double> CountsOf(const std::vector<int64_t>& chosen, int64_t num_experts) {
  std::vector<double> counts(static_cast<size_t>(num_experts));
  for (const int64_t expert : chosen) ++counts[static_cast<size_t>(expert)];
  return counts;
}

// Sums counts and numbers of tokens over the ranks, all layers in one message. Returns the number
// of ranks.
double SumOverRanks(std::vector<Layer>& layers) {
  std::vector<double> values = {1};
  for (Layer& layer : layers) {
    layer.counts = CountsOf(layer.record.chosen, layer.moe->config().num_experts);
    values.insert(values.end(), layer.counts.begin(), layer.counts.end());
    values.push_back(static_cast<double>(NumTokens(layer)));
  }
  values = layers[0].moe->SumOverRanks(values);
  auto next = values.begin() + 1;
  for (Layer& layer : layers) {
    for (double& count : layer.counts) count = *next++;
    layer.num_tokens = *next++;
  }
  return values[0];
}

std::vector<double> SequenceCounts(const Layer& layer) {
  const auto choices =
      static_cast<std::ptrdiff_t>(layer.record.chosen.size()) / layer.record.num_sequences;
  std::vector<double> counts;
  for (auto at = layer.record.chosen.begin(); at != layer.record.chosen.end(); at += choices) {
    const std::vector<double> own = CountsOf({at, at + choices}, layer.moe->config().num_experts);
    counts.insert(counts.end(), own.begin(), own.end());
  }
  return counts;
}

// Adds up the counts of each sequence over the ranks that share it, all layers in one message.
void SumOverSequences(std::vector<Layer>& layers) {
  std::vector<Layer*> cut;
  std::vector<double> values;
  for (Layer& layer : layers) {
    if (layer.moe->config().balance != BalanceLoss::kSequence) continue;
    cut.push_back(&layer);
    const std::vector<double> counts = SequenceCounts(layer);
    values.insert(values.end(), counts.begin(), counts.end());
    values.push_back(static_cast<double>(NumTokens(layer) / layer.record.num_sequences));
  }
  if (cut.empty()) return;
  values = cut[0]->moe->SumOverSequenceRanks(values);
  auto next = values.begin();
  for (Layer* layer : cut) {
    const auto end = next + layer->record.num_sequences * layer->moe->config().num_experts;
    layer->sequence_counts.assign(next, end);
    layer->tokens_per_sequence = *end;
    next = end + 1;
  }
}

Tensor Constant(const std::vector<double>& values, const Tensor& like) {
  return Tensor::FromVector<double>(values, {static_cast<int64_t>(values.size())}, like.context(),
                                    like.dtype());
}

// The scores as shares of a token's sum.
Tensor Probabilities(const Layer& layer) {
  const Tensor& scores = layer.record.scores;
  if (layer.moe->config().score == RouterScore::kSoftmax) return scores;
  return autograd::Div(scores, autograd::Sum(scores, {1}, /*keep_dims=*/true));
}

// sum_i counts_i * (the sum over this rank's tokens of the probabilities of i) * factor.
Tensor Product(const std::vector<double>& counts, const Tensor& probabilities, double factor) {
  const Tensor sums = autograd::Sum(probabilities, {0});
  return autograd::Scale(autograd::Sum(autograd::Mul(sums, Constant(counts, sums))), factor);
}

Tensor MicroBatchLoss(const Layer& layer, double num_ranks) {
  const MoeConfig& c = layer.moe->config();
  const double factor = static_cast<double>(c.num_experts) * num_ranks /
                        (layer.num_tokens * static_cast<double>(c.top_k) * layer.num_tokens);
  return Product(layer.counts, Probabilities(layer), factor);
}

// The mean over sequences; all sequences have equally many tokens.
Tensor SequenceLoss(const Layer& layer, double num_ranks) {
  const MoeConfig& c = layer.moe->config();
  const int64_t sequences = layer.record.num_sequences;
  const int64_t own_tokens = NumTokens(layer) / sequences;
  const Tensor probabilities = Probabilities(layer);
  const Tensor sums =
      autograd::Sum(autograd::View(probabilities, {sequences, own_tokens, c.num_experts}), {1});
  const Tensor weights = Constant(layer.sequence_counts, sums).View({sequences, c.num_experts});
  const double tokens = layer.tokens_per_sequence;
  const double all_sequences = layer.num_tokens / tokens;
  const double factor = static_cast<double>(c.num_experts) * num_ranks /
                        (tokens * static_cast<double>(c.top_k) * tokens * all_sequences);
  return autograd::Scale(autograd::Sum(autograd::Mul(sums, weights)), factor);
}

Tensor ZLoss(const Layer& layer, double num_ranks) {
  const Tensor lse = autograd::LogSumExp(layer.record.logits, {1});
  return autograd::Scale(autograd::Sum(autograd::Square(lse)), num_ranks / layer.num_tokens);
}

// Over the tokens of all layers together.
Tensor HfLayersLoss(const std::vector<const Layer*>& layers, double num_ranks) {
  double num_tokens = 0;
  std::vector<double> counts(layers[0]->counts.size());
  for (const Layer* layer : layers) {
    APOGEE_CHECK(layer->counts.size() == counts.size(),
                 "auxiliary loss hf_layers: all layers must have equally many experts");
    num_tokens += layer->num_tokens;
    for (size_t i = 0; i < counts.size(); ++i) counts[i] += layer->counts[i];
  }
  Tensor loss;
  for (const Layer* layer : layers) {
    const double factor =
        static_cast<double>(counts.size()) * num_ranks / (num_tokens * num_tokens);
    const Tensor own = Product(counts, Probabilities(*layer), factor);
    loss = loss.defined() ? autograd::Add(loss, own) : own;
  }
  return loss;
}

}  // namespace

Tensor AuxiliaryLoss(Module& model) {
  const Tensor loss = AuxiliaryLossOf({&model});
  return loss.defined() ? loss : Tensor::Zeros({}, DType::kF32, model.Parameters()[0]->context());
}

Tensor AuxiliaryLossOf(const std::vector<Module*>& modules) {
  std::vector<Layer> layers;
  for (Module* module : modules) {
    for (Moe* moe : MoeLayers(*module)) {
      if (moe->has_loss()) layers.push_back(LayerOf(*moe));
    }
  }
  if (layers.empty()) return {};
  const double num_ranks = SumOverRanks(layers);
  SumOverSequences(layers);
  Tensor total;
  const auto add = [&](const Tensor& loss, double coefficient) {
    const Tensor own = autograd::Scale(loss, coefficient);
    total = total.defined() ? autograd::Add(total, own) : own;
  };
  std::vector<const Layer*> together;
  for (const Layer& layer : layers) {
    const MoeConfig& c = layer.moe->config();
    if (c.balance == BalanceLoss::kMicroBatch) {
      add(MicroBatchLoss(layer, num_ranks), c.balance_coefficient);
    } else if (c.balance == BalanceLoss::kSequence) {
      add(SequenceLoss(layer, num_ranks), c.balance_coefficient);
    } else if (c.balance == BalanceLoss::kHfLayers) {
      together.push_back(&layer);
    }
    if (c.z_coefficient > 0) add(ZLoss(layer, num_ranks), c.z_coefficient);
  }
  if (!together.empty()) {
    add(HfLayersLoss(together, num_ranks), together[0]->moe->config().balance_coefficient);
  }
  return total;
}

}  // namespace apogee::nn
