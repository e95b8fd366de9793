// SPDX-License-Identifier: Apache-2.0

// A transformer in straight loops over doubles, after the families' papers. Tests compare the
// models with it; it shares no code with them.
//
//   Transformer t{.hidden = 16, .heads = 4, .kv_heads = 2, .layers = 2};
//   t.weights["embed"] = ...;                 // what is there decides what is computed
//   Rows logits = t.Logits({3, 1, 4});        // of one sequence: [T][vocabulary]
//
// Weights by name, matrices as [out, in]; biases end with ".bias" and may be absent. With the
// number of a layer and a dot in front:
//
//   q, k, v, o          the layers of attention
//   q_norm, k_norm      of each head, or of all heads together: their size tells
//   gate, up, down      without a gate the MLP is down(activation(up(x)))
//   router              then the MLPs are experts: e0.gate, e0.up, e0.down, e1.gate, ...
//   shared.gate, shared.up, shared.down, shared_gate   of the expert that every token takes
//   before_attention    norm of the branch's input; before_mlp likewise
//   after_attention     of its output; after_mlp
//   after_add_attention of the sum; after_add_mlp
//
// For the whole model: embed, positions, project_in, embed_norm, norm, project_out, transform,
// transform_norm, head. Norms and projections that are absent do nothing.
#ifndef APOGEE_TESTS_NN_FAMILIES_REFERENCE_TRANSFORMER_H_
#define APOGEE_TESTS_NN_FAMILIES_REFERENCE_TRANSFORMER_H_

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace apogee::nn::families_test {

using Row = std::vector<double>;
using Rows = std::vector<Row>;

inline double Silu(double x) { return x / (1 + std::exp(-x)); }
inline double Gelu(double x) { return x * (1 + std::erf(x / std::sqrt(2.0))) / 2; }
inline double GeluTanh(double x) {
  return x / 2 * (1 + std::tanh(std::sqrt(2 / std::acos(-1.0)) * (x + 0.044715 * x * x * x)));
}
inline double Relu(double x) { return x > 0 ? x : 0; }

inline Row Sum(const Row& a, const Row& b) {
  Row sum = a;
  for (size_t i = 0; i < b.size(); ++i) sum[i] += b[i];
  return sum;
}
// 0 turns the cap off.
inline double Capped(double x, double cap) { return cap == 0 ? x : cap * std::tanh(x / cap); }

struct Transformer {
  size_t hidden = 1, heads = 1, kv_heads = 1, layers = 1;
  bool layer_norm = false;  // else RMS norm
  bool parallel = false;    // both branches of a layer read its input
  bool causal = true;
  double eps = 1e-6;
  double weight_offset = 0;          // added to the weights of norms
  Row frequencies = {};              // of the pairs of dims that turn; pair i: dims i and i + size
  Row score_scales = {};             // per layer; empty: 1 / sqrt(dims of a head)
  std::vector<size_t> windows = {};  // per layer, 0: none; empty: none
  double score_cap = 0, logit_cap = 0;
  double embedding_scale = 1;
  double (*activation)(double) = Silu;
  // Of layers with experts.
  size_t top_k = 1;
  bool normalise = false;
  std::map<std::string, Row> weights = {};

  bool Has(const std::string& name) const { return weights.contains(name); }

  Row Linear(const std::string& name, const Row& x) const {
    const Row& w = weights.at(name);
    Row y(w.size() / x.size());
    for (size_t i = 0; i < y.size(); ++i) {
      for (size_t j = 0; j < x.size(); ++j) y[i] += w[i * x.size() + j] * x[j];
    }
    return Has(name + ".bias") ? Sum(y, weights.at(name + ".bias")) : y;
  }

  // Of each consecutive part of x that is as long as the weight.
  Row Norm(const std::string& name, const Row& x) const {
    if (!Has(name)) return x;
    const Row& w = weights.at(name);
    Row y(x.size());
    for (size_t begin = 0; begin < x.size(); begin += w.size()) {
      double mean = 0, square = 0;
      for (size_t i = 0; i < w.size(); ++i) mean += x[begin + i] / static_cast<double>(w.size());
      if (!layer_norm) mean = 0;
      for (size_t i = 0; i < w.size(); ++i) square += std::pow(x[begin + i] - mean, 2);
      const double scale = 1 / std::sqrt(square / static_cast<double>(w.size()) + eps);
      for (size_t i = 0; i < w.size(); ++i) {
        y[begin + i] = (x[begin + i] - mean) * scale * (weight_offset + w[i]);
        if (Has(name + ".bias")) y[begin + i] += weights.at(name + ".bias")[i];
      }
    }
    return y;
  }

  // Every head of a token turns its pairs by the position times their frequencies.
  Row Rotated(const Row& x, size_t head_dim, size_t position) const {
    Row y = x;
    const size_t half = frequencies.size();
    for (size_t begin = 0; begin < x.size(); begin += head_dim) {
      for (size_t i = 0; i < half; ++i) {
        const double angle = static_cast<double>(position) * frequencies[i];
        const double a = x[begin + i], b = x[begin + half + i];
        y[begin + i] = a * std::cos(angle) - b * std::sin(angle);
        y[begin + half + i] = b * std::cos(angle) + a * std::sin(angle);
      }
    }
    return y;
  }

  bool Sees(size_t layer, size_t query, size_t key, const std::vector<int64_t>& mask) const {
    const size_t window = windows.empty() ? 0 : windows[layer];
    if (causal && key > query) return false;
    if (window > 0 && key + window <= query) return false;
    return mask.empty() || mask[key] != 0;
  }

  // mask: 0 for tokens that nobody sees; empty: there are none.
  Rows Attention(size_t layer, const Rows& xs, const std::vector<int64_t>& mask) const {
    const std::string at = std::to_string(layer) + ".";
    Rows q, k, v, out;
    size_t dim = 0;
    for (size_t t = 0; t < xs.size(); ++t) {
      const Row query = Linear(at + "q", xs[t]);
      dim = query.size() / heads;
      q.push_back(Rotated(Norm(at + "q_norm", query), dim, t));
      k.push_back(Rotated(Norm(at + "k_norm", Linear(at + "k", xs[t])), dim, t));
      v.push_back(Linear(at + "v", xs[t]));
    }
    const double scale =
        score_scales.empty() ? 1 / std::sqrt(static_cast<double>(dim)) : score_scales[layer];
    for (size_t t = 0; t < xs.size(); ++t) {
      Row mixed(heads * dim);
      for (size_t h = 0; h < heads; ++h) {
        const size_t of_query = h * dim, of_key = h / (heads / kv_heads) * dim;
        Row p(xs.size());
        double sum = 0;
        for (size_t j = 0; j < xs.size(); ++j) {
          if (!Sees(layer, t, j, mask)) continue;
          double score = 0;
          for (size_t i = 0; i < dim; ++i) score += q[t][of_query + i] * k[j][of_key + i];
          p[j] = std::exp(Capped(score * scale, score_cap));
          sum += p[j];
        }
        for (size_t j = 0; j < xs.size(); ++j) {
          for (size_t i = 0; i < dim; ++i) mixed[of_query + i] += p[j] / sum * v[j][of_key + i];
        }
      }
      out.push_back(Linear(at + "o", mixed));
    }
    return out;
  }

  // The top_k experts with the largest probabilities; of equal ones the first.
  Row Mixture(const std::string& at, const Row& x) const {
    Row p = Linear(at + "router", x);
    double sum = 0;
    for (double& value : p) sum += value = std::exp(value);
    for (double& value : p) value /= sum;
    std::vector<size_t> order(p.size());
    for (size_t e = 0; e < order.size(); ++e) order[e] = e;
    std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return p[a] > p[b]; });
    double chosen = 0;
    for (size_t j = 0; j < top_k; ++j) chosen += p[order[j]];
    Row y(x.size());
    for (size_t j = 0; j < top_k; ++j) {
      const size_t e = order[j];
      const Row own = Mlp(at + "e" + std::to_string(e) + ".", x);
      const double weight = normalise ? p[e] / chosen : p[e];
      for (size_t i = 0; i < y.size(); ++i) y[i] += weight * own[i];
    }
    if (!Has(at + "shared.up")) return y;
    const Row shared = Mlp(at + "shared.", x);
    const double weight = 1 / (1 + std::exp(-Linear(at + "shared_gate", x)[0]));
    for (size_t i = 0; i < y.size(); ++i) y[i] += weight * shared[i];
    return y;
  }

  Row Mlp(const std::string& at, const Row& x) const {
    if (Has(at + "router")) return Mixture(at, x);
    Row inner = Linear(at + "up", x);
    const Row gate = Has(at + "gate") ? Linear(at + "gate", x) : inner;
    for (size_t i = 0; i < inner.size(); ++i) {
      inner[i] = Has(at + "gate") ? activation(gate[i]) * inner[i] : activation(inner[i]);
    }
    return Linear(at + "down", inner);
  }

  Rows Body(Rows xs, const std::vector<int64_t>& mask = {}) const {
    for (size_t layer = 0; layer < layers; ++layer) {
      const std::string at = std::to_string(layer) + ".";
      Rows normed;
      for (const Row& x : xs) normed.push_back(Norm(at + "before_attention", x));
      const Rows attended = Attention(layer, normed, mask);
      for (size_t t = 0; t < xs.size(); ++t) {
        const Row sum = Sum(xs[t], Norm(at + "after_attention", attended[t]));
        const Row x = Norm(at + "after_add_attention", sum);
        const Row y = Mlp(at, Norm(at + "before_mlp", parallel ? xs[t] : x));
        xs[t] = Norm(at + "after_add_mlp", Sum(x, Norm(at + "after_mlp", y)));
      }
    }
    for (Row& x : xs) x = Norm("norm", x);
    return xs;
  }

  // The vector that enters the first layer; `more` is added to it.
  Row Embedded(int64_t token, size_t position, const Row& more = {}) const {
    const size_t width = Has("project_in") ? weights.at("project_in").size() / hidden : hidden;
    const auto row = [&](const char* table, size_t index, size_t size) {
      const auto begin = weights.at(table).begin() + static_cast<int64_t>(index * size);
      return Row(begin, begin + static_cast<int64_t>(size));
    };
    Row x = row("embed", static_cast<size_t>(token), width);
    if (Has("project_in")) x = Linear("project_in", x);
    for (double& value : x) value *= embedding_scale;
    if (Has("positions")) x = Sum(x, row("positions", position, x.size()));
    return Norm("embed_norm", Sum(x, more));
  }

  Row Head(Row x) const {
    if (Has("project_out")) x = Linear("project_out", x);
    if (Has("transform")) {
      x = Linear("transform", x);
      for (double& value : x) value = activation(value);
      x = Norm("transform_norm", x);
    }
    Row logits = Linear("head", x);
    for (double& value : logits) value = Capped(value, logit_cap);
    return logits;
  }

  Rows Logits(const std::vector<int64_t>& tokens) const {
    Rows xs;
    for (size_t t = 0; t < tokens.size(); ++t) xs.push_back(Embedded(tokens[t], t));
    Rows logits;
    for (const Row& x : Body(xs)) logits.push_back(Head(x));
    return logits;
  }
};

// -log of the probability of `target`.
inline double CrossEntropyOf(const Row& logits, int64_t target) {
  double sum = 0;
  for (const double logit : logits) sum += std::exp(logit);
  return std::log(sum) - logits[static_cast<size_t>(target)];
}

}  // namespace apogee::nn::families_test

#endif  // APOGEE_TESTS_NN_FAMILIES_REFERENCE_TRANSFORMER_H_
