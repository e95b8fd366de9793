// SPDX-License-Identifier: Apache-2.0

// A second implementation of the 1-bit all-reduce with error feedback, element by element in
// double: the result that comm/compressed_all_reduce must compute.
#ifndef APOGEE_TESTS_SUPPORT_RUNS_SCALAR_COMPRESSION_H_
#define APOGEE_TESTS_SUPPORT_RUNS_SCALAR_COMPRESSION_H_

#include <cmath>
#include <cstddef>
#include <utility>
#include <vector>

namespace apogee::testing {

using Values = std::vector<double>;

// The tensors of all ranks. With empty `live` all elements are live.
class ScalarCompression {
 public:
  ScalarCompression(size_t num_ranks, size_t n, std::vector<bool> live = {})
      : ScalarCompression(
            num_ranks,
            std::vector<std::vector<bool>>{live.empty() ? std::vector<bool>(n, true) : live},
            /*shared_scale=*/false) {}
  // `live` says for each tensor which elements are live.
  ScalarCompression(size_t num_ranks, std::vector<std::vector<bool>> live, bool shared_scale)
      : num_ranks_(num_ranks), shared_scale_(shared_scale) {
    for (std::vector<bool>& own : live) {
      Part& part = parts_.emplace_back();
      part.n = own.size();
      part.chunk = (part.n + 8 * num_ranks - 1) / (8 * num_ranks) * 8;
      own.resize(part.chunk * num_ranks, false);
      part.worker.assign(num_ranks, Values(own.size(), 0));
      part.server.assign(own.size(), 0);
      part.live = std::move(own);
    }
  }

  // For a single tensor: inputs[rank].
  Values Run(const std::vector<Values>& inputs) { return RunAll({inputs})[0]; }
  // For several tensors: inputs[tensor][rank].
  std::vector<Values> RunAll(const std::vector<std::vector<Values>>& inputs) {
    std::vector<std::vector<Values>> sent(parts_.size());
    for (size_t r = 0; r < num_ranks_; ++r) {
      std::vector<Rounding> roundings;
      for (size_t t = 0; t < parts_.size(); ++t) {
        Values& x = sent[t].emplace_back(parts_[t].live.size(), 0);
        for (size_t i = 0; i < parts_[t].n; ++i) x[i] = inputs[t][r][i];
        for (size_t i = 0; i < x.size(); ++i) x[i] += parts_[t].worker[r][i];
      }
      for (size_t t = 0; t < parts_.size(); ++t) {
        roundings.push_back(
            {&parts_[t].live, 0, parts_[t].live.size(), &sent[t][r], &parts_[t].worker[r]});
      }
      Round(roundings);
    }
    std::vector<Values> out;
    for (size_t t = 0; t < parts_.size(); ++t) {
      Values& x = out.emplace_back(parts_[t].live.size(), 0);
      for (size_t i = 0; i < x.size(); ++i) {
        for (size_t r = 0; r < num_ranks_; ++r) x[i] += sent[t][r][i];
        x[i] = x[i] / static_cast<double>(num_ranks_) + parts_[t].server[i];
      }
    }
    for (size_t j = 0; j < num_ranks_; ++j) {
      std::vector<Rounding> roundings;
      for (size_t t = 0; t < parts_.size(); ++t) {
        Part& part = parts_[t];
        roundings.push_back(
            {&part.live, j * part.chunk, (j + 1) * part.chunk, &out[t], &part.server});
      }
      Round(roundings);
    }
    for (size_t t = 0; t < parts_.size(); ++t) out[t].resize(parts_[t].n);
    return out;
  }

  const Values& worker_error(size_t rank) const { return parts_[0].worker[rank]; }
  const Values& server_error() const { return parts_[0].server; }

 private:
  struct Part {
    size_t n = 0, chunk = 0;
    std::vector<bool> live;
    std::vector<Values> worker;
    Values server;
  };
  // Elements [begin, end) of x are rounded to scale * sign; `error` gets the rounding error.
  struct Rounding {
    const std::vector<bool>* live;
    size_t begin, end;
    Values* x;
    Values* error;
  };

  void Round(const std::vector<Rounding>& roundings) const {
    if (shared_scale_) return RoundAlike(roundings);
    for (const Rounding& rounding : roundings) RoundAlike({rounding});
  }
  static void RoundAlike(const std::vector<Rounding>& roundings) {
    double squares = 0, count = 0;
    for (const Rounding& r : roundings) {
      for (size_t i = r.begin; i < r.end; ++i) {
        if (!(*r.live)[i]) continue;
        squares += (*r.x)[i] * (*r.x)[i];
        ++count;
      }
    }
    const double scale = count == 0 ? 0 : std::sqrt(squares / count);
    for (const Rounding& r : roundings) {
      for (size_t i = r.begin; i < r.end; ++i) {
        double& x = (*r.x)[i];
        const double rounded = !(*r.live)[i] ? 0 : x >= 0 ? scale : -scale;
        (*r.error)[i] = (*r.live)[i] ? x - rounded : 0;
        x = rounded;
      }
    }
  }

  size_t num_ranks_;
  bool shared_scale_;
  std::vector<Part> parts_;
};

}  // namespace apogee::testing

#endif  // APOGEE_TESTS_SUPPORT_RUNS_SCALAR_COMPRESSION_H_
