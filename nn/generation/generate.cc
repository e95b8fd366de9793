// SPDX-License-Identifier: Apache-2.0

#include "apogee/nn/generation/generate.h"

#include <algorithm>
#include <memory>
#include <string>
#include <utility>

#include "apogee/autograd/grad_mode.h"
#include "apogee/nn/generation/kv_cache.h"
#include "apogee/nn/generation/sampling.h"

namespace apogee::nn {
namespace {

using Tokens = std::vector<int64_t>;

// A prompt is read in parts of so many tokens, since the model gives logits for each of them.
constexpr int64_t kPartOfPrompt = 256;
// Any id of the vocabulary would do.
constexpr int64_t kPadding = 0;

int64_t Longest(const std::vector<Tokens>& rows) {
  size_t longest = 0;
  for (const Tokens& row : rows) longest = std::max(longest, row.size());
  return static_cast<int64_t>(longest);
}

SamplingOptions SamplingOf(const GenerateOptions& o) {
  return {.temperature = o.temperature, .top_k = o.top_k, .top_p = o.top_p};
}

void Check(Module& model, const std::vector<Tokens>& prompts, const GenerateOptions& o) {
  CheckSampling(SamplingOf(o));
  APOGEE_CHECK(o.max_new_tokens >= 0 && o.max_tokens >= 0 && o.window_multiple > 0,
               "generate: max_new_tokens and max_tokens must not be negative and window_multiple "
               "must be positive, got ",
               o.max_new_tokens, ", ", o.max_tokens, " and ", o.window_multiple);
  APOGEE_CHECK(!o.slide_window || o.max_tokens > 0,
               "generate: slide_window needs max_tokens, the size of the window");
  APOGEE_CHECK(!prompts.empty(), "generate: there are no prompts");
  for (size_t row = 0; row < prompts.size(); ++row) {
    APOGEE_CHECK(!prompts[row].empty(), "generate: prompt ", row,
                 " has no tokens; give at least one");
    const auto length = static_cast<int64_t>(prompts[row].size());
    const bool fits = o.max_tokens == 0 || o.slide_window || length <= o.max_tokens;
    APOGEE_CHECK(fits, "generate: prompt ", row, " has ", length, " tokens, more than the ",
                 o.max_tokens, " positions of the model; shorten it");
  }
  // The last new token is not read.
  const int64_t needed = Longest(prompts) + o.max_new_tokens - 1;
  APOGEE_CHECK(o.max_tokens == 0 || o.slide_window || needed <= o.max_tokens,
               "generate: the longest prompt, of ", Longest(prompts), " tokens, and ",
               o.max_new_tokens, " new tokens need ", needed, " positions, the model has ",
               o.max_tokens, "; lower max_new_tokens to ", o.max_tokens - Longest(prompts) + 1,
               " or set slide_window");
  if (!o.use_cache) return;
  const std::string problem = KvCacheProblem(model);
  APOGEE_CHECK(problem.empty(), "generate: no key/value cache for this model: ", problem,
               "; set use_cache = false");
}

// Evaluation mode for a scope.
class EvaluationMode {
 public:
  explicit EvaluationMode(Module& model) {
    for (Module* module : model.Modules()) modes_.emplace_back(module, module->is_training());
    model.Train(false);
  }
  // Parents come first: what they set in their children is set again by these.
  ~EvaluationMode() {
    for (const auto& [module, training] : modes_) module->Train(training);
  }
  EvaluationMode(const EvaluationMode&) = delete;
  EvaluationMode& operator=(const EvaluationMode&) = delete;

 private:
  std::vector<std::pair<Module*, bool>> modes_;
};

// The logits of the rows' next tokens.
class NextLogits {
 public:
  NextLogits(Module& model, const Module::ForwardFunction& forward, const GenerateOptions& options)
      : model_(model), forward_(forward), options_(options) {
    const std::vector<ParameterPtr> parameters = model.Parameters();
    APOGEE_CHECK(!parameters.empty(), "generate: the model has no parameters");
    context_ = parameters[0]->context();
  }

  // `rows` are those of the call before, each with a token more.
  std::vector<std::vector<double>> Of(const std::vector<Tokens>& rows) {
    const int64_t longest = Longest(rows);
    const bool fits = options_.max_tokens == 0 || longest <= options_.max_tokens;
    if (options_.use_cache && fits) return cache_ == nullptr ? Begin(rows) : Continue(rows);
    cache_ = nullptr;  // it holds the keys of other positions
    return OfWindow(rows);
  }

