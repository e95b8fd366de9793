// SPDX-License-Identifier: Apache-2.0

#include "apogee/autograd/documents.h"

#include <algorithm>
#include <utility>

namespace apogee::autograd {
namespace {

thread_local std::shared_ptr<Documents> current_documents;

bool Equal(const SequencePart& a, const SequencePart& b) {
  return a.rank == b.rank && a.size == b.size && a.layout == b.layout;
}

}  // namespace

Documents::Documents(const Tensor& starts) {
  APOGEE_CHECK(starts.defined() && starts.rank() == 2 && starts.dtype() == DType::kI64,
               "documents: starts must be i64 [batch, tokens], got ",
               starts.defined() ? DTypeName(starts.dtype()) : "an undefined tensor", " ",
               starts.shape());
  context_ = starts.context();
  batch_ = starts.size(0);
  tokens_ = starts.size(1);
  starts_ = starts.ToVector<int64_t>();
  for (int64_t b = 0; b < batch_; ++b) {
    const int64_t* row = starts_.data() + b * tokens_;
    for (int64_t t = 0; t < tokens_; ++t) {
      const int64_t before = t == 0 ? 0 : row[t - 1];
      APOGEE_CHECK(row[t] == t || row[t] == before, "documents: starts[", b, ", ", t, "] is ",
                   row[t], "; it must be ", t, " if this token begins a document",
                   t == 0 ? "" : ", else that of the token before it, ",
                   t == 0 ? "" : std::to_string(before));
    }
  }
}

void Documents::CheckFit(const char* what, int64_t batch, int64_t tokens) const {
  APOGEE_CHECK(batch == batch_ && tokens == tokens_, what, ": starts [", batch_, ", ", tokens_,
               "] are not those of ", batch, " sequences of ", tokens,
               " tokens; pass the starts of the same batch");
}

// of_token(start, index in the sequence) for the tokens of `queries`.
template <typename Fn>
Tensor Documents::Make(const SequencePart& queries, const SequencePart& keys, bool are_positions,
                       const Fn& of_token) {
  const auto known = std::ranges::find_if(made_, [&](const Made& made) {
    return made.are_positions == are_positions && Equal(made.queries, queries) &&
           Equal(made.keys, keys);
  });
  if (known != made_.end()) return known->tensor;
  const int64_t held = tokens_ / queries.size;
  std::vector<int64_t> values;
  values.reserve(static_cast<size_t>(batch_ * held));
  for (int64_t b = 0; b < batch_; ++b) {
    for (const TokenRun& run : queries.Runs(held)) {
      for (int64_t t = run.first; t < run.first + run.length; ++t) {
        values.push_back(of_token(starts_[static_cast<size_t>(b * tokens_ + t)], t));
      }
    }
  }
  made_.push_back({queries, keys, are_positions,
                   Tensor::FromVector<int64_t>(values, {batch_, held}, context_)});
  return made_.back().tensor;
}

Tensor Documents::FirstKeys(const SequencePart& queries, const SequencePart& keys) {
  const std::vector<TokenRun> runs = keys.Runs(tokens_ / keys.size);
  return Make(queries, keys, false, [&runs](int64_t start, int64_t) {
    int64_t before = 0;  // keys before the document
    for (const TokenRun& run : runs) {
      before += std::clamp<int64_t>(start - run.first, 0, run.length);
    }
    return before;
  });
}

Tensor Documents::Positions(const SequencePart& part) {
  return Make(part, part, true, [](int64_t start, int64_t t) { return t - start; });
}

const std::shared_ptr<Documents>& CurrentDocuments() { return current_documents; }

DocumentsGuard::DocumentsGuard(std::shared_ptr<Documents> documents)
    : previous_(std::exchange(current_documents, std::move(documents))) {}
DocumentsGuard::~DocumentsGuard() { current_documents = std::move(previous_); }

}  // namespace apogee::autograd
