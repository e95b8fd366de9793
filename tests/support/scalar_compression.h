// The 1-bit all-reduce with error feedback written down once more, element by element in double:
// what comm/compressed_all_reduce must compute.
#ifndef APOGEE_TESTS_SUPPORT_SCALAR_COMPRESSION_H_
#define APOGEE_TESTS_SUPPORT_SCALAR_COMPRESSION_H_

#include <cmath>
#include <cstddef>
#include <vector>

namespace apogee::testing {

using Values = std::vector<double>;

// One tensor on all ranks. `live` empty: all elements are.
class ScalarCompression {
 public:
  ScalarCompression(size_t num_ranks, size_t n, std::vector<bool> live = {},
                    bool count_padding = false)
      : num_ranks_(num_ranks), n_(n), count_padding_(count_padding) {
    chunk_ = (n + 8 * num_ranks - 1) / (8 * num_ranks) * 8;
    live_.assign(chunk_ * num_ranks, count_padding);
    for (size_t i = 0; i < n; ++i) live_[i] = live.empty() || live[i];
    worker_.assign(num_ranks, Values(live_.size(), 0));
    server_.assign(live_.size(), 0);
  }

  Values Run(const std::vector<Values>& inputs) {
    std::vector<Values> sent(num_ranks_, Values(live_.size(), 0));
    for (size_t r = 0; r < num_ranks_; ++r) {
      for (size_t i = 0; i < live_.size(); ++i) {
        sent[r][i] = (i < n_ ? inputs[r][i] : 0) + worker_[r][i];
      }
      Round(0, live_.size(), sent[r], worker_[r]);
    }
    Values out(live_.size(), 0);
    for (size_t i = 0; i < live_.size(); ++i) {
      for (size_t r = 0; r < num_ranks_; ++r) out[i] += sent[r][i];
      out[i] = out[i] / static_cast<double>(num_ranks_) + server_[i];
    }
    for (size_t j = 0; j < num_ranks_; ++j) Round(j * chunk_, (j + 1) * chunk_, out, server_);
    out.resize(n_);
    return out;
  }

  const Values& worker_error(size_t rank) const { return worker_[rank]; }
  const Values& server_error() const { return server_; }

 private:
  // x becomes scale * sign, the error what that lost.
  void Round(size_t begin, size_t end, Values& x, Values& error) const {
    double squares = 0, count = 0;
    for (size_t i = begin; i < end; ++i) {
      if (!live_[i]) continue;
      squares += x[i] * x[i];
      ++count;
    }
    const double scale = count == 0 ? 0 : std::sqrt(squares / count);
    for (size_t i = begin; i < end; ++i) {
      const double rounded = !live_[i] ? 0 : x[i] >= 0 ? scale : -scale;
      error[i] = live_[i] ? x[i] - rounded : 0;
      x[i] = rounded;
    }
  }

  size_t num_ranks_, n_;
  bool count_padding_;
  size_t chunk_ = 0;
  std::vector<bool> live_;
  std::vector<Values> worker_;
  Values server_;
};

}  // namespace apogee::testing

#endif  // APOGEE_TESTS_SUPPORT_SCALAR_COMPRESSION_H_