 private:
  std::vector<std::vector<double>> Begin(const std::vector<Tokens>& rows) {
    const int64_t longest = Longest(rows), room = longest + options_.max_new_tokens - 1;
    std::vector<int64_t> padding;
    for (const Tokens& row : rows) padding.push_back(longest - std::ssize(row));
    cache_ = std::make_unique<KvCache>(
        std::ssize(rows), options_.max_tokens == 0 ? room : std::min(room, options_.max_tokens),
        padding);
    Tensor logits;
    int64_t length = 0;
    for (int64_t at = 0; at < longest; at += length) {
      length = std::min(kPartOfPrompt, longest - at);
      std::vector<int64_t> part;
      for (size_t b = 0; b < rows.size(); ++b) {
        for (int64_t t = at - padding[b]; t < at - padding[b] + length; ++t) {
          part.push_back(t < 0 ? kPadding : rows[b][static_cast<size_t>(t)]);
        }
      }
      logits = ReadCached(part, length);
    }
    return Last(logits, std::vector<int64_t>(rows.size(), length));
  }

  std::vector<std::vector<double>> Continue(const std::vector<Tokens>& rows) {
    std::vector<int64_t> last;
    for (const Tokens& row : rows) last.push_back(row.back());
    return Last(ReadCached(last, 1), std::vector<int64_t>(rows.size(), 1));
  }

  Tensor ReadCached(const std::vector<int64_t>& tokens, int64_t length) {
    const KvCacheGuard guard(cache_.get());
    const Tensor logits = Forward(tokens, cache_->batch(), length);
    cache_->Advance(length);
    return logits;
  }

  std::vector<std::vector<double>> OfWindow(const std::vector<Tokens>& rows) {
    const int64_t most = options_.max_tokens == 0 ? Longest(rows) : options_.max_tokens;
    const int64_t longest = std::min(most, Longest(rows)), multiple = options_.window_multiple;
    const int64_t length = (longest + multiple - 1) / multiple * multiple;
    std::vector<int64_t> tokens, lengths;
    for (const Tokens& row : rows) {
      lengths.push_back(std::min(most, static_cast<int64_t>(row.size())));
      tokens.insert(tokens.end(), row.end() - lengths.back(), row.end());
      tokens.insert(tokens.end(), static_cast<size_t>(length - lengths.back()), kPadding);
    }
    return Last(Forward(tokens, std::ssize(rows), length), lengths);
  }

  Tensor Forward(const std::vector<int64_t>& values, int64_t batch, int64_t length) const {
    const Tensor tokens = Tensor::FromVector<int64_t>(values, {batch, length}, context_);
    const Tensor logits = forward_ ? forward_(tokens) : model_(tokens);
    APOGEE_CHECK(logits.defined() && logits.rank() == 3 && logits.size(0) == batch &&
                     logits.size(1) == length,
                 "generate: for tokens ", tokens.shape(),
                 " the model must give logits [batch, tokens, vocabulary], got ",
                 logits.defined() ? logits.shape().ToString() : "an undefined tensor");
    return logits.Detach();
  }

  // Of the last of `lengths` tokens of each row.
  static std::vector<std::vector<double>> Last(const Tensor& logits,
                                               const std::vector<int64_t>& lengths) {
    std::vector<std::vector<double>> last;
    for (size_t b = 0; b < lengths.size(); ++b) {
      last.push_back(logits.Slice(0, static_cast<int64_t>(b), 1)
                         .Slice(1, lengths[b] - 1, 1)
                         .ToVector<double>());
    }
    return last;
  }

  Module& model_;
  const Module::ForwardFunction& forward_;
  const GenerateOptions& options_;
  ContextPtr context_;
  std::unique_ptr<KvCache> cache_;
};

}  // namespace

std::vector<Tokens> Generate(Module& model, const std::vector<Tokens>& prompts,
                             const GenerateOptions& options,
                             const Module::ForwardFunction& forward) {
  Check(model, prompts, options);
  const autograd::NoGradGuard no_grad;
  const EvaluationMode evaluation(model);
  NextLogits next(model, forward, options);
  const SamplingOptions sampling = SamplingOf(options);
  std::vector<Tokens> rows = prompts, drawn(prompts.size());
  std::vector<bool> stopped(prompts.size(), false);
  for (int64_t step = 0; step < options.max_new_tokens; ++step) {
    const std::vector<std::vector<double>> logits = next.Of(rows);
    for (size_t b = 0; b < rows.size(); ++b) {
      // A row that has stopped stays in the batch; nobody looks at what it reads.
      int64_t token = kPadding;
      if (!stopped[b]) {
        token =
            SampleToken(logits[b], sampling, DrawOf(options.seed, static_cast<int64_t>(b), step));
        drawn[b].push_back(token);
        stopped[b] = std::ranges::count(options.stop_tokens, token) > 0;
      }
      rows[b].push_back(token);
    }
    if (std::ranges::count(stopped, false) == 0) break;
  }
  return drawn;
}

std::vector<int64_t> StopTokensOf(const TokenIds& ids) {
  const auto found = ids.find("eos_token_id");
  return found == ids.end() ? std::vector<int64_t>() : found->second;
}

}  // namespace apogee::nn
